// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/reductions.cuh"
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
  linear = over_groups<Shape>(scratch, linear, Sum());
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

/// The constants of quadratic features (feature_map/quadratic_row.hpp) of one head.
struct QuadraticConstants {
  const uint2* coordinates;              // (r): see DeviceQuadratic
  const float *mean_square, *curvature;  // of the features of second order, of the coordinates (d)
  float log_scale;

  static constexpr unsigned none = ~0u;
  static constexpr float half_root = 0.70710678118654752f;

  /// Feature f of a token, without the row's factor. z is where the token begins in a tile of coordinates.
  template <class Shape>
  __device__ __forceinline__ float feature(int f, const float* z) const {
    const uint2 at = coordinates[f];
    if (at.x == none) return 1;
    const float z_1 = z[Shape::at(static_cast<int>(at.x), 0)];
    if (at.y == none) return z_1;
    if (at.x != at.y) return z_1 * z[Shape::at(static_cast<int>(at.y), 0)];
    return (z_1 * z_1 - mean_square[at.x]) * half_root;
  }

  /// The logarithm of the factor of this thread's token, log_scale + sum_l curvature_l z_l^2 / 2. All threads of the
  /// block must call it.
  template <class Shape>
  __device__ __forceinline__ float log_factor(int d, const float* z, float* scratch) const {
    const int t = static_cast<int>(threadIdx.x) % Shape::tokens, g = static_cast<int>(threadIdx.x) / Shape::tokens;
    float sum = 0;
    for (int k = g; k < d; k += Shape::groups) {
      const float z_k = z[Shape::at(k, t)];
      sum = fmaf(curvature[k] * z_k, z_k, sum);
    }
    return log_scale + over_groups<Shape>(scratch, sum, Sum()) / 2;
  }

  /// Adds the part of feature f to the gradient dz of the coordinates l for which owns(l) is true. g_f is the gradient
  /// of feature f without the row's factor.
  template <class Shape, class Owns>
  __device__ __forceinline__ void add_gradient(int f, float g_f, const float* z, float* dz, Owns&& owns) const {
    const auto at = [](unsigned l) { return Shape::at(static_cast<int>(l), 0); };
    const auto [a, b] = coordinates[f];
    if (a == none) return;
    if (b == none) {
      if (owns(a)) dz[at(a)] += g_f;
    } else if (a == b) {
      if (owns(a)) dz[at(a)] = fmaf(2 * half_root * g_f, z[at(a)], dz[at(a)]);
    } else {
      if (owns(a)) dz[at(a)] = fmaf(g_f, z[at(b)], dz[at(a)]);
      if (owns(b)) dz[at(b)] = fmaf(g_f, z[at(a)], dz[at(b)]);
    }
  }
};

/// The constants of all heads, on the device. `coordinates` says for each feature which coordinates it is the product
/// of, for all heads: two coordinates; one coordinate and QuadraticConstants::none; or for the constant feature
/// QuadraticConstants::none first.
struct DeviceQuadratic {
  const uint2* coordinates = nullptr;  // [r]; null: no quadratic features
  const float* values = nullptr;       // [head, 1 + second + d]: log_scale, mean squares, curvature
  std::ptrdiff_t stride = 0;           // between heads; 0: all heads share them
  int second = 0;

  __device__ __forceinline__ QuadraticConstants of(int head) const {
    const float* of_head = values + head * stride;
    return {coordinates, of_head + 1, of_head + 1 + second, of_head[0]};
  }
};

}  // namespace nprf::cuda
