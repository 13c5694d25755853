// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/attention/exact/pairs.cuh"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/position/lag_weights.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"

namespace nprf::cuda {

/// The gradients of pairs that are computed one by one: near pairs, those of attention sinks, and all pairs of rows
/// that are recomputed. With the denominator D_i of all pairs of row i, in units of exp(scale_i), and
/// b_ij = ExactPairs::bias(),
///
///     p_ij = exp(q'_i.k'_j + b_ij - scale_i) / D_i      g_ij = p_ij (dy_i.v_j - dy_i.y_i)
///     dq'_i = sum_j g_ij k'_j    dk'_j = sum_i g_ij q'_i    dv_j = sum_i p_ij dy_i    db[lag] = sum_{j-i=lag} g_ij
///
/// for normalised queries q' and keys k'. In rows that are recomputed from features, with s_ij = A_i.B_j,
/// p_ij = s_ij exp(b_ij - scale_i) / D_i, dA_i = sum_j (g_ij / s_ij) B_j, and dB_j = sum_i (g_ij / s_ij) A_i. All sums
/// have a fixed order. O(n w (d + p)) for w near keys and sinks of a query, and O(n_k (r + d + p)) for each row that is
/// recomputed. For near lags of a sequence db is summed from diagonals of tiles, which take about n (w / 32 + 6)
/// scalars of memory. Any other lag takes O(n_q d) time in a matrix that has recomputed rows or sinks. So does a near
/// lag on a grid or of a field that is wider than 2,000 tokens.
struct ExactGradients {
  double* log_D;     // [z, n_q]: scale_i + log D_i; +infinity for rows without gradients
  float* dy_y;       // [z, n_q]: dy_i.y_i
  float *dq, *dk;    // [z, n_q, d] [z, n_k, d]: set in matrices with has_any(); null: not requested
  float *dA, *dB;    // [z, n_q, r] [z, n_k, r]: added to; null: not requested
  float* dv;         // [z, n_k, p]: set with a field, else added to; null: not requested
  float* diagonals;  // [z, tile of queries, near_tiles, 2 tile - 1]: sums of g over tiles of queries and keys
  int near_tiles;    // tiles of keys for which `diagonals` has memory; 0: db does not use it

  /// Takes log_D, dy_y and `diagonals`. The gradients of queries, keys, features and values stay null.
  static ExactGradients take(Scratch& scratch, const DeviceBias& b, int z, int n_q, int n_k) {
    ExactGradients all{};
    const bool has_diagonals = b.count > 0 && b.near.width > 0 && !b.places.is_grid();
    all.near_tiles = has_diagonals ? ExactPairs::most_near_tiles(b, n_k) : 0;
    if (all.near_tiles > most_near_tiles) all.near_tiles = 0;
    all.diagonals = scratch.take<float>(z, TileShape::tiles(n_q), all.near_tiles, 2 * TileShape::tile - 1);
    all.log_D = scratch.take<double>(z, n_q);
    all.dy_y = scratch.take<float>(z, n_q);
    return all;
  }

 private:
  static constexpr int most_near_tiles = 65;
};

template <Storage S>
struct ExactGradientTask {
  ExactPairs pairs;
  SoftmaxScores<S> softmax;
  FeatureScores<float> features;
  Operand<S> dy;     // (n_q,p)
  Operand<float> V;  // (n_k,p), by channel; zero for keys that affect no gradient
  CheckedSums sums;  // of all pairs
  bool has_field;    // whether rows have pairs of a field; if not, only recomputed rows have exact pairs
  bool positive;     // whether no feature is negative
  int z, positions;
  const double* log_scales;    // [z, n_q]: scale_i
  const RowKind* kinds;        // [z, n_q]
  const int* recomputed_rows;  // [z]: how many rows are recomputed
  ExactGradients to;
  float* db;  // [position, entries], added to: lags, then the border of a grid; null: not requested

  /// Whether a matrix has pairs that are computed one by one.
  __device__ __forceinline__ bool has_any(int matrix) const { return has_field || recomputed_rows[matrix] > 0; }
  __device__ __forceinline__ float dy_at(int matrix, int i, int c) const {
    return to_float(dy.of(matrix)[i * dy.token_stride + c * dy.channel_stride]);
  }
  __device__ __forceinline__ std::ptrdiff_t row(int matrix, int i) const {
    return static_cast<std::ptrdiff_t>(matrix) * pairs.n_q + i;
  }

  /// Sums of g over the diagonals of a tile of queries and its near tile of keys `near_tile`.
  __device__ __forceinline__ float* diagonals(int matrix, int I, int near_tile) const {
    const std::ptrdiff_t tile_of_queries = static_cast<std::ptrdiff_t>(matrix) * TileShape::tiles(pairs.n_q) + I;
    return to.diagonals + (tile_of_queries * to.near_tiles + near_tile) * (2 * TileShape::tile - 1);
  }

