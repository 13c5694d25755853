// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <type_traits>

#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/feature_map/centring.cuh"
#include "nprf/cuda/feature_map/quadratic.cuh"
#include "nprf/cuda/feature_map/tensor_projection.cuh"
#include "nprf/cuda/feature_map/token_tile.cuh"
#include "nprf/cuda/feature_map/traits.hpp"
#include "nprf/cuda/position/attention_mask.cuh"

namespace nprf::cuda {

/// Whether features are stored by token: those of 16 bits, for tensor cores.
template <class Feature>
constexpr bool by_token = !std::is_same_v<Feature, float>;

/// Computes the features of queries or keys. Tokens are normalised first:
///
///     phi   phi(x') of x' = radius x / |x|, or of x' = scale x
///
/// or e^(linear.x' + offset) phi(z) of the coordinates z = axes (x' - mean) of a centring (centring.cuh); below, x' is
/// then z. The logarithm of a row's factor is -|x'|^2 / 2 of exponential, |x'|^2 / 2 of trigonometric and
/// log_scale + sum_l curvature_l x'_l^2 / 2 of quadratic features, plus that of the centring.
///
/// Features are float by channel, [z / group, r, stride], zero from n on; or of 16 bits by token, [z / group, n,
/// stride], zero from r on. Those in half are multiplied by feature_scale (device/half_range.cuh). Heads of queries
/// that share a head of keys and a map, `group` of them next to each other, share the features of keys.
///
/// Queries: exponential features of a row are divided by the largest one, trigonometric and quadratic ones by the row's
/// factor. Keys: all features of one matrix are divided by exp(shift), or by the largest one, or the largest factor if
/// they are trigonometric or quadratic. Elu features are not divided. The features of a non-finite query that attends
/// to no key, and of a non-finite key that no query attends to, are zero, so that they affect no row. O(n d m) time;
/// the only scratch memory is max_log_scale.
template <Storage S, class Feature = float>
struct FeatureTask {
  Operand<S> x;             // (n,d)
  const bool* mask;         // [sequence, n]: false is padding, whose features are zero; null: no padding
  const float* w;           // [head, m, d_padded]
  std::ptrdiff_t w_stride;  // between heads; 0: one projection for all heads
  const float* w_groups;  // [head, m / 8 rounded up, d_padded, 8]: w transposed in groups of 8 rows, the last of which
                          // are copies of row m - 1
  std::ptrdiff_t w_groups_stride;
  FeatureKind kind;
  FeatureTraits map;
  int m, r, d_padded;   // d_padded: d rounded up to a multiple of 4
  float radius, scale;  // radius 0: x' = scale x
  bool queries;
  float shift;         // of keys, if their log-scales are known to be near it
  int* max_log_scale;  // [z / group]: the largest log-scale (logarithm of a feature) of keys, as ordered(); null: use
                       // `shift`
  Feature* phi;
  int stride;  // at least n, or at least r
  AttentionMask attention_mask;
  DeviceCentring centring = {};
  DeviceQuadratic quadratic = {};
  float* log_factors = nullptr;  // [z, n] of queries: the logarithm that the features of a row are divided by; null:
                                 // not requested. Without the normalisation of the map by a power of r
  float* factors = nullptr;      // [z / group, n]: the factor of x' = factor x; null: not requested
  int group = 1;                 // of queries 1
  const int2* sinks = nullptr;   // [sequence] of keys, as in SinksTask: their features are zero; null: no sinks
  ProjectionFragments fragments = {};  // of w

  // including zero padding
  __host__ __device__ int tokens() const { return by_token<Feature> ? x.tokens : stride; }

  /// Whether tensor cores compute the projections (tensor_projection.cuh). True for an empty task.
  bool uses_tensor_cores() const { return fragments.values && (x.has_aligned_rows || x.tokens == 0); }

  /// Tiles of tokens in shared memory: x', and z if there is a centring.
  __host__ __device__ int tiles() const { return centring.values ? 2 : 1; }
  /// Whether the backward pass needs a tile for the gradient of the coordinates.
  bool has_gradient_tile() const { return centring.values || map.is_quadratic; }
};

/// Maps floats to ints of the same order.
__device__ __forceinline__ int ordered(float x) {
  const int bits = __float_as_int(x);
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}
__device__ __forceinline__ float from_ordered(int x) { return __int_as_float(x < 0 ? x ^ 0x7fffffff : x); }

}  // namespace nprf::cuda
