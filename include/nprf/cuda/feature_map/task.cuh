// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <type_traits>

#include "nprf/cuda/device/reductions.cuh"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/feature_map/constants.cuh"
#include "nprf/cuda/feature_map/tensor_projection.cuh"
#include "nprf/cuda/feature_map/token_tile.cuh"
#include "nprf/cuda/model.hpp"
#include "nprf/cuda/position/attention_mask.cuh"

namespace nprf::cuda {

/// Whether the features of one token lie next to each other, as tensor cores read them: those of 16 bits.
template <class Feature>
constexpr bool by_token = !std::is_same_v<Feature, float>;

/// Computes the features phi(x') of queries or keys x, where x' is the normalised token:
///
///     x' = radius x / |x|   or, if radius is 0,   x' = scale x
///
/// With a centring (constants.cuh) the features are e^(linear.x' + offset) phi(z) of the coordinates
/// z = axes (x' - mean). The logarithm of a row's factor is -|x'|^2 / 2 for exponential, |x'|^2 / 2 for trigonometric,
/// and log_scale + sum_l curvature_l x'_l^2 / 2 for quadratic features. With a centring z takes the place of x' here,
/// and linear.x' + offset is added.
///
/// Features in float are stored by channel, [z / group, r, stride], with zeros from token n on. Features of 16 bits are
/// stored by token, [z / group, n, stride], with zeros from feature r on; those in half are multiplied by feature_scale
/// (device/scales.cuh). If `group` heads of queries next to each other share a head of keys and a map, they share
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

constexpr float log2_e = 1.44269504f;

// scalars, since device code has no constants of class types
template <FeatureKind kind>
constexpr bool has_projections = traits_of(kind).has_projections;
template <FeatureKind kind>
constexpr bool has_pairs = traits_of(kind).has_pairs;
template <FeatureKind kind>
constexpr bool is_exponential = traits_of(kind).is_exponential;
template <FeatureKind kind>
constexpr bool is_quadratic = traits_of(kind).is_quadratic;
template <FeatureKind kind>
constexpr float sign_of_square = traits_of(kind).sign_of_square;
/// What the arguments `scale` and `base` of feature_of() are multiplied by: exponential features are powers of 2.
template <FeatureKind kind>
constexpr float exponent_unit = is_exponential<kind> ? log2_e : 1.0f;

/// The tokens of one matrix of features of a task: which of them have no features, and what the features of the others
/// are multiplied by.
template <FeatureKind kind, Storage S, class Feature>
class MatrixTokens {
 public:
  __device__ __forceinline__ MatrixTokens(const FeatureTask<S, Feature>& task, int matrix)
      : m_task(task), m_matrix(matrix), m_z(matrix * task.group) {}

  /// The first z of those that share this matrix of features, which are z() to z() + group - 1.
  __device__ __forceinline__ int z() const { return m_z; }
  __device__ __forceinline__ int n() const { return m_task.x.tokens; }

  /// Whether a token has no features: beyond the end, padding, or an attention sink.
  __device__ __forceinline__ bool is_left_out(int token) const {
    const int sequence = m_z / m_task.x.heads;
    return token >= n() || (m_task.sinks && token < m_task.sinks[sequence].y) ||
           (m_task.mask && !m_task.mask[static_cast<std::ptrdiff_t>(sequence) * n() + token]);
  }
  /// Whether the features of a token are zero.
  __device__ __forceinline__ bool is_zero(int token, bool is_finite) const {
    if (is_left_out(token)) return true;
    if (is_finite) return false;
    const AttentionMask& mask = m_task.attention_mask;
    for (int z = m_z; z < m_z + m_task.group; ++z)
      if (m_task.queries ? mask.attends_any(z, token) : mask.is_attended(z, token)) return false;
    return true;
  }
  /// The argument `base` of feature_of() for a token, unless the features of a row are divided by the row's largest
  /// one.
  __device__ __forceinline__ float base(float log_factor, bool is_finite) const {
    const float shift = m_task.max_log_scale ? from_ordered(m_task.max_log_scale[m_matrix]) : m_task.shift;
    if constexpr (is_exponential<kind>) return exponent_unit<kind> * (log_factor - shift);
    if (is_quadratic<kind> && !is_finite) return not_a_number;
    return m_task.queries ? 1.0f : expf(log_factor - shift);
  }
  /// Stores log_factor, the logarithm of what the features of a query are divided by, and factor, which the token was
  /// multiplied by, in FeatureTask::log_factors and factors if these are requested.
  __device__ __forceinline__ void store_factors(int token, float log_factor, float factor) const {
    if (token >= n()) return;
    if (m_task.log_factors) m_task.log_factors[static_cast<std::ptrdiff_t>(m_z) * n() + token] = log_factor;
    if (m_task.factors) m_task.factors[static_cast<std::ptrdiff_t>(m_matrix) * n() + token] = factor;
  }
  /// Sets the matrix's largest log-scale to the maximum of itself and the log-scales of the warp's tokens. Tokens
  /// without features are ignored, and log-scales that are not finite. All lanes must call it.
  __device__ __forceinline__ void store_log_scale(int token, float log_scale) const {
    const bool is_counted = !is_left_out(token) && fabsf(log_scale) < largest_float;
    const float largest = over_warp(is_counted ? log_scale : -largest_float, Largest());
    if (threadIdx.x % 32 == 0 && largest > -largest_float) atomicMax(m_task.max_log_scale + m_matrix, ordered(largest));
  }

 private:
  const FeatureTask<S, Feature>& m_task;
  int m_matrix, m_z;
};

}  // namespace nprf::cuda
