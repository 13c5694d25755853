// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/feature_map/coordinates.cuh"
#include "nprf/cuda/feature_map/projection.cuh"
#include "nprf/cuda/feature_map/task.cuh"

namespace nprf::cuda {

/// The shape of the kernels that compute features of tiles of tokens. A lane has the tokens 2 * lane and 2 * lane + 1,
/// and a warp 8 projections at a time, in two turns: a block has `chunk` projections of each of its tokens in
/// registers.
struct FeatureTile {
  static constexpr int tokens = 64, groups = 2, threads = tokens * groups, at_once = 4;
  static constexpr int stride = 2 * (tokens + 2);  // from a pair of channels to the next
  static constexpr int warps = threads / 32, turns = 2, group = 8, chunk = turns * warps * group;
  static constexpr int blocks = 5;  // that share a multiprocessor at least, which limits registers
  static constexpr int piece = 8;   // features of a token that are stored at once if they have 16 bits

  // where channel k of token t is: two channels of two tokens are next to each other, in 16 bytes
  __host__ __device__ static constexpr int at(int k, int t) { return k / 2 * stride + k % 2 + 2 * t; }

  /// The bytes of shared memory: for `tiles` tiles, for reductions, for three scalars of each token, and for features
  /// that are stored by token.
  static std::size_t shared(int d_padded, int tiles, bool by_token) {
    return sizeof(float) * static_cast<std::size_t>(at(d_padded, 0) * tiles + (warps + 3) * tokens) +
           (by_token ? sizeof(std::uint16_t) * tokens * chunk : 0);
  }
};

/// A tile of tokens and their projections. All threads of a block of FeatureTile take part.
template <FeatureKind kind, Storage S, class Feature>
class ProjectedTile {
 public:
  /// Loads the tokens and computes their coordinates.
  __device__ __forceinline__ explicit ProjectedTile(const FeatureTask<S, Feature>& task)
      : m_task(task),
        m_tokens(task, stored_matrix()),
        m_head(m_tokens.z() % task.x.heads),
        m_t0(static_cast<int>(blockIdx.x) * Shape::tokens),
        m_lane(static_cast<int>(threadIdx.x % 32)),
        m_warp(static_cast<int>(threadIdx.x / 32)),
        m_scratch(x() + task.tiles() * Shape::at(task.d_padded, 0)) {
    const float square = task.x.has_aligned_rows ? load_rows() : load_any_rows();
    m_own = measure<Shape>(task, x(), scratch(), square);
    // if tokens are not scaled, their projections are multiplied by the factor instead
    const bool scales_tokens = !has_projections<kind> || m_own.is_extreme || task.centring.values;
    if (scales_tokens) scale_token<Shape>(x(), task.x.channels, m_own.factor);
    const TokenCoordinates at = coordinates_of<Shape>(task, m_head, x(), scratch(), m_own);
    m_coordinates = at.z;
    m_log_factor = at.log_factor;
    if (has_own_token()) scales()[threadIdx.x] = exponent_unit<kind> * (scales_tokens ? 1.0f : m_own.factor);
  }

  /// Raises the largest log-scale of the matrix to the largest one of this tile's keys, if that is larger.
  __device__ __forceinline__ void store_log_scale() {
    float log_scale = m_log_factor;
    if constexpr (is_exponential<kind>) {
      float z[Shape::turns][2][Shape::group];
      log_scale += largest_projection(z) / exponent_unit<kind>;
    }
    m_tokens.store_log_scale(own_token(), log_scale);
  }

 protected:
  using Shape = FeatureTile;

  // Whether this thread has a token of its own, whose index in the tile is threadIdx.x.
  __device__ __forceinline__ bool has_own_token() const { return threadIdx.x < Shape::tokens; }
  __device__ __forceinline__ int own_token() const { return m_t0 + static_cast<int>(threadIdx.x % Shape::tokens); }
  __device__ __forceinline__ int n() const { return m_task.x.tokens; }
  // the matrix of phi that the block computes
  __device__ __forceinline__ static int stored_matrix() { return static_cast<int>(blockIdx.y); }
  // the number of projections; if there are no projections, the number of features
  __device__ __forceinline__ int count() const { return has_projections<kind> ? m_task.m : m_task.r; }
  __device__ __forceinline__ int first_of(int f0, int turn) const {
    return f0 + (turn * Shape::warps + m_warp) * Shape::group;
  }

