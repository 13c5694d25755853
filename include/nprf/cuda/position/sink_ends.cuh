// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/launch.cuh"

namespace nprf::cuda {

/// The attention sinks of each sequence are the first `count` keys that are not padding, or all of these if they are
/// fewer. `ends` gets the key after the last one: the keys before it are sinks or padding. O(n_k) for a sequence that
/// begins with padding, else O(count).
struct SinkEndsTask {
  const bool* key_mask;  // [sequence, n_k]: false is padding; null: no padding
  int sequences, n_k, count;
  int* ends;  // [sequence]
};

/// One thread per sequence.
template <int threads>
__global__ void __launch_bounds__(threads) sink_ends_kernel(SinkEndsTask task) {
  const int sequence = static_cast<int>(blockIdx.x * threads + threadIdx.x);
  if (sequence >= task.sequences) return;
  const bool* mask = task.key_mask ? task.key_mask + static_cast<std::ptrdiff_t>(sequence) * task.n_k : nullptr;
  int end = 0;
  for (int left = task.count; left > 0 && end < task.n_k; ++end)
    if (!mask || mask[end]) --left;
  task.ends[sequence] = end;
}

inline void queue_sink_ends(const SinkEndsTask& task, cudaStream_t stream) {
  constexpr int threads = 32;
  if (task.sequences == 0) return;
  launch("attention sinks", sink_ends_kernel<threads>, dim3{blocks_of<threads>(task.sequences), 1, 1},
         dim3{threads, 1, 1}, 0, stream, task);
}

}  // namespace nprf::cuda
