// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include "nprf/core/lags.hpp"
#include "nprf/cuda/device/reductions.cuh"
#include "nprf/cuda/device/storage.cuh"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/position/lag_weights.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"

namespace nprf::cuda {

/// The scores of pairs, products of the rows of two operands, and what follows from a score s and the bias b of a pair:
///
///     SoftmaxScores    s = q'.k'      weight exp(s + b)
///     FeatureScores    s = A_i.B_j    weight s exp(b)
///
/// With e = exp(exponent(s, b)) the weight is weight(s, e). If h is e * dL/dweight, then dL/ds = h and
/// dL/db = weight(s, h).
///
/// SoftmaxScores are those of rows that are normalised when they are loaded, x' = factor x.
template <Storage S>
struct SoftmaxScores {
  static constexpr bool of_features = false;

  Operand<S> q, k;         // (n_q,d) (n_k,d)
  const float* q_factors;  // [z, n_q]
  const float* k_factors;  // [z / group, n_k]
  int group;

  __device__ __forceinline__ TokenFactors factors_of_q(int z) const {
    return {q_factors + static_cast<std::ptrdiff_t>(z) * q.tokens};
  }
  __device__ __forceinline__ TokenFactors factors_of_k(int z) const {
    return {k_factors + static_cast<std::ptrdiff_t>(z / group) * k.tokens};
  }
  /// A score that is NaN becomes +infinity, which makes the sums of the row NaN.
  __device__ __forceinline__ static double exponent(float s, double bias) {
    if (bias == minus_infinity) return bias;
    return s == s ? static_cast<double>(s) + bias : -minus_infinity;
  }
  __device__ __forceinline__ static float weight(float, float e) { return e; }
};

/// The scores of features.
template <class Feature>
struct FeatureScores {
  static constexpr bool of_features = true;

  Operand<Feature> q, k;  // A (n_q,r) and B (n_k,r)

  __device__ __forceinline__ static NoFactors factors_of_q(int) { return {}; }
  __device__ __forceinline__ static NoFactors factors_of_k(int) { return {}; }
  __device__ __forceinline__ static double exponent(float, double bias) { return bias; }
  // 0 and not -0 where e is 0 and s is negative: SoftmaxTile marks pairs that do not exist by -0
  __device__ __forceinline__ static float weight(float s, float e) { return fmaf(s, e, 0.0f); }
};

/// The biases of pairs that are computed one by one. In a row of RowKind::field they are relative to the bias at which
/// the weight of a far pair of the query is 1. In a row of RowKind::softmax they are relative to the row's largest
/// bias, and in a row of RowKind::features they are the position's.
struct ExactPairs {
  int heads, n_q, n_k;
  DeviceBias b;
  const double* weight_bias;  // [position]: the bias at which a weight is 1
  double* largest_biases;     // [z, n_q]: of the rows by exact softmax
  const bool* key_mask;       // [sequence, n_k]: false is padding; null: no padding
  const int2* sink_ranges;    // [sequence], as in SinksTask; null: no sinks

  /// Keys first..end-1.
  struct Keys {
    int first, end;
  };

  /// The sinks of matrix z, and padding among them.
  __device__ __forceinline__ Keys sinks(int z) const {
    if (!sink_ranges) return {0, 0};
    const int2 range = sink_ranges[z / heads];
    return {range.x, range.y};
  }

  /// A list of tiles of keys: first those with sinks, then others.
  struct Tiles {
    int first_sinks, sink_tiles, first_others, count;

    /// The first key of the listed tile `tile`, from 0 to count - 1.
    __device__ __forceinline__ int operator()(int tile) const {
      return (tile < sink_tiles ? first_sinks + tile : first_others + tile - sink_tiles) * TileShape::tile;
    }
  };

  /// The tiles that have sinks of matrix z or some of these keys, each once. Tiles before the first sink are left out:
  /// they have only padding.
  __device__ __forceinline__ Tiles tiles_with(int z, const Keys& keys) const {
    const Keys of_sinks = sinks(z);
    const int first_sinks = of_sinks.first / TileShape::tile, end_sinks = TileShape::tiles(of_sinks.end);
    const int first = max(keys.first / TileShape::tile, end_sinks);
    const int others = keys.first < keys.end ? max(0, TileShape::tiles(keys.end) - first) : 0;
    return {first_sinks, end_sinks - first_sinks, first, end_sinks - first_sinks + others};
  }

