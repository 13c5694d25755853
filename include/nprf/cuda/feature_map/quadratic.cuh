// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/feature_map/token_tile.cuh"

namespace nprf::cuda {

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
    return log_scale + over_groups<Shape>(scratch, sum, [](float a, float b) { return a + b; }) / 2;
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
