// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/cuda/decoder/states.cuh"
#include "nprf/cuda/device/device_code.hpp"
#include "nprf/cuda/device/launch.cuh"

namespace nprf::cuda {

/// Takes back the last tokens of sequences. While no token has left the ring, all of them can be taken back; later the
/// ring must keep as many as the position and the near field need, since tokens cannot be taken out of the sums.
struct RollbackTask {
  const int* tokens;  // [batch]  how many each sequence takes back, on the device; null: `sequence` takes back `count`
  int sequence, count;
  DecodeStates states;
  int least;  // how many tokens the ring must keep
  DecodeCounts* counts;

  __device__ int count_of(int b) const {
    if (tokens) return tokens[b];
    return b == sequence ? count : 0;
  }
};

/// One thread for each head.
template <int threads>
__global__ void __launch_bounds__(threads) rollback_kernel(RollbackTask task) {
  start_kernel();
  const DecodeStates& x = task.states;
  const int z = static_cast<int>(blockIdx.x) * threads + static_cast<int>(threadIdx.x);
  if (z >= x.z()) return;
  const int count = task.count_of(z / x.heads), tokens = x.tokens[z], left = tokens > 0 ? x.left[z] : 0,
            least = left > 0 ? left + task.least : 0;
  if (0 <= count && count <= tokens - least)
    x.tokens[z] = tokens - count;
  else if (z % x.heads == 0)
    atomicAdd(&task.counts->rejected_rollbacks, 1);
}

inline void queue_rollback(const RollbackTask& task, cudaStream_t stream) {
  constexpr int threads = 128;
  launch("taking back tokens", rollback_kernel<threads>, dim3{blocks_of<threads>(task.states.z()), 1, 1},
         dim3{threads, 1, 1}, 0, stream, task);
}

}  // namespace nprf::cuda
