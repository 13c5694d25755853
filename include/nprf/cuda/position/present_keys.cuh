// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/launch.cuh"

namespace nprf::cuda {

/// Finds which keys of each sequence are present: those that are not padding by the mask, and whose number is below the
/// sequence's length. A length below 0 stands for 0, and one above n_k for n_k. O(sequences * n_k).
struct PresentKeysTask {
  const bool* key_mask;  // [sequence, n_k]: false is padding; null: no padding
  const int* lengths;    // [sequence]
  int sequences, n_k;
  bool* present;  // [sequence, n_k]
};

/// Each thread sets `present` for one key. blockIdx.x: `threads` keys, blockIdx.y: a sequence.
template <int threads>
__global__ void __launch_bounds__(threads) present_keys_kernel(PresentKeysTask task) {
  start_kernel();
  const int j = static_cast<int>(blockIdx.x * threads + threadIdx.x), sequence = static_cast<int>(blockIdx.y);
  if (j >= task.n_k) return;
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(sequence) * task.n_k + j;
  task.present[at] = j < task.lengths[sequence] && (!task.key_mask || task.key_mask[at]);
}

inline void queue_present_keys(const PresentKeysTask& task, cudaStream_t stream) {
  constexpr int threads = 256;
  if (task.sequences == 0 || task.n_k == 0) return;
  launch("present keys", present_keys_kernel<threads>,
         dim3{blocks_of<threads>(task.n_k), static_cast<unsigned>(task.sequences), 1}, dim3{threads, 1, 1}, 0, stream,
         task);
}

}  // namespace nprf::cuda
