// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstring>

#include "nprf/cuda/device/mma.cuh"
#include "nprf/cuda/device/scales.cuh"
#include "nprf/cuda/feature_map/coordinates.cuh"
#include "nprf/cuda/feature_map/projection.cuh"
#include "nprf/cuda/feature_map/task.cuh"
#include "nprf/cuda/feature_map/tensor_projection.cuh"

namespace nprf::cuda {

/// Whether features of 16 bits can be computed from projections by tensor cores, for tokens of type S.
template <FeatureKind kind, class S, class Feature>
constexpr bool has_tensor_features = MmaFactor<S> && MmaFactor<Feature> && has_projections<kind>;

/// The features of 16 tokens, which a warp computes alone and without shared memory. A lane has features of the tokens
/// g + 8 h, with g = lane / 4 and h = 0 or 1. It computes the norm and the factors of one of them, its own token g + 8
/// (lane % 2).
template <FeatureKind kind, MmaFactor S, MmaFactor Feature>
class TensorFeatures {
 public:
  using Projection = TensorProjection<S>;

  /// Computes the first chunk of the projections of the tokens from t0 on, and their scalars.
  __device__ __forceinline__ TensorFeatures(const FeatureTask<S, Feature>& task, int matrix, int t0)
      : m_task(task), m_tokens(task, matrix), m_t0(t0), m_matrix(matrix), m_projection(projection()) {
    float square = 0;
    for (bool is_last = false; !is_last;) {
      m_projection.project(0, m_chunk);
      square = m_chunk.own_square();
      const bool is_extreme = task.radius > 0 && has_extreme_square(square);
      is_last = m_projection.is_scaled() || !__ballot_sync(~0u, is_extreme);
      if (!is_last) m_projection.scale_extreme(is_extreme);
    }
    m_own = token_of(task, square);
    m_log_factor = sign_of_square<kind> * m_own.half_square;
    m_scale = exponent_unit<kind> * m_own.factor * task.fragments.unit;
  }

  /// Stores all features. If features are divided by the largest one and there are several chunks, all projections are
  /// computed a second time, after the search for the largest one.
  __device__ __forceinline__ void store_all() {
    const bool divides_by_largest = is_exponential<kind> && m_task.queries;
    float base = 0;
    if (divides_by_largest) {
      const float largest = largest_projection();  // all lanes take part
      base = m_own.finite ? -largest : not_a_number;
      store_factors(m_log_factor + largest / exponent_unit<kind>);
    } else {
      base = m_tokens.base(m_log_factor, m_own.finite);
      store_factors(m_log_factor);
    }
    float scales[2], bases[2];
    of_both_tokens(m_scale, scales);
    of_both_tokens(base, bases);
    const unsigned zeros = __ballot_sync(~0u, m_tokens.is_zero(own_token(), m_own.finite));
    for (int f0 = 0; f0 < m_task.m; f0 += Projection::chunk) {
      if (f0 > 0 || (divides_by_largest && m_task.m > Projection::chunk)) m_projection.project(f0, m_chunk);
      store_chunk<false>(f0, scales, bases, zeros);
      if constexpr (has_pairs<kind>) store_chunk<true>(f0, scales, bases, zeros);
    }
    store_padding();
  }

  /// Raises the largest log-scale of the matrix to the largest one of these keys, if that is larger.
  __device__ __forceinline__ void store_log_scale() {
    m_tokens.store_log_scale(own_token(),
                             m_log_factor + (is_exponential<kind> ? largest_projection() / exponent_unit<kind> : 0.0f));
  }

