// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/feature_map/token_tile.cuh"

namespace nprf::cuda {

/// The constants of centred queries, or of centred keys (feature_map/centred.hpp), of one head: z = axes (x - mean),
/// and the logarithm of the row's factor is linear.x + offset.
struct CentringConstants {
  const float *axes, *mean, *linear;  // (d,d_padded) (d_padded) (d_padded)
  float offset;
};

/// The constants of all heads, on the device.
struct DeviceCentring {
  const float* values = nullptr;  // [head, size(..)]: axes, mean, linear, offset; null: no centring
  std::ptrdiff_t stride = 0;      // between heads; 0: all heads share them

  static std::size_t size(int d, int d_padded) {
    return static_cast<std::size_t>(d + 2) * static_cast<std::size_t>(d_padded) + 4;
  }

  __device__ __forceinline__ CentringConstants of(int head, int d, int d_padded) const {
    const float *axes = values + head * stride, *mean = axes + static_cast<std::ptrdiff_t>(d) * d_padded,
                *linear = mean + d_padded;
    return {axes, mean, linear, linear[d_padded]};
  }
};

/// Sets the tile z (d_padded,tokens) to the coordinates of the tile x, and returns the logarithm of the factor of this
/// thread's token. All threads of the block must call it, and synchronise before they read z.
template <class Shape>
__device__ __forceinline__ float centre(const CentringConstants& constants, int d, int d_padded, const float* x,
                                        float* z, float* scratch) {
  const int t = static_cast<int>(threadIdx.x) % Shape::tokens, g = static_cast<int>(threadIdx.x) / Shape::tokens;
  float linear = 0;
  for (int k = g; k < d; k += Shape::groups) linear = fmaf(constants.linear[k], x[Shape::at(k, t)], linear);
  linear = over_groups<Shape>(scratch, linear, [](float a, float b) { return a + b; });
  if constexpr (Shape::tokens == 1) {
    multiply_rows(constants.axes, d, d_padded, x, constants.mean, z);
    for (int k = d + g; k < d_padded; k += Shape::groups) z[k] = 0;
  } else {
    for (int first = g * Shape::at_once; first < d_padded; first += Shape::groups * Shape::at_once) {
      float some[Shape::at_once] = {};
      multiply_rows<Shape>(constants.axes, d, d_padded, x + Shape::at(0, t), constants.mean, first, some);
#pragma unroll
      for (int i = 0; i < Shape::at_once; ++i) z[Shape::at(first + i, t)] = some[i];  // 0 from d on
    }
  }
  return linear + constants.offset;
}

}  // namespace nprf::cuda
