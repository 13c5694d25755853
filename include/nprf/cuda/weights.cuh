// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "nprf/cuda/launch.cuh"

namespace nprf::cuda {

/// The weights c[lag] = exp(b[lag] - max b) of every head, from a position's parameters on the device:
///
///     b[lag] = parameters[index[lag]]   or   -parameters[0] |lag|   or   0
///
/// of the lags first .. first + size - 1; those beyond last_seen are zero and do not count for the maximum. b is
/// computed in double, so that long straight lines keep their digits. O(size) a head.
struct WeightsTask {
  const float* parameters;    // [head, count]
  const std::int32_t* index;  // [size], or null: the bias is linear, or zero if there are no parameters
  int count, size, first, last_seen;
  float* values;  // [head, size]
};

/// One block a head.
template <int threads>
__global__ void __launch_bounds__(threads) weights_kernel(WeightsTask task) {
  double* largest = shared_memory<double>();
  const float* parameters = task.parameters + static_cast<std::ptrdiff_t>(blockIdx.x) * task.count;
  float* values = task.values + static_cast<std::ptrdiff_t>(blockIdx.x) * task.size;
  const int t = static_cast<int>(threadIdx.x), seen = min(task.size, task.last_seen - task.first + 1);
  const double none = -1.0 / 0.0;
  const auto bias = [&](int k) {
    if (task.count == 0) return 0.0;
    if (task.index) return static_cast<double>(parameters[task.index[k]]);
    const int lag = task.first + k;
    return -static_cast<double>(parameters[0]) * (lag < 0 ? -lag : lag);
  };
  double top = none;
  for (int k = t; k < seen; k += threads) top = fmax(top, bias(k));
  largest[t] = top;
  for (int half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (t < half) largest[t] = fmax(largest[t], largest[t + half]);
  }
  __syncthreads();
  top = largest[0];
  for (int k = t; k < task.size; k += threads)
    values[k] = k < seen && top > none ? static_cast<float>(exp(bias(k) - top)) : 0.0f;
}

inline void queue_weights(const WeightsTask& task, int heads, cudaStream_t stream) {
  constexpr int threads = 256;
  if (task.size <= 0 || heads == 0) return;
  launch("weights", weights_kernel<threads>, dim3{static_cast<unsigned>(heads), 1, 1}, dim3{threads, 1, 1},
         threads * sizeof(double), stream, task);
}

}  // namespace nprf::cuda
