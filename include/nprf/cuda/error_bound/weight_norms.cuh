// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/error_bound/signal_norms.cuh"
#include "nprf/cuda/position/lag_weights.cuh"
#include "nprf/cuda/position/toeplitz_weights.cuh"
#include "nprf/toeplitz/fft/convolution_error.hpp"

namespace nprf::cuda {

/// The norms of the weights of consecutive lags, and the longest run of consecutive nonzero weights.
struct WeightNorms {
  toeplitz::NormSums sums;
  int size, leading, trailing;  // number of weights, of nonzero ones before the first zero, and after the last zero
  int longest_run, longest_run_first;  // its length, and the index of its first weight

  /// The norms of the single weight c. It counts as nonzero in runs if `attended`.
  static __device__ __forceinline__ WeightNorms of(float c, bool attended) {
    const int nonzero = attended ? 1 : 0;
    WeightNorms norms{{}, 1, nonzero, nonzero, nonzero, 0};
    norms.sums.add(static_cast<double>(c));
    return norms;
  }

  /// The norms of the weights of a, followed by those of b.
  static __device__ WeightNorms join(const WeightNorms& a, const WeightNorms& b) {
    WeightNorms c{a.sums, a.size + b.size, a.leading, b.trailing, a.longest_run, a.longest_run_first};
    c.sums.add(b.sums);
    if (a.leading == a.size) c.leading += b.leading;
    if (b.trailing == b.size) c.trailing += a.trailing;
    if (a.trailing + b.leading > c.longest_run)
      c.longest_run = a.trailing + b.leading, c.longest_run_first = a.size - a.trailing;
    if (b.longest_run > c.longest_run)
      c.longest_run = b.longest_run, c.longest_run_first = a.size + b.longest_run_first;
    return c;
  }
};

struct WeightNormsTask {
  DeviceWeights c;
  WeightNorms* norms;    // [head], of the attended lags
  DeviceBias bias = {};  // the biases of the weights c. Near lags that are attended count as nonzero in runs
};

/// Computes the norms. blockIdx.x: head.
template <int threads>
__global__ void __launch_bounds__(threads) weight_norms_kernel(WeightNormsTask task) {
  start_kernel();
  auto* norms = shared_memory<WeightNorms>();
  const int t = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.x), first = task.c.first_lag();
  const int size = max(0, task.c.last_lag() - first + 1), share = (size + threads - 1) / threads;
  WeightNorms of_thread{};
  for (int k = t * share; k < min(size, (t + 1) * share); ++k) {
    const float c = task.c(head, first + k);
    const int at = first + k - task.c.first;
    const bool attended = c != 0 || (task.bias.is_near(at) && task.bias(head, at) > minus_infinity);
    of_thread = WeightNorms::join(of_thread, WeightNorms::of(c, attended));
  }
  norms[t] = of_thread;
  for (int step = 1; step < threads; step *= 2) {
    __syncthreads();
    if (t % (2 * step) == 0) norms[t] = WeightNorms::join(norms[t], norms[t + step]);
  }
  if (t == 0) task.norms[head] = norms[0];
}

inline void queue_weight_norms(const WeightNormsTask& task, int heads, cudaStream_t stream) {
  constexpr int threads = 256;
  launch("norms of weights", weight_norms_kernel<threads>, dim3{static_cast<unsigned>(heads), 1, 1},
         dim3{threads, 1, 1}, threads * sizeof(WeightNorms), stream, task);
}

}  // namespace nprf::cuda
