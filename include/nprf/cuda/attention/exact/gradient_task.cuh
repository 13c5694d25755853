// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/attention/exact/pairs.cuh"
#include "nprf/cuda/attention/exact/scores.cuh"
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

}  // namespace nprf::cuda