  __device__ __forceinline__ float* x() const { return shared_memory<float>(); }  // (d_padded,tokens) for each tile
  __device__ __forceinline__ float* scratch() const { return m_scratch; }         // (warps,tokens)
  __device__ __forceinline__ float* scales() const { return scratch() + Shape::warps * Shape::tokens; }  // (tokens)
  // z[turn][token] = the projections from first_of(f0, turn) on; beyond the last one they are copies of it
  __device__ __forceinline__ void project(int f0, float (&z)[Shape::turns][2][Shape::group]) const {
#pragma unroll
    for (int turn = 0; turn < Shape::turns; ++turn) {
      const int first = first_of(f0, turn);
      if (first >= count()) continue;
      if constexpr (has_projections<kind>)
        multiply(first, z[turn]);
      else
        evaluate(first, z[turn]);
    }
  }
  __device__ __forceinline__ void multiply(int first, float (&z)[2][Shape::group]) const {
    const int d_padded = m_task.d_padded;
    const float* w = m_task.w_groups + m_head * m_task.w_groups_stride + static_cast<std::ptrdiff_t>(first) * d_padded;
    const float* x = m_coordinates + Shape::at(0, 2 * m_lane);
#pragma unroll
    for (int i = 0; i < Shape::group; ++i) z[0][i] = z[1][i] = 0;
    int k = 0;
    for (; k + 16 <= d_padded; k += 16, w += 16 * Shape::group, x += Shape::at(16, 0)) add_products<16>(w, x, z);
    for (; k < d_padded; k += 4, w += 4 * Shape::group, x += Shape::at(4, 0)) add_products<4>(w, x, z);
  }
  template <int channels>
  __device__ __forceinline__ static void add_products(const float* w, const float* x, float (&z)[2][Shape::group]) {
#pragma unroll
    for (int k = 0; k < channels; k += 2) {
      const float4 all = *reinterpret_cast<const float4*>(x + Shape::at(k, 0));
      add_products(w + k * Shape::group, make_float2(all.x, all.z), z);
      add_products(w + (k + 1) * Shape::group, make_float2(all.y, all.w), z);
    }
  }
  __device__ __forceinline__ static void add_products(const float* w, float2 x, float (&z)[2][Shape::group]) {
    const auto [w_0, w_1, w_2, w_3] = *reinterpret_cast<const float4*>(w);
    const auto [w_4, w_5, w_6, w_7] = *reinterpret_cast<const float4*>(w + 4);
    const float rows[Shape::group] = {w_0, w_1, w_2, w_3, w_4, w_5, w_6, w_7};
#pragma unroll
    for (int i = 0; i < Shape::group; ++i) {
      z[0][i] = fmaf(x.x, rows[i], z[0][i]);
      z[1][i] = fmaf(x.y, rows[i], z[1][i]);
    }
  }
  // sets z[token] to the quadratic features from `first` on, or for elu to the coordinates
  __device__ __forceinline__ void evaluate(int first, float (&z)[2][Shape::group]) const {
#pragma unroll
    for (int i = 0; i < Shape::group; ++i) {
      const int f = min(first + i, count() - 1);
#pragma unroll
      for (int t = 0; t < 2; ++t)
        if constexpr (is_quadratic<kind>)
          z[t][i] =
              m_task.quadratic.of(m_head).template feature<Shape>(f, m_coordinates + Shape::at(0, 2 * m_lane + t));
        else
          z[t][i] = m_coordinates[Shape::at(f, 2 * m_lane + t)];
    }
  }

