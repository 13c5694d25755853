// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <type_traits>

#include "nprf/cuda/device/half_range.cuh"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/mma_shape.hpp"
#include "nprf/cuda/device/storage.cuh"

namespace nprf::cuda {

/// Transposes and rounds matrices of float by channel, [z, channels, stride], to matrices of T by token, [z, n, row],
/// as tensor cores read them. Rows are zero from `channels` on. If `scales` is null, the matrices are features, and are
/// multiplied by feature_scale<T>. Otherwise, if T is half, each row is divided by a power of two, scales[z, token],
/// that takes the largest finite entry of the row to [2^14, 2^15); if T is bfloat16, it is 1.
template <MmaFactor T>
struct FactorRowsTask {
  const float* x;
  int channels, stride, n, row;
  T* rows;
  float* scales;  // [z, n]; null: features
};

struct FactorRowsShape {
  static constexpr int tokens = 32, channels = 32, groups = 8, threads = tokens * groups, stride = tokens + 1;
  static constexpr std::size_t shared = sizeof(float) * (channels * stride + threads);
};

/// blockIdx.x: tile of tokens, blockIdx.y: z, threadIdx.x: token of the tile and group of channels.
template <MmaFactor T>
__global__ void __launch_bounds__(FactorRowsShape::threads) factor_rows_kernel(FactorRowsTask<T> task) {
  start_kernel();
  using Shape = FactorRowsShape;
  float *tile = shared_memory<float>(),
        *maxima = tile + Shape::channels * Shape::stride;  // tile (channels,tokens), maxima (threads)
  const int t = static_cast<int>(threadIdx.x) % Shape::tokens, g = static_cast<int>(threadIdx.x) / Shape::tokens;
  const int t0 = static_cast<int>(blockIdx.x) * Shape::tokens, z = static_cast<int>(blockIdx.y);
  const float* x = task.x + static_cast<std::ptrdiff_t>(z) * task.channels * task.stride;
  const auto at = [&](int channel) {
    return channel < task.channels && t0 + t < task.n ? x[static_cast<std::ptrdiff_t>(channel) * task.stride + t0 + t]
                                                      : 0.0f;
  };
  float scale = feature_scale<T>;
  if (task.scales) {
    float largest = 0;
    for (int k = g; k < task.channels; k += Shape::groups) {
      const float size = fabsf(at(k));
      if (size <= largest_float) largest = fmaxf(largest, size);
    }
    maxima[threadIdx.x] = largest;
    __syncthreads();
    for (int k = 0; k < Shape::groups; ++k) largest = fmaxf(largest, maxima[k * Shape::tokens + t]);
    scale = std::is_same_v<T, __half> ? scale_to_half(largest) : 1.0f;
    if (g == 0 && t0 + t < task.n) task.scales[static_cast<std::ptrdiff_t>(z) * task.n + t0 + t] = 1 / scale;
  }
  for (int k0 = 0; k0 < task.row; k0 += Shape::channels) {
    __syncthreads();
    for (int k = g; k < Shape::channels; k += Shape::groups) tile[k * Shape::stride + t] = scale * at(k0 + k);
    __syncthreads();
    // a warp writes the channels of a token
    for (int token = g; token < Shape::tokens && t0 + token < task.n; token += Shape::groups)
      if (k0 + t < task.row)
        store(task.rows + (static_cast<std::ptrdiff_t>(z) * task.n + t0 + token) * task.row + k0 + t,
              tile[t * Shape::stride + token]);
  }
}

template <MmaFactor T>
void queue_factor_rows(const FactorRowsTask<T>& task, int z, cudaStream_t stream) {
  if (task.n == 0 || z == 0) return;
  launch("gradients: rows of factors", factor_rows_kernel<T>,
         dim3{blocks_of<FactorRowsShape::tokens>(task.n), static_cast<unsigned>(z), 1},
         dim3{FactorRowsShape::threads, 1, 1}, FactorRowsShape::shared, stream, task);
}

}  // namespace nprf::cuda
