// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/cuda/attention/exact/pairs.cuh"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/reductions.cuh"
#include "nprf/cuda/device/value_columns.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"

namespace nprf::cuda {

/// Sums over some pairs of a tile of queries, with a running maximum (Milakov and Gimelshein 2018):
///
///     N_i = sum_j w_ij v_j    D_i = sum_j w_ij    w_ij = exp(e_ij - most_i)    e_ij = q'_i.k'_j + b_ij
///                                   of features   w_ij = s_ij exp(b_ij - most_i), s_ij = A_i.B_j
///
/// where most_i is the largest e_ij, or b_ij of features. A query without such pairs has most_i = -infinity and sums of
/// 0. A block of 16 x 16 threads, each with 4 x 4 entries of N in registers; of the 16 threads that share four rows,
/// thread i < 4 also has most and D of row i. All threads of the block must call add_tile(), most() and denominator().
template <Storage S, class Scores, class Rows>
class SoftmaxTile {
 public:
  static constexpr std::size_t shared =
      sizeof(float) * (2 * TileShape::k_tile + 2 * TileShape::tile) * static_cast<std::size_t>(TileShape::stride);

  /// The tile of these queries and of the columns from p0 on, of matrix z.
  __device__ __forceinline__ SoftmaxTile(const ExactPairs& pairs, const Scores& scores, const Columns<S>& U, int z,
                                         const Rows& rows, int p0, RowKind kind)
      : m_pairs(pairs),
        m_scores(scores),
        m_U(U.of(z)),
        m_rows(rows),
        m_z(z),
        m_p0(p0),
        m_kind(kind),
        m_row(static_cast<int>(threadIdx.x) / 16 * 4),
        m_column(static_cast<int>(threadIdx.x) % 16 * 4) {}

  /// Adds the keys of the tile that begins at j0.
  __device__ __forceinline__ void add_tile(int j0) {
    float s[4][4] = {};
    const bool has_nonfinite = load_tiles(s, j0);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      *reinterpret_cast<float4*>(&weight(0, j)) = make_float4(s[0][j], s[1][j], s[2][j], s[3][j]);
#pragma unroll 1
    for (int i = 0; i < 4; ++i) add_row(i, j0);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float factor = of_row(m_factor, i);
#pragma unroll
      for (int j = 0; j < 4; ++j) m_N[i][j] *= factor;
    }
    __syncthreads();
    const int count = min(tile, m_pairs.n_k - j0);
    if (has_nonfinite)
      add_present_keys(count);
    else
      for (int k = 0; k < count; ++k)
        add_outer(m_N, weights() + TileShape::pair(k, m_row), u() + k * stride + m_column);
  }

  /// Of this thread: the query of its row i < 4, or -1 if there is none; its column j < 4; and its sums.
  __device__ __forceinline__ int query(int i) const { return m_rows(m_row + i); }
  __device__ __forceinline__ int column(int j) const { return m_p0 + m_column + j; }
  __device__ __forceinline__ int share() const { return m_column / 4; }  // which of the 16 threads of a row
  __device__ __forceinline__ double most(int i) const { return of_row(m_most, i); }
  __device__ __forceinline__ float numerator(int i, int j) const { return m_N[i][j]; }
  __device__ __forceinline__ float denominator(int i) const { return of_row(m_D, i); }

 private:
  static constexpr int tile = TileShape::tile, k_tile = TileShape::k_tile, stride = TileShape::stride;
  static constexpr int bits_of_absent = -2147483647 - 1;  // those of -0

  __device__ __forceinline__ static float* a() { return shared_memory<float>(); }       // (k_tile,queries)
  __device__ __forceinline__ static float* b() { return a() + k_tile * stride; }        // (k_tile,keys)
  __device__ __forceinline__ static float* weights() { return b() + k_tile * stride; }  // (keys,queries)
  __device__ __forceinline__ static float* u() { return weights() + tile * stride; }    // (keys,columns)

  // the weight of this thread's row i and key j of the tile; until it is computed, the pair's score
  __device__ __forceinline__ float& weight(int i, int j) const {
    return weights()[TileShape::pair(m_column + j, m_row) + i];
  }
  // x of the thread that has most and D of row i
  template <class T>
  __device__ __forceinline__ T of_row(T x, int i) const {
    return __shfl_sync(~0u, x, (static_cast<int>(threadIdx.x) & 16) + i);
  }

