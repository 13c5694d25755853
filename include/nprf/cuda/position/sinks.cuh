// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/launch.cuh"

namespace nprf::cuda {

/// Finds the attention sinks of each sequence: the first `count` keys that are not padding, or all such keys if there
/// are fewer. sinks.x becomes the first sink, and sinks.y the key after the last sink. All keys before sinks.y are
/// sinks or padding. O(n_k) for a sequence that begins with padding, else O(count).
struct SinksTask {
  const bool* key_mask;  // [sequence, n_k]: false is padding; null: no padding
  int sequences, n_k, count;
  int2* sinks;  // [sequence]
};

/// Each thread finds the sinks of one sequence.
template <int threads>
__global__ void __launch_bounds__(threads) sinks_kernel(SinksTask task) {
  start_kernel();
  const int sequence = static_cast<int>(blockIdx.x * threads + threadIdx.x);
  if (sequence >= task.sequences) return;
  const bool* mask = task.key_mask ? task.key_mask + static_cast<std::ptrdiff_t>(sequence) * task.n_k : nullptr;
  int first = 0;
  while (mask && first < task.n_k && !mask[first]) ++first;
  int end = first;
  for (int left = task.count; left > 0 && end < task.n_k; ++end)
    if (!mask || mask[end]) --left;
  task.sinks[sequence] = int2{first, end};
}

inline void queue_sinks(const SinksTask& task, cudaStream_t stream) {
  constexpr int threads = 32;
  if (task.sequences == 0) return;
  launch("attention sinks", sinks_kernel<threads>, dim3{blocks_of<threads>(task.sequences), 1, 1}, dim3{threads, 1, 1},
         0, stream, task);
}

}  // namespace nprf::cuda
