// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/reductions.cuh"

namespace nprf::cuda {

/// dL/dparameters of every position from the gradients db of the lags: the transpose of b[lag] =
/// parameters[index[lag]], or of b[lag] = -parameters[0] |lag|. Sums are in double, in a fixed order.
struct ParameterGradientTask {
  const float* db;       // [position, size]
  const float* moments;  // [tail before or after, position]: for a linear bias whose table has tails
                         // (toeplitz/backward/lags_tiled.cuh), the sum of |lag - edge| dL/db[lag] over the lags of the
                         // tail. The edge is the tail's innermost lag; db[edge] is the sum of dL/db over the tail.
                         // null: there are no tails
  const std::int32_t* order;  // [size]: indices of db sorted by parameter; null if the bias is linear
  const std::int32_t* start;  // [count + 1]: where the indices of each parameter begin in `order`
  int count, size, first;     // count: parameters of a position; first: the lag of db[0], without the offset
  float* gradients;           // [position, count]
};

/// Computes the gradient of one parameter of one position. blockIdx.x: the parameter, blockIdx.y: the position.
template <int threads>
__global__ void __launch_bounds__(threads) parameter_gradients_kernel(ParameterGradientTask task) {
  start_kernel();
  const int parameter = static_cast<int>(blockIdx.x), position = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  const float* db = task.db + static_cast<std::ptrdiff_t>(position) * task.size;
  const int begin = task.order ? task.start[parameter] : 0, end = task.order ? task.start[parameter + 1] : task.size;
  double sum = 0;
  for (int k = begin + thread; k < end; k += threads) {
    const int lag = task.first + k;
    sum += task.order ? db[task.order[k]] : -static_cast<double>(lag < 0 ? -lag : lag) * db[k];
  }
  if (thread == 0 && task.moments)
    for (int side = 0; side < 2; ++side)
      sum -= static_cast<double>(task.moments[side * static_cast<int>(gridDim.y) + position]);
  sum = over_block<threads>(shared_memory<double>(), sum, Sum());
  if (thread == 0)
    task.gradients[static_cast<std::ptrdiff_t>(position) * task.count + parameter] = static_cast<float>(sum);
}

/// Queues parameter_gradients_kernel, with a single warp for each parameter if few lags share a parameter.
inline void queue_parameter_gradients(const ParameterGradientTask& task, int positions, cudaStream_t stream) {
  if (task.count == 0 || positions == 0) return;
  const dim3 grid{static_cast<unsigned>(task.count), static_cast<unsigned>(positions), 1};
  constexpr int many = 256, few = 32;
  if (task.size / task.count > few)
    launch("gradients: parameters", parameter_gradients_kernel<many>, grid, dim3{many, 1, 1}, many * sizeof(double),
           stream, task);
  else
    launch("gradients: parameters", parameter_gradients_kernel<few>, grid, dim3{few, 1, 1}, few * sizeof(double),
           stream, task);
}

}  // namespace nprf::cuda