  // The largest projection of this thread's token, times its scale; for features in pairs the largest absolute value.
  // Afterwards z has the projections of the last chunk.
  __device__ __forceinline__ float largest_projection(float (&z)[Shape::turns][2][Shape::group]) const {
    float largest[2] = {-largest_float, -largest_float};
    for (int f0 = 0; f0 < count(); f0 += Shape::chunk) {
      project(f0, z);
#pragma unroll
      for (int turn = 0; turn < Shape::turns; ++turn) {
        if (first_of(f0, turn) >= count()) continue;
#pragma unroll
        for (int t = 0; t < 2; ++t)
#pragma unroll
          for (int i = 0; i < Shape::group; ++i)
            largest[t] = fmaxf(largest[t], has_pairs<kind> ? fabsf(z[turn][t][i]) : z[turn][t][i]);
      }
    }
    *reinterpret_cast<float2*>(scratch() + m_warp * Shape::tokens + 2 * m_lane) = make_float2(largest[0], largest[1]);
    __syncthreads();
    const int t = static_cast<int>(threadIdx.x % Shape::tokens);
    float all = scratch()[t];
    for (int warp = 1; warp < Shape::warps; ++warp) all = fmaxf(all, scratch()[warp * Shape::tokens + t]);
    return all * scales()[t];
  }

 private:
  // Loads the tokens, and returns |x|^2 of this thread's token. A warp loads 16 channels of some tokens at a time:
  // without bank conflicts, and whole sectors of global memory. Beyond the end it loads copies of the last token.
  __device__ __forceinline__ float load_rows() const {
    constexpr int width = 16 / sizeof(S), lanes = 16 / width, rows = 32 / lanes;
    const S* from = m_task.x.of(m_tokens.z()) + m_lane % lanes * width;
#pragma unroll
    for (int t0 = 0; t0 < Shape::tokens; t0 += Shape::warps * rows) {
      const int t = t0 + m_warp * rows + m_lane / lanes;
      const S* row = from + min(m_t0 + t, n() - 1) * m_task.x.token_stride;
      float* to = x() + Shape::at(m_lane % lanes * width, t);
      float square = 0;
      for (int k = m_lane % lanes * width; k < m_task.d_padded; k += 16, row += 16, to += Shape::at(16, 0)) {
        const uint4 all = *reinterpret_cast<const uint4*>(row);
        S values[width];
        std::memcpy(values, &all, sizeof(all));
#pragma unroll
        for (int e = 0; e < width; e += 2) {
          const float2 two = make_float2(to_float(values[e]), to_float(values[e + 1]));
          square = fmaf(two.y, two.y, fmaf(two.x, two.x, square));
          *reinterpret_cast<float2*>(to + Shape::at(e, 0)) = two;
        }
      }
      for (int step = 1; step < lanes; step *= 2) square += __shfl_xor_sync(~0u, square, step);
      if (m_lane % lanes == 0) scratch()[t] = square;
    }
    __syncthreads();
    return scratch()[static_cast<int>(threadIdx.x % Shape::tokens)];
  }
  __device__ __forceinline__ float load_any_rows() const {
    const S* from = m_task.x.of(m_tokens.z());
    const int d_padded = m_task.d_padded;
    for (int e = static_cast<int>(threadIdx.x); e < Shape::tokens * d_padded; e += Shape::threads) {
      const int t = e / d_padded, k = e % d_padded;
      const bool is_inside = m_t0 + t < n() && k < m_task.x.channels;
      x()[Shape::at(k, t)] = is_inside ? to_float(from[(m_t0 + t) * m_task.x.token_stride + k]) : 0.0f;
    }
    __syncthreads();
    return square_of<Shape>(x(), m_task.x.channels, scratch());
  }

 protected:
  const FeatureTask<S, Feature>& m_task;
  MatrixTokens<kind, S, Feature> m_tokens;
  int m_head, m_t0, m_lane, m_warp;
  float* m_scratch;
  NormalisedToken m_own;  // of this thread's token
  float m_log_factor;     // of this thread's token
  const float* m_coordinates;
};

}  // namespace nprf::cuda
