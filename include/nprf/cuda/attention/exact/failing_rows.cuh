// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/core/row_quotient.hpp"
#include "nprf/cuda/attention/exact/near_sums.cuh"
#include "nprf/cuda/attention/exact/softmax_tile.cuh"
#include "nprf/cuda/position/attention_mask.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"

namespace nprf::cuda {

/// The norms |A_i| of the rows of features, by channel [z, 1, norms_stride], zero beyond the last row.
template <class Feature>
struct FeatureNormsTask {
  FeatureRows<Feature> A;
  int n, norms_stride;
  float* norms;
};

/// Blocks (rows, z).
template <class Feature>
__global__ void __launch_bounds__(256) feature_norms_kernel(FeatureNormsTask<Feature> task) {
  start_kernel();
  const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x), z = static_cast<int>(blockIdx.y);
  if (i >= task.norms_stride) return;
  float square = 0;
  for (int f = 0; i < task.n && f < task.A.r; ++f) {
    const float x = to_float(task.A.at(z, task.n, i, f));
    square = fmaf(x, x, square);
  }
  task.norms[static_cast<std::ptrdiff_t>(z) * task.norms_stride + i] = sqrtf(square);
}

template <class Feature>
void queue_feature_norms(const FeatureNormsTask<Feature>& task, int z, cudaStream_t stream) {
  if (task.norms_stride == 0 || z == 0) return;
  launch("norms of features", feature_norms_kernel<Feature>,
         dim3{blocks_of<256>(task.norms_stride), static_cast<unsigned>(z), 1}, dim3{256, 1, 1}, 0, stream, task);
}

/// Lists the rows that exact softmax replaces: those that fail the FFT error bound, those whose denominator does not
/// keep its precision or is not positive, and those whose terms cancel (terms_cancel). The sums of rows that attend to
/// no key become zero.
struct FailingRowsTask {
  Sums sums;
  bool positive;            // whether the features are
  const bool* fails_bound;  // [z, n_q]; null: no FFT
  Sums terms;               // its D is sum_j |A_i| c_ij |B_j|, for features of both signs; null D: D itself
  const float* near_D;      // [z, n_q]: the near part of D
  AttentionMask attention_mask;
  RowList rows;
  double* log_scales;  // [z, n_q]: +infinity for rows that attend to no key

  __device__ __forceinline__ bool fails(std::ptrdiff_t row, float D) const {
    if ((fails_bound && fails_bound[row]) || !denominator_keeps_precision(D, positive)) return true;
    return terms_cancel(D, terms.D ? fabsf(terms.denominator(row)) + near_D[row] : D);
  }
};

/// One thread per row.
template <int threads>
__global__ void __launch_bounds__(threads) failing_rows_kernel(FailingRowsTask task) {
  start_kernel();
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(blockIdx.x) * threads + threadIdx.x;
  if (row >= task.sums.rows) return;
  const float D = task.sums.denominator(row);
  if (D != D || !task.fails(row, D)) return;
  const int n_q = task.rows.n, z = static_cast<int>(row / n_q), i = static_cast<int>(row % n_q);
  if (task.attention_mask.attends_any(z, i)) {
    task.rows.append(z, i);
    return;
  }
  for (int part = 0; part < task.sums.parts; ++part) task.sums.D[part * task.sums.rows + row] = 0;
  task.log_scales[row] = -minus_infinity;
}

inline void queue_failing_rows(const FailingRowsTask& task, cudaStream_t stream) {
  if (task.sums.rows == 0) return;
  launch("failing rows", failing_rows_kernel<256>, dim3{blocks_of<256>(task.sums.rows), 1, 1}, dim3{256, 1, 1}, 0,
         stream, task);
}

/// Computes the listed rows by exact softmax: N_i becomes y_i and D_i 1, of which scale_i is the logarithm of the sum
/// of exp(q_i.k_j + b_ij - max_j b_ij), and the features A_i zero, so that no far pair has a gradient. O(rows n_k (d +
/// p)).
template <Storage S, class Feature>
struct SoftmaxRowsTask {
  ExactPairs pairs;
  Columns<S> U;  // values divided as those of the far sums
  RowList rows;
  Sums sums;
  FeatureRows<Feature> A;
  double* log_scales;  // [z, n_q]
  bool* is_exact;      // [z, n_q]: set for these rows; false before the launch
  Counts* counts;
};

