// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/position/lag_weights.cuh"

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

/// Which keys a query attends to: those that are not padding, at lags whose bias is not -infinity.
struct AttentionMask {
  DeviceBias b;
  const bool* key_mask;  // [sequence, n_k]: false is padding; null: no padding
  int heads, n_q, n_k;

  /// Whether query i of matrix z attends to any key. The search stops at the first one; O(n_k) if there is none.
  __device__ __forceinline__ bool attends_any(int z, int i) const {
    const bool* own_mask = key_mask ? key_mask + static_cast<std::ptrdiff_t>(z / heads) * n_k : nullptr;
    for (int j = 0; j < n_k; ++j)
      if (!(own_mask && !own_mask[j]) && b.between(z % heads, i, j) > minus_infinity) return true;
    return false;
  }

  /// Whether any query of matrix z attends to key j, which must not be padding. The search stops at the first one;
  /// O(n_q) if there is none.
  __device__ __forceinline__ bool is_attended(int z, int j) const {
    for (int i = 0; i < n_q; ++i)
      if (b.between(z % heads, i, j) > minus_infinity) return true;
    return false;
  }
};

}  // namespace nprf::cuda
