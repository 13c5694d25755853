// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/core/row_quotient.hpp"
#include "nprf/cuda/attention/exact/gradient_task.cuh"
#include "nprf/cuda/attention/exact/lag_gradients.cuh"
#include "nprf/cuda/attention/exact/pair_tile.cuh"
#include "nprf/cuda/device/call_counters.cuh"
#include "nprf/cuda/device/launch.cuh"

namespace nprf::cuda {

/// Computes log_D and dy_y. `lanes` threads share a row, so that they load whole sectors of memory.
template <Storage S, int lanes>
__global__ void __launch_bounds__(256) exact_rows_kernel(ExactGradientTask<S> task) {
  start_kernel();
  const std::ptrdiff_t row = (static_cast<std::ptrdiff_t>(blockIdx.x) * 256 + threadIdx.x) / lanes;
  const int n_q = task.pairs.n_q, lane = static_cast<int>(threadIdx.x) % lanes;
  const bool has_pairs = row < task.sums.sums.rows && (task.has_field || task.kinds[row] != RowKind::field);
  const int z = has_pairs ? static_cast<int>(row / n_q) : 0, i = has_pairs ? static_cast<int>(row % n_q) : 0;
  const float D = has_pairs ? task.sums.denominator(row) : 0.0f;
  const bool has_gradients = has_pairs && (D != D || denominator_keeps_precision(D, task.positive));
  float dy_y = 0;
  for (int c = lane; has_gradients && c < task.dy.channels; c += lanes)
    dy_y = fmaf(task.dy_at(z, i, c), task.sums.quotient(z, row, c, D), dy_y);
  dy_y = over_warp<lanes>(dy_y, [](float a, float b) { return a + b; });
  if (!has_pairs || lane > 0) return;
  task.to.log_D[row] = has_gradients ? task.log_scales[row] + log(static_cast<double>(D)) : -minus_infinity;
  task.to.dy_y[row] = dy_y;
}

/// Whether a tile of queries has a row of this kind, which is not RowKind::field. All threads of the block must call
/// it.
template <Storage S>
__device__ __forceinline__ bool has_row(const ExactGradientTask<S>& task, int z, int i0, RowKind kind) {
  if (task.recomputed_rows[z] == 0) return false;
  const int thread = static_cast<int>(threadIdx.x), i = i0 + thread;
  return __syncthreads_or(thread < TileShape::tile && i < task.pairs.n_q && task.kinds[task.row(z, i)] == kind);
}

/// Sets the rows of the tile that begins at t0 to zero, in matrix z of x [z, n, channels]. All threads of the block
/// must call it, and synchronise before they add to the rows.
__device__ __forceinline__ void clear_rows(float* x, int z, int t0, int n, int channels) {
  float* first = x + (static_cast<std::ptrdiff_t>(z) * n + t0) * channels;
  for (int e = static_cast<int>(threadIdx.x); e < min(TileShape::tile, n - t0) * channels; e += TileShape::threads)
    first[e] = 0;
}

/// Computes dq, dA, and the diagonals, as far as they are requested. blockIdx.x: tile of queries, blockIdx.y: z.
template <Storage S>
__global__ void __launch_bounds__(TileShape::threads) exact_queries_kernel(ExactGradientTask<S> task) {
  start_kernel();
  constexpr int tile = TileShape::tile;
  const int z = static_cast<int>(blockIdx.y), i0 = static_cast<int>(blockIdx.x) * tile, n_k = task.pairs.n_k;
  if (!task.has_any(z)) return;
  const KeyTiles near = task.to.near_tiles > 0 ? task.pairs.near_tiles(z, i0 / tile) : KeyTiles{0, 0};
  const int last = min(i0 + tile, task.pairs.n_q) - 1;
  if (task.to.dq) {
    clear_rows(task.to.dq, z, i0, task.pairs.n_q, task.softmax.q.channels);
    const bool all = has_row(task, z, i0, RowKind::softmax);
    const ExactPairs::Tiles tiles =
        task.pairs.tiles_with(z, all ? ExactPairs::Keys{0, n_k} : task.pairs.near_keys(i0, last));
#pragma unroll 1
    for (int k = 0; k < tiles.count; ++k) {
      const ExactPairTile<S, SoftmaxScores<S>, PairSide::queries> pairs(task, task.softmax, z, i0, tiles(k));
      pairs.add_to_queries(task.to.dq);
      const int J = tiles(k) / tile;
      if (task.db && J >= near.first && J < near.end)
        pairs.store_diagonals(task.diagonals(z, i0 / tile, J - near.first));
    }
  }
  if (!task.to.dA || !has_row(task, z, i0, RowKind::features)) return;
#pragma unroll 1
  for (int j0 = 0; j0 < n_k; j0 += tile)
    ExactPairTile<S, FeatureScores<float>, PairSide::queries>(task, task.features, z, i0, j0)
        .add_to_queries(task.to.dA);
}

/// Computes dk, dB and dv, as far as they are requested. blockIdx.x: tile of keys, blockIdx.y: z.
template <Storage S>
__global__ void __launch_bounds__(TileShape::threads) exact_keys_kernel(ExactGradientTask<S> task) {
  start_kernel();
  constexpr int tile = TileShape::tile;
  const int z = static_cast<int>(blockIdx.y), j0 = static_cast<int>(blockIdx.x) * tile, n_q = task.pairs.n_q;
  if (!task.has_any(z)) return;
  const auto [first, end] = task.pairs.near_queries(j0, min(j0 + tile, task.pairs.n_k) - 1);
  const ExactPairs::Keys sinks = task.pairs.sinks(z);
  const bool has_sinks = j0 < sinks.end && j0 + tile > sinks.first;
  float *dk = task.to.dk, *dB = task.to.dB, *dv = task.to.dv;
  if (dk) clear_rows(dk, z, j0, task.pairs.n_k, task.softmax.q.channels);
  if (dv && task.has_field) clear_rows(dv, z, j0, task.pairs.n_k, task.dy.channels);
  for (int i0 = 0; i0 < n_q; i0 += tile) {
    if (has_row(task, z, i0, RowKind::softmax) || has_sinks || (first < end && i0 + tile > first && i0 < end))
      ExactPairTile<S, SoftmaxScores<S>, PairSide::keys>(task, task.softmax, z, i0, j0).add_to_keys(dk, dv);
    if (!task.has_field && has_row(task, z, i0, RowKind::features))
      ExactPairTile<S, FeatureScores<float>, PairSide::keys>(task, task.features, z, i0, j0).add_to_keys(dB, dv);
  }
}

/// Queues log_D and dy_y, which all following kernels read.
template <Storage S>
void queue_exact_rows(const ExactGradientTask<S>& task, cudaStream_t stream) {
  constexpr int lanes = 8;
  if (task.sums.sums.rows == 0) return;
  launch("exact gradients: rows", exact_rows_kernel<S, lanes>, dim3{blocks_of<256 / lanes>(task.sums.sums.rows), 1, 1},
         dim3{256, 1, 1}, 0, stream, task);
}

/// Queues dq, dA, and the diagonals.
template <Storage S>
void queue_exact_queries(const ExactGradientTask<S>& task, cudaStream_t stream) {
  if (task.pairs.n_q == 0 || task.z == 0) return;
  launch("exact gradients: queries", exact_queries_kernel<S>,
         dim3{blocks_of<TileShape::tile>(task.pairs.n_q), static_cast<unsigned>(task.z), 1},
         dim3{TileShape::threads, 1, 1}, ExactPairTile<S, SoftmaxScores<S>, PairSide::queries>::shared, stream, task);
}

/// Queues dk, dB and dv.
template <Storage S>
void queue_exact_keys(const ExactGradientTask<S>& task, cudaStream_t stream) {
  if (task.pairs.n_k == 0 || task.z == 0) return;
  launch("exact gradients: keys", exact_keys_kernel<S>,
         dim3{blocks_of<TileShape::tile>(task.pairs.n_k), static_cast<unsigned>(task.z), 1},
         dim3{TileShape::threads, 1, 1}, ExactPairTile<S, SoftmaxScores<S>, PairSide::keys>::shared, stream, task);
}

/// Queues what exact pairs add to db, if db is requested. It must follow the diagonals, and the engine's gradients in
/// db.
template <Storage S>
void queue_exact_entries(const ExactGradientTask<S>& task, cudaStream_t stream) {
  constexpr int threads = 128;
  if (!task.db || task.pairs.n_q == 0 || task.pairs.n_k == 0 || task.z == 0) return;
  launch("exact gradients: lags", exact_entries_kernel<S, threads>,
         dim3{static_cast<unsigned>(task.pairs.b.size + task.pairs.b.places.border_size()),
              static_cast<unsigned>(task.positions), 1},
         dim3{threads, 1, 1}, threads * sizeof(float), stream, task);
}

}  // namespace nprf::cuda
