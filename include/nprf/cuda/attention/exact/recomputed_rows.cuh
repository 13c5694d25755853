// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include "nprf/core/row_quotient.hpp"
#include "nprf/cuda/attention/exact/pairs.cuh"
#include "nprf/cuda/attention/exact/softmax_tile.cuh"
#include "nprf/cuda/device/call_counters.cuh"
#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"

namespace nprf::cuda {

/// Recomputes the listed rows from their pairs. If by_features is true, a row is first computed from its features, with
/// weights relative to the row's largest bias. If the row's denominator underflows even with these weights, the row is
/// computed by exact softmax if by_softmax is true, and is zero otherwise. If by_features is false, all rows are
/// computed by exact softmax.
///
/// If log_scales is null, rows go to y. Otherwise they go to the sums: N_i becomes y_i, D_i becomes 1, and scale_i
/// becomes the logarithm of the sum of the row's weights, for the biases ExactPairs::bias(). O(rows n_k (r + d + p)).
template <Storage S, class Feature>
struct RecomputedRowsTask {
  ExactPairs pairs;
  FeatureScores<Feature> features;
  SoftmaxScores<S> softmax;
  bool by_features, by_softmax;
  Columns<S> U;  // values divided by the same powers of two as in the sums
  RowList rows;
  CheckedSums sums;
  DeviceMatrixView<S> y;
  double* log_scales;  // [z, n_q]: scale_i; null: rows go to y
  RowKind* kinds;      // [z, n_q]: set for the listed rows that go to the sums, unless they are zero
  Counts* counts;
};

/// Row i < 4 of this thread's rows of a tile; 16 threads share a row.
template <Storage S, class Feature>
class RecomputedRow {
 public:
  template <class Tile>
  __device__ __forceinline__ RecomputedRow(const RecomputedRowsTask<S, Feature>& task, const Tile& tile, int z, int i)
      : m_task(task),
        m_z(z),
        m_query(tile.query(i)),
        m_is_first(tile.column(0) < TileShape::tile && tile.share() == 0),
        m_D(tile.denominator(i)),
        m_most(tile.most(i)) {}

  __device__ __forceinline__ bool exists() const { return m_query >= 0; }
  /// Whether the denominator of a row of features keeps its precision, or is NaN. If softmax cannot replace the row,
  /// the denominator may be smaller: it suffices that its inverse is far from overflow.
  __device__ __forceinline__ bool keeps_precision() const {
    constexpr float unit = OperandScales::of_features<Feature>().unit, least = 0x1p-102f;
    const float D = unit * m_D;
    return m_D != m_D || (m_task.by_softmax ? denominator_keeps_precision(D, true) : D >= least && D <= largest_float);
  }

  /// Writes this thread's columns of the row, if they exist, and the row's scalars if m_is_first.
  template <class Tile>
  __device__ __forceinline__ void store(const Tile& tile, int i, RowKind kind) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) put(tile.column(j), tile.numerator(i, j) / m_D);
    if (!m_is_first) return;
    if (m_task.log_scales) {
      const std::ptrdiff_t row = of_sums();
      const Sums& sums = m_task.sums.sums;
      for (int part = 0; part < sums.parts; ++part)
        sums.D[part * sums.rows + row] = part > 0 ? 0.0f : m_D == m_D ? 1.0f : m_D;
      m_task.log_scales[row] = m_most + log(static_cast<double>(m_D));
      m_task.kinds[row] = kind;
    }
    if (m_D != m_D) return;
    atomicAdd(&m_task.counts->repaired_rows, 1);
    if (kind == RowKind::softmax) atomicAdd(&m_task.counts->softmax_rows, 1);
  }
  template <class Tile>
  __device__ __forceinline__ void store_zeros(const Tile& tile) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) put(tile.column(j), 0);
    if (m_is_first) atomicAdd(&m_task.counts->imprecise_rows, 1);
  }

 private:
  __device__ __forceinline__ std::ptrdiff_t of_sums() const {
    return static_cast<std::ptrdiff_t>(m_z) * m_task.pairs.n_q + m_query;
  }
  __device__ __forceinline__ void put(int column, float x) const {
    const Sums& sums = m_task.sums.sums;
    if (column >= sums.p) return;
    if (!m_task.log_scales) return cuda::store(row_of(m_task.y, m_z, m_query) + column, m_task.sums.scale(m_z) * x);
    for (int part = 0; part < sums.parts; ++part)
      sums.N[(part * sums.rows + of_sums()) * sums.p + column] = part == 0 ? x : 0.0f;
  }

  const RecomputedRowsTask<S, Feature>& m_task;
  int m_z, m_query;
  bool m_is_first;  // whether this thread writes the scalars of the row
  float m_D;
  double m_most;
};