  /// The bias of query i, whose row is of this kind, and key j; -infinity if the query does not attend to the key, or
  /// if a row of this kind does not compute the pair one by one.
  __device__ __forceinline__ double bias(int z, int i, int j, RowKind kind) const {
    if (kind == RowKind::field && !b.is_near(i, j) && j >= sinks(z).end) return minus_infinity;
    const double b_ij = position_bias(z, i, j);
    if (b_ij == minus_infinity || kind == RowKind::features) return b_ij;
    return b_ij - (kind == RowKind::field ? unit_bias(z % heads, i) : largest_biases[row(z, i)]);
  }

  /// Sets the largest bias of query i, by the 32 threads of a warp.
  __device__ __forceinline__ void set_largest_bias(int z, int i) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    double largest = minus_infinity;
    for (int j = lane; j < n_k; j += 32) largest = fmax(largest, position_bias(z, i, j));
    largest = over_warp(largest, Largest());
    if (lane == 0) largest_biases[row(z, i)] = largest;
  }

  /// A range of keys that has all keys near the queries first_row..last_row, and maybe others.
  __device__ __forceinline__ Keys near_keys(int first_row, int last_row) const {
    if (b.near.width == 0) return {0, 0};
    const Index reach = b.near.range().last;
    if (b.places.is_grid()) {
      if (last_row < b.places.outside) return {0, 0};
      const int row = first_row < b.places.outside ? b.places.outside : first_row;
      return {b.places.first_from(in_slots(b.places.slot_of(row) - reach)),
              b.places.first_from(in_slots(b.places.slot_of(last_row) + reach + 1))};
    }
    const Index offset = -static_cast<Index>(b.first) - (b.n_q - 1);
    return {clamped(first_row + offset - reach, n_k), clamped(last_row + offset + reach + 1, n_k)};
  }
  /// A range of queries that has all queries near the keys first_key..last_key, and maybe others.
  __device__ __forceinline__ Keys near_queries(int first_key, int last_key) const {
    if (b.near.width == 0 || b.places.is_grid()) return near_keys(first_key, last_key);  // nearness is symmetric
    const Index reach = b.near.range().last, offset = -static_cast<Index>(b.first) - (b.n_q - 1);
    return {clamped(first_key - offset - reach, n_q), clamped(last_key - offset + reach + 1, n_q)};
  }

  /// For a sequence, not a grid: the tiles of near_keys() of a tile of queries, without the tiles that tiles_with()
  /// leaves out.
  __device__ __forceinline__ KeyTiles near_tiles(int z, int tile_of_queries) const {
    const int first_row = tile_of_queries * TileShape::tile;
    const Keys keys = near_keys(first_row, min(first_row + TileShape::tile, n_q) - 1);
    if (keys.first >= keys.end) return {0, 0};
    return {max(keys.first, sinks(z).first) / TileShape::tile, TileShape::tiles(keys.end)};
  }
  /// The largest number of tiles that near_tiles() can return for n_k keys.
  static int most_near_tiles(const DeviceBias& b, int n_k) {
    const Index keys = TileShape::tile + b.near.range().last - b.near.range().first;
    return static_cast<int>(std::min<Index>(keys, n_k) / TileShape::tile) + 2;
  }

 private:
  __device__ __forceinline__ std::ptrdiff_t row(int z, int i) const { return static_cast<std::ptrdiff_t>(z) * n_q + i; }
  // the position's bias; -infinity if the query does not attend to the key
  __device__ __forceinline__ double position_bias(int z, int i, int j) const {
    const bool is_present = i >= 0 && i < n_q && j >= 0 && j < n_k &&
                            !(key_mask && !key_mask[static_cast<std::ptrdiff_t>(z / heads) * n_k + j]);
    return is_present ? b.between(z % heads, i, j) : minus_infinity;
  }
  // the bias at which the weight of a far pair of query i is 1
  __device__ __forceinline__ double unit_bias(int head, int i) const {
    if (b.places.is_grid() && i < b.places.outside) return b.largest_of_border(head, i);
    return weight_bias[b.heads > 1 ? head : 0];
  }
  __device__ __forceinline__ static int clamped(Index x, int most) {
    return static_cast<int>(x < 0 ? 0 : x > most ? most : x);
  }
  __device__ __forceinline__ int in_slots(Index slot) const { return clamped(slot, b.places.end); }
};

}  // namespace nprf::cuda