 private:
  static constexpr int group = Projection::group;

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x % 32); }
  __device__ __forceinline__ int token(int h) const { return m_t0 + lane() / 4 + 8 * h; }
  __device__ __forceinline__ int own_token() const { return token(lane() % 2); }

  __device__ __forceinline__ Projection projection() const {
    const int z = m_tokens.z(), last = m_tokens.n() - 1;
    const S* from = m_task.x.of(z);
    const S* const rows[2] = {from + min(token(0), last) * m_task.x.token_stride,
                              from + min(token(1), last) * m_task.x.token_stride};
    const ProjectionFragments& fragments = m_task.fragments;
    return {rows, fragments.values + z % m_task.x.heads * fragments.stride, m_task.x.channels};
  }

  __device__ __forceinline__ void store_factors(float log_factor) const {
    const float factor = fminf(m_own.factor * m_projection.own_scale(), largest_float);
    if (lane() % 4 < 2) m_tokens.store_factors(own_token(), log_factor, factor);
  }

  // sets both[h] to the scalar of token g + 8 h, where g = lane / 4; a lane passes that of token g + 8 (lane % 2)
  __device__ __forceinline__ static void of_both_tokens(float own, float (&both)[2]) {
    const float other = __shfl_xor_sync(~0u, own, 1);
    both[0] = lane() % 2 ? other : own;
    both[1] = lane() % 2 ? own : other;
  }

  // The largest projection of this lane's own token, times its scale; for features in pairs the largest absolute value.
  // Afterwards m_chunk is the last chunk.
  __device__ __forceinline__ float largest_projection() {
    float largest[2] = {-largest_float, -largest_float};
    for (int f0 = 0; f0 < m_task.m; f0 += Projection::chunk) {
      if (f0 > 0) m_projection.project(f0, m_chunk);
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < group; ++i) {
          const float z = m_chunk.z(h, i);
          largest[h] = fmaxf(largest[h], has_pairs<kind> ? fabsf(z) : z);
        }
    }
    const bool odd = lane() % 2 != 0;
    const float of_neighbour = __shfl_xor_sync(~0u, odd ? largest[0] : largest[1], 1);
    const float of_half = fmaxf(odd ? largest[1] : largest[0], of_neighbour);
    return fmaxf(of_half, __shfl_xor_sync(~0u, of_half, 2)) * m_scale;
  }

  // the features of token(h), in pieces of `group` features
  __device__ __forceinline__ uint4* pieces(int h) const {
    return reinterpret_cast<uint4*>(m_task.phi +
                                    (static_cast<std::ptrdiff_t>(m_matrix) * m_tokens.n() + token(h)) * m_task.stride);
  }
  // stores features f of the projections f of a chunk, or if `second` is true their features m + f
  template <bool second>
  __device__ __forceinline__ void store_chunk(int f0, const float (&scales)[2], const float (&bases)[2],
                                              unsigned zeros) const {
    const int first = f0 + Projection::first(), count = m_task.m - first;
    if (count <= 0) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float phi[group];
#pragma unroll
      for (int i = 0; i < group; ++i)
        phi[i] = feature_scale<Feature> * feature_of<kind, second>(m_chunk.z(h, i), scales[h], bases[h]);
      if (zeros >> (lane() / 4 * 4 + h) & 1) clear_from(0, phi);
      if (count < group) clear_from(count, phi);
      const uint4 all = {pack<Feature>(phi[0], phi[1]), pack<Feature>(phi[2], phi[3]), pack<Feature>(phi[4], phi[5]),
                         pack<Feature>(phi[6], phi[7])};
      if (token(h) < m_tokens.n()) pieces(h)[((second ? m_task.m : 0) + first) / group] = all;
    }
  }
  __device__ __forceinline__ static void clear_from(int first, float (&phi)[group]) {
#pragma unroll
    for (int i = 0; i < group; ++i)
      if (i >= first) phi[i] = 0;
  }
  // stores the zeros after the last feature's group
  __device__ __forceinline__ void store_padding() const {
    for (int c = (m_task.r + group - 1) / group + lane() % 4; c < m_task.stride / group; c += 4)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (token(h) < m_tokens.n()) pieces(h)[c] = {};
  }

  const FeatureTask<S, Feature>& m_task;
  MatrixTokens<kind, S, Feature> m_tokens;
  int m_t0, m_matrix;
  Projection m_projection;
  typename Projection::Chunk m_chunk;
  // of this lane's own token
  NormalisedToken m_own;
  float m_log_factor, m_scale;
};

/// The shape of the kernels below: each warp computes the features of 16 tokens.
struct TensorFeatureShape {
  static constexpr int warps = 4, threads = 32 * warps, tokens = 16 * warps;
  static constexpr int blocks = 5;  // that share a multiprocessor at least, which limits registers

  __device__ __forceinline__ static int first_token() {
    return static_cast<int>(blockIdx.x) * tokens + static_cast<int>(threadIdx.x / 32) * 16;
  }
};

/// Does what features_kernel does, with projections by tensor cores. The grid is the same.
template <FeatureKind kind, MmaFactor S, MmaFactor Feature>
__global__ void __launch_bounds__(TensorFeatureShape::threads, TensorFeatureShape::blocks)
    tensor_features_kernel(FeatureTask<S, Feature> first, FeatureTask<S, Feature> second) {
  start_kernel();
  if constexpr (TensorProjection<S>::exists) {
    const int t0 = TensorFeatureShape::first_token(), z = static_cast<int>(gridDim.y),
              matrix = static_cast<int>(blockIdx.y);
    // parameters that are chosen by an address would be copied to local memory
    if (blockIdx.z == 0) {
      if (t0 < first.x.tokens && matrix * first.group < z)
        TensorFeatures<kind, S, Feature>(first, matrix, t0).store_all();
    } else {
      if (t0 < second.x.tokens && matrix * second.group < z)
        TensorFeatures<kind, S, Feature>(second, matrix, t0).store_all();
    }
  }
}

/// Does what log_scales_kernel does, with projections by tensor cores. The grid is the same.
template <FeatureKind kind, MmaFactor S, MmaFactor Feature>
__global__ void __launch_bounds__(TensorFeatureShape::threads, TensorFeatureShape::blocks)
    tensor_log_scales_kernel(FeatureTask<S, Feature> task) {
  start_kernel();
  if constexpr (TensorProjection<S>::exists) {
    const int t0 = TensorFeatureShape::first_token();
    if (t0 < task.x.tokens) TensorFeatures<kind, S, Feature>(task, static_cast<int>(blockIdx.y), t0).store_log_scale();
  }
}

}  // namespace nprf::cuda
