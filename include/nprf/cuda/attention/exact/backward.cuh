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

/// Computes log_D and dy_y. `lanes` threads a row, which load whole sectors.
template <Storage S, int lanes>
__global__ void __launch_bounds__(256) exact_rows_kernel(ExactGradientTask<S> task) {
  start_kernel();
  const std::ptrdiff_t row = (static_cast<std::ptrdiff_t>(blockIdx.x) * 256 + threadIdx.x) / lanes;
  const int n_q = task.pairs.q.tokens, lane = static_cast<int>(threadIdx.x) % lanes;
  const bool is_inside = row < task.sums.sums.rows;
  const int z = is_inside ? static_cast<int>(row / n_q) : 0, i = is_inside ? static_cast<int>(row % n_q) : 0;
  const float D = is_inside ? task.sums.denominator(row) : 0.0f;
  const bool has_gradients = is_inside && (D != D || denominator_keeps_precision(D, task.positive));
  float dy_y = 0;
  for (int c = lane; has_gradients && c < task.dy.channels; c += lanes)
    dy_y = fmaf(task.dy_at(z, i, c), task.sums.quotient(z, row, c, D), dy_y);
  dy_y = over_warp<lanes>(dy_y, [](float a, float b) { return a + b; });
  if (!is_inside || lane > 0) return;
  task.to.log_D[row] = has_gradients ? task.log_scales[row] + log(static_cast<double>(D)) : -minus_infinity;
  task.to.dy_y[row] = dy_y;
}

/// Whether a tile of queries has a row by exact softmax. All threads of the block must call it.
template <Storage S>
__device__ __forceinline__ bool has_exact_row(const ExactGradientTask<S>& task, int z, int i0) {
  if (task.exact_rows[z] == 0) return false;
  const int thread = static_cast<int>(threadIdx.x), i = i0 + thread;
  return __syncthreads_or(thread < TileShape::tile && i < task.pairs.q.tokens && task.is_exact[task.row(z, i)]);
}

/// Computes dq, and the diagonals. Blocks (tiles of queries, z).
template <Storage S>
__global__ void __launch_bounds__(TileShape::threads) exact_queries_kernel(ExactGradientTask<S> task) {
  start_kernel();
  constexpr int tile = TileShape::tile;
  const int z = static_cast<int>(blockIdx.y), i0 = static_cast<int>(blockIdx.x) * tile, n_k = task.pairs.k.tokens;
  const KeyTiles near = task.to.near_tiles > 0 ? task.pairs.near_tiles(z, i0 / tile) : KeyTiles{0, 0};
  const int last = min(i0 + tile, task.pairs.q.tokens) - 1;
  const bool all = has_exact_row(task, z, i0);
  const ExactPairs::Tiles tiles =
      task.pairs.tiles_with(z, all ? ExactPairs::Keys{0, n_k} : task.pairs.near_keys(i0, last));
#pragma unroll 1
  for (int k = 0; k < tiles.count; ++k) {
    const ExactPairTile<S, PairSide::queries> pairs(task, z, i0, tiles(k));
    pairs.add_to_queries();
    const int J = tiles(k) / tile;
    if (task.db && J >= near.first && J < near.end) pairs.store_diagonals(task.diagonals(z, i0 / tile, J - near.first));
  }
}

/// Computes dk and dv. Blocks (tiles of keys, z).
template <Storage S>
__global__ void __launch_bounds__(TileShape::threads) exact_keys_kernel(ExactGradientTask<S> task) {
  start_kernel();
  constexpr int tile = TileShape::tile;
  const int z = static_cast<int>(blockIdx.y), j0 = static_cast<int>(blockIdx.x) * tile, n_q = task.pairs.q.tokens;
  const auto [first, end] = task.pairs.near_queries(j0, min(j0 + tile, task.pairs.k.tokens) - 1);
  const ExactPairs::Keys sinks = task.pairs.sinks(z);
  const bool has_sinks = j0 < sinks.end && j0 + tile > sinks.first;
  for (int i0 = 0; i0 < n_q; i0 += tile)
    if (has_exact_row(task, z, i0) || has_sinks || (first < end && i0 + tile > first && i0 < end))
      ExactPairTile<S, PairSide::keys>(task, z, i0, j0).add_to_keys();
}

/// Queues all gradients, after those of db by the engine.
template <Storage S>
void queue_exact_gradients(const ExactGradientTask<S>& task, cudaStream_t stream) {
  const int n_q = task.pairs.q.tokens, n_k = task.pairs.k.tokens;
  const unsigned z = static_cast<unsigned>(task.z);
  const dim3 block{TileShape::threads, 1, 1};
  const auto clear = [&](float* x, int n, int channels) {
    queue_fill("clearing gradients", x, 0,
               sizeof(float) * z * static_cast<std::size_t>(n) * static_cast<std::size_t>(channels), stream);
  };
  clear(task.to.dq, n_q, task.pairs.q.channels);
  clear(task.to.dk, n_k, task.pairs.q.channels);
  clear(task.to.dv, n_k, task.dy.channels);
  if (n_q == 0 || n_k == 0 || z == 0) return;
  constexpr int lanes = 8;
  launch("exact gradients: rows", exact_rows_kernel<S, lanes>, dim3{blocks_of<256 / lanes>(task.sums.sums.rows), 1, 1},
         block, 0, stream, task);
  launch("exact gradients: queries", exact_queries_kernel<S>, dim3{blocks_of<TileShape::tile>(n_q), z, 1}, block,
         ExactPairTile<S, PairSide::queries>::shared, stream, task);
  launch("exact gradients: keys", exact_keys_kernel<S>, dim3{blocks_of<TileShape::tile>(n_k), z, 1}, block,
         ExactPairTile<S, PairSide::keys>::shared, stream, task);
  constexpr int threads = 128;
  if (task.db)
    launch("exact gradients: lags", exact_entries_kernel<S, threads>,
           dim3{static_cast<unsigned>(task.pairs.b.size + task.pairs.b.places.border_size()),
                static_cast<unsigned>(task.positions), 1},
           dim3{threads, 1, 1}, threads * sizeof(float), stream, task);
}

}  // namespace nprf::cuda