  /// p_ij of a pair and the gradient of its score s, which is g_ij, or g_ij / s for features. dy_v = dy_i.v_j. Both are
  /// 0 if the row is not one of Scores.
  template <class Scores>
  __device__ __forceinline__ float2 gradients(const Scores&, int matrix, int i, int j, float s, float dy_v) const {
    if (i >= pairs.n_q) return make_float2(0, 0);
    const RowKind kind = kinds[row(matrix, i)];
    if ((kind == RowKind::features) != Scores::of_features) return make_float2(0, 0);
    const double bias = pairs.bias(matrix, i, j, kind);
    const double log_weight = Scores::exponent(s, bias) - to.log_D[row(matrix, i)];
    if (bias == minus_infinity || log_weight == minus_infinity) return make_float2(0, 0);
    const float e = expf(static_cast<float>(log_weight));
    return make_float2(Scores::weight(s, e), e * (dy_v - to.dy_y[row(matrix, i)]));
  }
};

/// Which tokens of a tile of queries and a tile of keys get sums: the queries, over the keys, or the keys, over the
/// queries.
enum class PairSide { queries, keys };

/// A tile of queries and a tile of keys. It computes p of the pairs and the gradients g of their scores
/// (ExactGradients), and adds the products of p and g with rows of other matrices to gradients. A block of 16 x 16
/// threads; all of them must call all functions.
template <Storage S, class Scores, PairSide side>
class ExactPairTile {
 public:
  static constexpr std::size_t shared =
      sizeof(float) * (2 * TileShape::k_tile + 2 * TileShape::tile) * static_cast<std::size_t>(TileShape::stride);

  __device__ __forceinline__ ExactPairTile(const ExactGradientTask<S>& task, const Scores& scores, int z, int i0,
                                           int j0)
      : m_task(task), m_scores(scores), m_z(z), m_i0(i0), m_j0(j0) {
    float of_p[4][4] = {}, of_g[4][4] = {};
    add_products(of_p, scores.q, scores.factors_of_q(z), i0, scores.k, scores.factors_of_k(z), j0);
    add_products(of_g, task.dy, NoFactors{}, i0, task.V, NoFactors{}, j0);
    // the score and dy.v, and then p and g, of this thread's pairs, in an array that is indexed at run time, so that
    // one copy of the code computes all pairs. It may replace the previous p and g: add_products has synchronised the
    // threads
    for_each_entry([&](int i, int j) { own(4 * i + j) = of_p[i][j], own(16 + 4 * i + j) = of_g[i][j]; });
#pragma unroll 1
    for (int pair = 0; pair < 16; ++pair) {
      const float2 of_pair =
          task.gradients(scores, z, i0 + row() + pair / 4, j0 + column() + pair % 4, own(pair), own(16 + pair));
      own(pair) = of_pair.x;
      own(16 + pair) = of_pair.y;
    }
    for_each_entry([&](int i, int j) { of_p[i][j] = own(4 * i + j), of_g[i][j] = own(16 + 4 * i + j); });
    __syncthreads();
    if constexpr (side == PairSide::keys) store_pairs(p(), of_p);
    store_pairs(g(), of_g);
  }

  /// dq_i += sum_j g_ij k_j, for the rows q and k of Scores and the gradients g_ij of the scores
  __device__ __forceinline__ void add_to_queries(float* dq) const
    requires(side == PairSide::queries)
  {
    add_rows(dq, m_i0, m_task.pairs.n_q, g(), m_scores.k, m_scores.factors_of_k(m_z), m_j0);
  }
  /// dk_j += sum_i g_ij q_i unless dk is null, and dv_j += sum_i p_ij dy_i unless dv is null
  __device__ __forceinline__ void add_to_keys(float* dk, float* dv) const
    requires(side == PairSide::keys)
  {
    const int n_k = m_task.pairs.n_k;
    if (dk) add_rows(dk, m_j0, n_k, g(), m_scores.q, m_scores.factors_of_q(m_z), m_i0);
    if (dv) add_rows(dv, m_j0, n_k, p(), m_task.dy, NoFactors{}, m_i0);
  }
  /// sums[tile - 1 + s - t] = the sum of g over the pairs of queries t and keys s of the tile. To be called after
  /// add_to_queries(), which synchronises the threads.
  __device__ __forceinline__ void store_diagonals(float* sums) const
    requires(side == PairSide::queries)
  {
    const int at = static_cast<int>(threadIdx.x);
    if (at >= 2 * tile - 1) return;
    const int lag = at - (tile - 1);
    float sum = 0;
    for (int s = max(0, lag); s < min(tile, tile + lag); ++s) sum += g()[TileShape::pair(s, s - lag)];
    sums[at] = sum;
  }