  // loads values and computes scores; returns whether a value is NaN or infinite
  __device__ __forceinline__ bool load_tiles(float (&s)[4][4], int j0) const {
    const int d = m_scores.q.channels;
    bool has_nonfinite = false;
    for (int k0 = 0; k0 < d; k0 += k_tile) {
      __syncthreads();  // all threads have read the previous tile
      load_queries(k0);
      load_factor(b(), m_scores.k, m_scores.factors_of_k(m_z), j0, k0);
      if (k0 == 0) has_nonfinite = load_columns_at_once<tile, tile, TileShape::threads>(u(), stride, m_U, j0, m_p0);
      __syncthreads();
      for (int k = 0; k < min(k_tile, d - k0); ++k) add_outer(s, a() + k * stride + m_row, b() + k * stride + m_column);
    }
    return __syncthreads_or(has_nonfinite);
  }

  __device__ __forceinline__ void load_queries(int k0) const {
    const auto& q = m_scores.q;
    const auto factors = m_scores.factors_of_q(m_z);
    if constexpr (Rows::consecutive) {
      load_factor(a(), q, factors, m_rows.i0, k0);
    } else {
      for (int e = static_cast<int>(threadIdx.x); e < k_tile * tile; e += TileShape::threads) {
        const int k = k0 + e % k_tile, t = e / k_tile, row = m_rows(t);
        const bool is_inside = row >= 0 && k < q.channels;
        a()[e % k_tile * stride + t] =
            is_inside ? factors(row) * to_float(q.of(m_z)[row * q.token_stride + k * q.channel_stride]) : 0.0f;
      }
    }
  }
  // values[k][t] = channel k0 + k of token t0 + t
  template <class X, class Factors>
  __device__ __forceinline__ void load_factor(float* values, const Operand<X>& from, const Factors& factors, int t0,
                                              int k0) const {
    load_tile_of_rows<tile, k_tile, TileShape::threads, stride>(values, from, from.of(m_z), t0, k0, factors);
  }

  // the weights of this thread's row i and its four keys, from their scores; -0 if the exponent is -infinity: there
  // is no such pair, or its score overflows
  __device__ __forceinline__ void add_row(int i, int j0) {
    double e[4], row_most = minus_infinity;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      e[j] = Scores::exponent(weight(i, j), m_pairs.bias(m_z, query(i), j0 + m_column + j, m_kind));
      row_most = fmax(row_most, e[j]);
    }
    const double before = most(i);
    row_most = fmax(before, over_warp<16>(row_most, Largest()));
    const float factor = row_most == minus_infinity ? 1.0f : expf(static_cast<float>(before - row_most));
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      weight(i, j) =
          e[j] == minus_infinity ? -0.0f : Scores::weight(weight(i, j), expf(static_cast<float>(e[j] - row_most)));
      sum += weight(i, j);
    }
    sum = over_warp<16>(sum, Sum());
    if (share() != i) return;
    m_most = row_most;
    m_factor = factor;
    m_D = fmaf(m_D, factor, sum);
  }

  // adds the first `count` keys of the tile, each only to the rows that have a pair with it: its values may be
  // non-finite
  __device__ __forceinline__ void add_present_keys(int count) {
#pragma unroll 1
    for (int k = 0; k < count; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float of_pair = weights()[TileShape::pair(k, m_row) + i];
        if (__float_as_int(of_pair) == bits_of_absent) continue;
#pragma unroll
        for (int j = 0; j < 4; ++j) m_N[i][j] = fmaf(of_pair, u()[k * stride + m_column + j], m_N[i][j]);
      }
  }

  const ExactPairs& m_pairs;
  const Scores& m_scores;
  ColumnsOf<S> m_U;
  Rows m_rows;
  int m_z, m_p0;
  RowKind m_kind;
  int m_row, m_column;
  float m_N[4][4] = {};
  double m_most = minus_infinity;
  float m_D = 0, m_factor = 1;  // m_factor: what the last tile multiplied the earlier sums by
};

}  // namespace nprf::cuda