/// Writes this thread's part of row i of a tile.
template <Storage S, class Feature>
__device__ __forceinline__ void store_softmax_row(const SoftmaxRowsTask<S, Feature>& task,
                                                  const SoftmaxTile<S, ListedRows>& y, int z, int i) {
  const float D = y.denominator(i);
  const double most = y.most(i);
  const int query = y.query(i), n_q = task.pairs.q.tokens, p = task.sums.p;
  if (query < 0) return;
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(z) * n_q + query;
  for (int part = 0; part < task.sums.parts; ++part)
    for (int j = 0; j < 4; ++j)
      if (y.column(j) < p)
        task.sums.N[(part * task.sums.rows + row) * p + y.column(j)] = part == 0 ? y.numerator(i, j) / D : 0.0f;
  if (y.column(0) >= TileShape::tile) return;  // not the block of the first columns
  task.A.scale(z, n_q, query, 0, y.share());
  if (y.share() > 0) return;
  for (int part = 0; part < task.sums.parts; ++part)
    task.sums.D[part * task.sums.rows + row] = part > 0 ? 0.0f : D == D ? 1.0f : D;
  task.log_scales[row] = most + log(static_cast<double>(D));
  task.is_exact[row] = true;
  if (D == D) atomicAdd(&task.counts->repaired_rows, 1);
}

/// Each block computes every gridDim.x-th tile of rows. Blocks (tiles of rows, z and tiles of columns), of which one a
/// multiprocessor is enough: registers would spill if two had to share them.
template <Storage S, class Feature>
__global__ void __launch_bounds__(TileShape::threads, 1) softmax_rows_kernel(SoftmaxRowsTask<S, Feature> task) {
  start_kernel();
  constexpr int tile = TileShape::tile;
  const int column_tiles = TileShape::column_tiles(task.U.V.channels), z = static_cast<int>(blockIdx.y) / column_tiles;
  const int p0 = static_cast<int>(blockIdx.y) % column_tiles * tile, count = task.rows.sizes[z];
  for (int at = static_cast<int>(blockIdx.x) * tile; at < count; at += static_cast<int>(gridDim.x) * tile) {
    SoftmaxTile<S, ListedRows> y(task.pairs, task.U, z, {task.rows.of(z) + at, min(tile, count - at)}, p0, false);
    for (int j0 = 0; j0 < task.pairs.k.tokens; j0 += tile) y.add_tile(j0);
#pragma unroll
    for (int i = 0; i < 4; ++i) store_softmax_row(task, y, z, i);
  }
}

/// Sets the largest bias of each listed row, by one warp. Blocks (rows, z).
template <int warps>
__global__ void __launch_bounds__(32 * warps) row_biases_kernel(ExactPairs pairs, RowList rows) {
  start_kernel();
  const int z = static_cast<int>(blockIdx.y), step = static_cast<int>(gridDim.x) * warps;
  for (int at = static_cast<int>(blockIdx.x * warps + threadIdx.x / 32); at < rows.sizes[z]; at += step)
    pairs.set_largest_bias(z, rows.of(z)[at]);
}

/// Queues the rows of `z` matrices, by at least `blocks` blocks, or fewer if these suffice for all rows.
template <Storage S, class Feature>
void queue_softmax_rows(const SoftmaxRowsTask<S, Feature>& task, int z, int blocks, cudaStream_t stream) {
  if (task.pairs.q.tokens == 0 || z == 0) return;
  constexpr int warps = 8;
  const unsigned row_blocks =
      std::min(blocks_of<warps>(task.pairs.q.tokens), static_cast<unsigned>((blocks + z - 1) / z));
  launch("largest biases of rows", row_biases_kernel<warps>, dim3{row_blocks, static_cast<unsigned>(z), 1},
         dim3{32 * warps, 1, 1}, 0, stream, task.pairs, task.rows);
  const int others = z * TileShape::column_tiles(task.U.V.channels);
  const int turns = std::min(TileShape::tiles(task.pairs.q.tokens), (blocks + others - 1) / others);
  launch("rows of exact softmax", softmax_rows_kernel<S, Feature>,
         dim3{static_cast<unsigned>(turns), static_cast<unsigned>(others), 1}, dim3{TileShape::threads, 1, 1},
         SoftmaxTile<S, ListedRows>::shared, stream, task);
}

}  // namespace nprf::cuda
