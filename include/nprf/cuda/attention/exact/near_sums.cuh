// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/attention/exact/softmax_tile.cuh"
#include "nprf/cuda/feature_map/forward.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"

namespace nprf::cuda {

/// Features of queries that may be changed, in the layout of FeatureTask::phi.
template <class Feature>
struct FeatureRows {
  Feature* phi;  // [z, r, stride], or by token [z, n, stride]
  int r, stride;

  __device__ __forceinline__ Feature& at(int z, int n, int i, int f) const {
    if constexpr (by_token<Feature>)
      return phi[(static_cast<std::ptrdiff_t>(z) * n + i) * stride + f];
    else
      return phi[(static_cast<std::ptrdiff_t>(z) * r + f) * stride + i];
  }
  /// Multiplies row i by a factor, as thread `share` of 16. A row whose factor is 0 becomes 0.
  __device__ __forceinline__ void scale(int z, int n, int i, float factor, int share) const {
    for (int f = share; f < r; f += 16) {
      Feature& x = at(z, n, i, f);
      store(&x, factor == 0 ? 0.0f : factor * to_float(x));
    }
  }
};

/// For each query the logarithm of a factor. Multiplied by the factor, the far weights A_i.B_j c_ij of the query are in
/// the units of the exact weights exp(q_i.k_j + b_ij - weight_bias).
struct FarLogScales {
  const float* log_factors;  // [z, n_q]: FeatureTask::log_factors
  const int* max_log_scale;  // [z / group]: FeatureTask::max_log_scale of the keys; null: `shift`
  float shift;
  double normalisation;  // DeviceModel::log_normalisation()
  int group;             // FeatureTask::group of the keys

  __device__ __forceinline__ double of(int z, int n_q, int i) const {
    const float of_keys = max_log_scale ? from_ordered(max_log_scale[z / group]) : shift;
    return static_cast<double>(log_factors[static_cast<std::ptrdiff_t>(z) * n_q + i]) + static_cast<double>(of_keys) +
           normalisation;
  }
};

/// Adds near pairs and attention sinks to the sums of far pairs, in which they count nothing: near lags have the weight
/// 0 there, and sinks have the features 0. With the far sums N_i, D_i of row i in units of exp(far_i), where far_i is
/// far.of(), and the exponents e_ij = q_i.k_j + ExactPairs::bias() of the pairs that are added,
///
///     N_i <- N_i exp(far_i - scale_i) + sum_j exp(e_ij - scale_i) v_j      D_i likewise, with 1 for v_j
///
/// where scale_i is the larger one of far_i and the largest e_ij, so that nothing overflows. If it is the largest e_ij,
/// the features A_i are multiplied by exp(far_i - scale_i), too. If moreover the largest e_ij is below -10^6, the e_ij
/// have lost digits, since their biases are far from weight_bias: D_i becomes 0, so that the row is recomputed by exact
/// softmax. O(n_q w (d + p)) for w near keys and sinks of a query.
template <Storage S, class Feature>
struct NearSumsTask {
  ExactPairs pairs;
  SoftmaxScores<S> scores;
  Columns<S> U;  // values divided by the same powers of two as in the far sums
  FarLogScales far;
  Sums sums;
  FeatureRows<Feature> A;
  double* log_scales;  // [z, n_q]: scale_i
  float* near_D;       // [z, n_q]: the near part of D_i
};

/// Writes this thread's part of row i of a tile.
template <Storage S, class Feature>
__device__ __forceinline__ void add_near_row(const NearSumsTask<S, Feature>& task,
                                             const SoftmaxTile<S, SoftmaxScores<S>, ConsecutiveRows>& near, int z,
                                             int i) {
  const float near_D = near.denominator(i);
  const double most = near.most(i);
  const int query = near.query(i), n_q = task.pairs.n_q, p = task.sums.p;
  if (query < 0) return;
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(z) * n_q + query;
  const double far = task.far.of(z, n_q, query);
  const bool is_empty = most == minus_infinity, rises = !is_empty && !(most <= far);
  const bool is_coarse = rises && most < -1e6;
  const float near_factor = is_empty || is_coarse ? 0.0f : rises ? 1.0f : expf(static_cast<float>(most - far));
  const float far_factor = is_coarse ? 0.0f : rises ? expf(static_cast<float>(far - most)) : 1.0f;
  // multiplies all parts of `count` far sums by far_factor, and adds near_factor * more to the first part
  const auto add = [&]<int count>(float* sums, std::ptrdiff_t part_stride, const float(&more)[count]) {
    for (int part = 0; !is_empty && part < (rises ? task.sums.parts : 1); ++part) {
      float all[count];
#pragma unroll
      for (int j = 0; j < count; ++j) {
        all[j] = far_factor * sums[part * part_stride + j];
        if (part == 0) all[j] = fmaf(near_factor, more[j], all[j]);
      }
      store_all(sums + part * part_stride, all);
    }
  };
  float* N = task.sums.N + row * p + near.column(0);
  if (p % 4 == 0 && near.column(0) < p)
    add(N, task.sums.rows * p,
        {near.numerator(i, 0), near.numerator(i, 1), near.numerator(i, 2), near.numerator(i, 3)});
  else
    for (int j = 0; j < 4; ++j)
      if (near.column(j) < p) add(N + j, task.sums.rows * p, {near.numerator(i, j)});
  if (near.column(0) >= TileShape::tile) return;  // not the block of the first columns
  if (rises) task.A.scale(z, n_q, query, far_factor, near.share());
  if (near.share() > 0) return;
  add(task.sums.D + row, task.sums.rows, {near_D});
  task.log_scales[row] = rises ? most : far;
  task.near_D[row] = is_empty ? 0.0f : near_factor * near_D;
}

/// blockIdx.x: tile of queries, blockIdx.y: z and tile of columns.
template <Storage S, class Feature>
__global__ void __launch_bounds__(TileShape::threads) near_sums_kernel(NearSumsTask<S, Feature> task) {
  start_kernel();
  const int column_tiles = TileShape::column_tiles(task.U.V.channels), z = static_cast<int>(blockIdx.y) / column_tiles;
  const int i0 = static_cast<int>(blockIdx.x) * TileShape::tile, n_q = task.pairs.n_q;
  const int p0 = static_cast<int>(blockIdx.y) % column_tiles * TileShape::tile;
  SoftmaxTile<S, SoftmaxScores<S>, ConsecutiveRows> near(task.pairs, task.scores, task.U, z, {i0, n_q}, p0,
                                                         RowKind::field);
  const ExactPairs::Keys near_keys = task.pairs.near_keys(i0, min(i0 + TileShape::tile, n_q) - 1);
  const ExactPairs::Tiles tiles = task.pairs.tiles_with(z, near_keys);
#pragma unroll 1
  for (int k = 0; k < tiles.count; ++k) near.add_tile(tiles(k));
#pragma unroll
  for (int i = 0; i < 4; ++i) add_near_row(task, near, z, i);
}

/// Sets log_scales and near_D also without a near field and sinks.
template <Storage S, class Feature>
void queue_near_sums(const NearSumsTask<S, Feature>& task, int z, cudaStream_t stream) {
  if (task.pairs.n_q == 0 || z == 0) return;
  launch("near field", near_sums_kernel<S, Feature>,
         dim3{blocks_of<TileShape::tile>(task.pairs.n_q),
              static_cast<unsigned>(z * TileShape::column_tiles(task.U.V.channels)), 1},
         dim3{TileShape::threads, 1, 1}, SoftmaxTile<S, SoftmaxScores<S>, ConsecutiveRows>::shared, stream, task);
}

}  // namespace nprf::cuda