 private:
  static constexpr int tile = TileShape::tile, k_tile = TileShape::k_tile, stride = TileShape::stride;

  __device__ __forceinline__ static float* a() { return shared_memory<float>(); }  // (k_tile,tile)
  __device__ __forceinline__ static float* b() { return a() + k_tile * stride; }   // (k_tile,tile)
  __device__ __forceinline__ static float* x() { return a(); }                     // (tile,tile), in place of a and b
  // (tile,tile), one number for each pair: p its weight, g its gradient. If `side` is queries, query t and key s have
  // the number at TileShape::pair(s, t); if it is keys, key t and query s
  __device__ __forceinline__ static float* p() { return b() + k_tile * stride; }
  __device__ __forceinline__ static float* g() { return p() + tile * stride; }
  // entry k of this thread's array, in place of p and g
  __device__ __forceinline__ static float& own(int k) {
    return p()[k * TileShape::threads + static_cast<int>(threadIdx.x)];
  }
  static_assert(2 * k_tile >= tile && 32 * TileShape::threads <= 2 * tile * stride);
  // this thread's pairs are those of queries row() + i and keys column() + j
  __device__ __forceinline__ static int row() { return static_cast<int>(threadIdx.x) / 16 * 4; }
  __device__ __forceinline__ static int column() { return static_cast<int>(threadIdx.x) % 16 * 4; }

  // s += x y^T of a tile of x and a tile of y
  template <class X, class Y, class FactorsOfX, class FactorsOfY>
  __device__ __forceinline__ void add_products(float (&s)[4][4], const Operand<X>& x, const FactorsOfX& of_x, int i0,
                                               const Operand<Y>& y, const FactorsOfY& of_y, int j0) const {
    for (int k0 = 0; k0 < x.channels; k0 += k_tile) {
      __syncthreads();
      load_tile_of_rows<tile, k_tile, TileShape::threads, stride>(a(), x, x.of(m_z), i0, k0, of_x);
      load_tile_of_rows<tile, k_tile, TileShape::threads, stride>(b(), y, y.of(m_z), j0, k0, of_y);
      __syncthreads();
      for (int k = 0; k < min(k_tile, x.channels - k0); ++k)
        add_outer(s, a() + k * stride + row(), b() + k * stride + column());
    }
  }
  __device__ __forceinline__ static void store_pairs(float* to, const float (&of)[4][4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if constexpr (side == PairSide::keys)
        *reinterpret_cast<float4*>(to + TileShape::pair(row() + k, column())) =
            make_float4(of[k][0], of[k][1], of[k][2], of[k][3]);
      else
        *reinterpret_cast<float4*>(to + TileShape::pair(column() + k, row())) =
            make_float4(of[0][k], of[1][k], of[2][k], of[3][k]);
  }

  // row t0 + t of matrix z of `to` (n,channels) += sum_s weights(s, t) x_{s0 + s}; pairs of weight 0 are left out, even
  // if x is not finite
  template <class X, class Factors>
  __device__ __forceinline__ void add_rows(float* to, int t0, int n, const float* weights, const Operand<X>& from,
                                           const Factors& factors, int s0) const {
    const int channels = from.channels, count = min(tile, from.tokens - s0);
    for (int c0 = 0; c0 < channels; c0 += tile) {
      __syncthreads();
      const bool has_nonfinite = __syncthreads_or(
          load_tile<tile, tile, TileShape::threads, 4>({x(), stride, 1}, from, from.of(m_z), s0, c0, factors));
      float sums[4][4] = {};
      const auto of = [&](int s) { return weights + TileShape::pair(s, row()); };
      const auto x_of = [&](int s) { return x() + s * stride + column(); };
      if (has_nonfinite)
        for (int s = 0; s < count; ++s)
          for_each_entry(
              [&](int i, int j) { sums[i][j] = of(s)[i] == 0 ? sums[i][j] : fmaf(of(s)[i], x_of(s)[j], sums[i][j]); });
      else
        for (int s = 0; s < count; ++s) add_outer(sums, of(s), x_of(s));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int t = t0 + row() + i, c = c0 + column();
        float* at = to + (static_cast<std::ptrdiff_t>(m_z) * n + t) * channels + c;
        if (t >= n || c >= channels) continue;
        if (channels % 4 == 0) {
          const float4 before = *reinterpret_cast<const float4*>(at);
          *reinterpret_cast<float4*>(at) =
              make_float4(before.x + sums[i][0], before.y + sums[i][1], before.z + sums[i][2], before.w + sums[i][3]);
        } else {
#pragma unroll
          for (int j = 0; j < 4; ++j)
            if (c + j < channels) at[j] += sums[i][j];
        }
      }
    }
  }

  const ExactGradientTask<S>& m_task;
  const Scores& m_scores;
  int m_z, m_i0, m_j0;
};

}  // namespace nprf::cuda