/// Computes a tile of listed rows from their features, and stores the rows that keep their precision. If softmax can
/// replace the other rows, returns which of this thread's rows these are, as bits 1 << i; otherwise stores zeros in
/// them. All threads of the block must call it.
template <Storage S, class Feature>
__device__ __forceinline__ unsigned store_rows_of_features(const RecomputedRowsTask<S, Feature>& task, int z,
                                                           const ListedRows& rows, int p0) {
  SoftmaxTile<S, FeatureScores<Feature>, ListedRows> y(task.pairs, task.features, task.U, z, rows, p0,
                                                       RowKind::features);
  for (int j0 = 0; j0 < task.pairs.n_k; j0 += TileShape::tile) y.add_tile(j0);
  unsigned left = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const RecomputedRow<S, Feature> row(task, y, z, i);
    if (!row.exists()) continue;
    if (row.keeps_precision())
      row.store(y, i, RowKind::features);
    else if (task.by_softmax)
      left |= 1u << i;
    else
      row.store_zeros(y);
  }
  return left;
}
/// Computes a tile of listed rows by exact softmax, and stores this thread's rows i whose bit 1 << i is set in `which`.
/// All threads of the block must call it.
template <Storage S, class Feature>
__device__ __forceinline__ void store_rows_of_softmax(const RecomputedRowsTask<S, Feature>& task, int z,
                                                      const ListedRows& rows, int p0, unsigned which) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (int t = warp; t < rows.count; t += TileShape::threads / 32) task.pairs.set_largest_bias(z, rows(t));
  __syncthreads();
  SoftmaxTile<S, SoftmaxScores<S>, ListedRows> y(task.pairs, task.softmax, task.U, z, rows, p0, RowKind::softmax);
  for (int j0 = 0; j0 < task.pairs.n_k; j0 += TileShape::tile) y.add_tile(j0);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const RecomputedRow<S, Feature> row(task, y, z, i);
    if (row.exists() && (which >> i & 1)) row.store(y, i, RowKind::softmax);
  }
}

/// Each block computes every gridDim.x-th tile of listed rows, from tile blockIdx.x on. blockIdx.y: z and tile of
/// columns. A multiprocessor need not run two blocks at a time: with half of the registers each, they would spill.
template <Storage S, class Feature>
__global__ void __launch_bounds__(TileShape::threads, 1) recomputed_rows_kernel(RecomputedRowsTask<S, Feature> task) {
  start_kernel();
  constexpr int tile = TileShape::tile;
  const int column_tiles = TileShape::column_tiles(task.U.V.channels), z = static_cast<int>(blockIdx.y) / column_tiles;
  const int p0 = static_cast<int>(blockIdx.y) % column_tiles * tile, count = task.rows.sizes[z];
  for (int at = static_cast<int>(blockIdx.x) * tile; at < count; at += static_cast<int>(gridDim.x) * tile) {
    const ListedRows rows{task.rows.of(z) + at, min(tile, count - at)};
    const unsigned left = task.by_features ? store_rows_of_features(task, z, rows, p0) : 15u;
    if (__syncthreads_or(left != 0)) store_rows_of_softmax(task, z, rows, p0, left);
  }
}

/// Queues the recomputation of the listed rows of `z` matrices, by at least `blocks` blocks, or fewer if these suffice
/// for all rows.
template <Storage S, class Feature>
void queue_recomputed_rows(const RecomputedRowsTask<S, Feature>& task, int z, int blocks, cudaStream_t stream) {
  if (task.pairs.n_q == 0 || z == 0) return;
  const int others = z * TileShape::column_tiles(task.U.V.channels);
  const int turns = std::min(TileShape::tiles(task.pairs.n_q), (blocks + others - 1) / others);
  launch("recomputing rows", recomputed_rows_kernel<S, Feature>,
         dim3{static_cast<unsigned>(turns), static_cast<unsigned>(others), 1}, dim3{TileShape::threads, 1, 1},
         SoftmaxTile<S, SoftmaxScores<S>, ListedRows>::shared, stream, task);
}

}  // namespace nprf::cuda
