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

/// Whether the features of one token lie next to each other, as tensor cores read them: those of 16 bits.
template <class Feature>
constexpr bool by_token = !std::is_same_v<Feature, float>;

/// Computes the features phi(x') of queries or keys x, where x' is the normalised token:
///
///     x' = radius x / |x|   or, if radius is 0,   x' = scale x
///
/// With a centring (centring.cuh) the features are e^(linear.x' + offset) phi(z) of the coordinates
/// z = axes (x' - mean). The logarithm of a row's factor is -|x'|^2 / 2 for exponential, |x'|^2 / 2 for trigonometric,
/// and log_scale + sum_l curvature_l x'_l^2 / 2 for quadratic features. With a centring z takes the place of x' here,
/// and linear.x' + offset is added.
///
/// Features in float are stored by channel, [z / group, r, stride], with zeros from token n on. Features of 16 bits are
/// stored by token, [z / group, n, stride], with zeros from feature r on; those in half are multiplied by feature_scale
/// (device/half_range.cuh). If `group` heads of queries next to each other share a head of keys and a map, they share
/// the features of keys.
///
/// Queries: exponential features of a row are divided by the row's largest feature, trigonometric and quadratic ones by
/// the row's factor. Keys: all features of one matrix are divided by one number. It is exp(shift) if max_log_scale is
/// null; otherwise it is the largest feature of the matrix, or for trigonometric and quadratic features the largest
/// factor of a row. Elu features are not divided. The features of a non-finite query that attends to no key, and of a
/// non-finite key that no query attends to, are zero, so that they affect no row. O(n d m) time; the only scratch
/// memory is max_log_scale.
template <Storage S, class Feature = float>
struct FeatureTask {
  Operand<S> x;             // (n,d)
  const bool* mask;         // [sequence, n]: false is padding, whose features are zero; null: no padding
  const float* w;           // [head, m, d_padded]
  std::ptrdiff_t w_stride;  // between heads; 0: one projection for all heads
  const float* w_groups;  // [head, m / 8 rounded up, d_padded, 8]: w transposed in groups of 8 rows; from row m on they
                          // are copies of row m - 1
  std::ptrdiff_t w_groups_stride;
  FeatureKind kind;
  FeatureTraits map;
  int m, r, d_padded;   // d_padded: d rounded up to a multiple of 4
  float radius, scale;  // radius 0: x' = scale x
  bool queries;
  float shift;         // of keys: their features are divided by exp(shift), if log-scales are known to be near it
  int* max_log_scale;  // [z / group]: of keys, the logarithm of the largest feature, or for trigonometric and quadratic
                       // features of the largest factor of a row, as ordered(); null: use `shift`
  Feature* phi;
  int stride;  // by channel at least n, by token at least r
  AttentionMask attention_mask;
  DeviceCentring centring = {};
  DeviceQuadratic quadratic = {};
  float* log_factors = nullptr;  // [z, n] of queries: the logarithm of what the features of a row are divided by,
                                 // without the map's constant factor, a power of r; null: not requested
  float* factors = nullptr;      // [z / group, n]: the factor of x' = factor x; null: not requested
  int group = 1;                 // 1 for queries
  const int2* sinks = nullptr;   // [sequence], for keys: sinks as in SinksTask, whose features are zero; null: none
  ProjectionFragments fragments = {};  // the parts of w

  // the tokens that phi has, including its zero padding
  __host__ __device__ int tokens() const { return by_token<Feature> ? x.tokens : stride; }

  /// Whether tensor cores compute the projections (tensor_projection.cuh). With fragments also true for a task without
  /// tokens.
  bool uses_tensor_cores() const { return fragments.values && (x.has_aligned_rows || x.tokens == 0); }

  /// The number of tiles of tokens in shared memory: one for x', and one for z if there is a centring.
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
