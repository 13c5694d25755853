// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/feature_map/task.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"

namespace nprf::cuda {

/// Computes dL/dx of queries or keys from g = dL/dphi. With the normalised token x':
///
///     positive, hyperbolic   dx' = sum_f s_f w_f - (g.phi) x'   s_f = g_f phi_f - g_{m+f} phi_{m+f}
///     trigonometric          dx' = sum_f s_f w_f + (g.phi) x'   s_f = g_f phi_{m+f} - g_{m+f} phi_f
///     elu                    dx' = g where x' > 0, else g phi
///     quadratic              dx' = phi_0 sum_f g_f dphi_f/dx' + (g.phi) curvature o x'
///
/// For quadratic features dphi_f/dx' is the derivative of the feature without the row's factor, and phi_0, the constant
/// feature, is that factor. With a centring these formulas give dz, from the coordinates z instead of x', and
/// dx' = axes^T dz + (g.phi) linear (feature_map/centred.hpp). At last dx = factor dx'. If tokens are normalised to one
/// norm, the component of dx' along x' is removed first. The scale that the features are divided by is treated as a
/// constant, since y does not depend on it. If g is 0, dx is 0 even for a non-finite token. O(n d m).
template <Storage S>
struct FeatureGradientTask {
  FeatureTask<S> features;  // as in the forward pass; phi is read
  CheckedSums dphi;         // [.., n, r]
  int z;
  DeviceMatrixView<S> dx;
  const float* exact = nullptr;  // [z, n, d]: added to dx', the gradients of exact pairs (attention/exact); null: none
  const int* exact_rows = nullptr;  // [z]: 0 where `exact` is not set and not read; null: all of it is set
  float* dx_of_z = nullptr;         // [z, n, d]: gets dx of each z instead of `dx`, if a group shares keys; null: `dx`
};

/// gradient * factor; 0 if the gradient is 0, even if the factor is not finite.
__device__ __forceinline__ float gradient_times(float gradient, float factor) {
  return gradient == 0 ? 0.0f : gradient * factor;
}

/// A tile of tokens (channels,tokens) in shared memory. Neighbouring threads can store four channels each of a token,
/// or load a channel each of four tokens, without bank conflicts.
struct FeatureGradientShape {
  static constexpr int tokens = 64, groups = 4, threads = tokens * groups, at_once = 4;
  static constexpr int k_tile = 32, stride = TileShape::stride;  // of w, as in TileShape
  static_assert(tokens == TileShape::tile && threads == TileShape::threads);

  /// Where channel k of token t is. The gap of 16 bytes after 4 channels shifts the next ones to other banks.
  __host__ __device__ static constexpr int at(int k, int t) {
    return (k >> 2) * (4 * tokens + 4) + (k & 3) * tokens + t;
  }

  /// How many blocks share a multiprocessor at least, which limits registers: one for 256 channels, whose sums would
  /// spill otherwise.
  static constexpr int blocks(int tiles) { return tiles == 4 ? 1 : 2; }

  /// The bytes of shared memory. `tiles` is FeatureTask::tiles(); centred and quadratic features need one more tile,
  /// for the gradient of the coordinates.
  static std::size_t shared(int d_padded, int tiles, bool has_gradient_tile) {
    const int all = at(d_padded, 0) * (tiles + has_gradient_tile) + 2 * k_tile * stride + (groups + 2) * tokens;
    return sizeof(float) * static_cast<std::size_t>(all);
  }
};

}  // namespace nprf::cuda
