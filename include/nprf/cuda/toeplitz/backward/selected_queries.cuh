// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/position/token_places.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"

namespace nprf::cuda {

/// The selected queries: those whose rows fail the FFT error bound; and the tiles of queries that have at least one of
/// them. If `selected` is null, all queries are selected.
struct SelectedQueries {
  const bool* selected = nullptr;  // [z, n]: whether a query is selected
  int* tiles = nullptr;            // [z, TileShape::tiles(n)]: the tiles with a selected query, ascending
  int* counts = nullptr;           // [z]: the number of these tiles

  static SelectedQueries take(Scratch& scratch, const bool* selected, int z, int n) {
    int* tiles = scratch.take<int>(z, TileShape::tiles(n));
    return {selected, tiles, scratch.take<int>(z)};
  }

  __device__ __forceinline__ bool any_in_matrix(int z) const { return !selected || counts[z] > 0; }

  /// Some tiles of a matrix: tile(k) for k from first to end - 1.
  struct Tiles {
    const int* list;  // null: tile(k) is k
    int first, end;

    __device__ __forceinline__ int tile(int k) const { return list ? list[k] : k; }
  };
  /// The tiles that have a selected query, among the tiles first..end-1 of matrix z, which has n queries. O(log n).
  __device__ __forceinline__ Tiles tiles_of(int z, int n, int first, int end) const {
    if (!selected) return {nullptr, first, end};
    const int* list = tiles + static_cast<std::ptrdiff_t>(z) * TileShape::tiles(n);
    return {list, count_below(list, counts[z], first), count_below(list, counts[z], end)};
  }
};

/// Lists the tiles with a selected query. blockIdx.x: z. Each thread has a contiguous part of the tiles.
template <int threads>
__global__ void __launch_bounds__(threads) selected_tiles_kernel(SelectedQueries queries, int n) {
  start_kernel();
  int* counts = shared_memory<int>();
  const int thread = static_cast<int>(threadIdx.x), all = TileShape::tiles(n), share = (all + threads - 1) / threads;
  const int first = min(all, thread * share), end = min(all, first + share);
  const std::ptrdiff_t z = blockIdx.x;
  const bool* selected = queries.selected + z * n;
  const auto has_selected = [&](int I) {
    for (int i = I * TileShape::tile; i < min(n, (I + 1) * TileShape::tile); ++i)
      if (selected[i]) return true;
    return false;
  };
  int count = 0, before = 0;
  for (int I = first; I < end; ++I) count += has_selected(I);
  counts[thread] = count;
  __syncthreads();
  for (int k = 0; k < thread; ++k) before += counts[k];
  if (thread == threads - 1) queries.counts[z] = before + count;
  for (int I = first; I < end; ++I)
    if (has_selected(I)) queries.tiles[z * all + before++] = I;
}

/// Queues the computation of `tiles` and `counts` for `z` matrices, from `selected`.
inline void queue_selected_tiles(const SelectedQueries& queries, int n, int z, cudaStream_t stream) {
  constexpr int threads = 256;
  if (z == 0) return;
  launch("gradients: tiles of selected queries", selected_tiles_kernel<threads>, dim3{static_cast<unsigned>(z), 1, 1},
         dim3{threads, 1, 1}, threads * sizeof(int), stream, queries, n);
}

/// Computes a product Y = ((A B^T) o C) [V 1] of the backward pass, where queries have the role of keys, and where B or
/// V is zero except for the selected queries. It is computed by tiles, in parts as in Engine::direct. Only tiles with a
/// selected query are visited; Y is zero for a matrix z that has none. O(tiles * n_q (r + p)) for n_q rows of Y and
/// `tiles` tiles with a selected query.
struct SelectedQueriesTask : TileTask<float> {
  SelectedQueries queries;  // they have the role of keys
  int parts;
  float *N, *D;  // [part, z, n_q, p] [part, z, n_q]
};

/// blockIdx.x: tile of rows, blockIdx.y: part, blockIdx.z: z and tile of columns.
template <int threads>
__global__ void __launch_bounds__(threads) selected_queries_kernel(SelectedQueriesTask task) {
  start_kernel();
  constexpr int tile = TileShape::tile;
  const int n_q = task.A.tokens, n_k = task.B.tokens, p = task.U.V.channels;
  const int column_tiles = TileShape::column_tiles(p), all = static_cast<int>(gridDim.z) / column_tiles;
  const int z = static_cast<int>(blockIdx.z) / column_tiles, p0 = static_cast<int>(blockIdx.z) % column_tiles;
  const int i0 = static_cast<int>(blockIdx.x) * tile, part = static_cast<int>(blockIdx.y);
  Tile<float> y(task, z, i0, p0 * tile);
  const KeyTiles keys = KeyTiles::attended(task.c, i0, min(i0 + tile, n_q) - 1, n_k).part(part, task.parts);
  const SelectedQueries::Tiles tiles = task.queries.tiles_of(z, n_k, keys.first, keys.end);
  for (int k = tiles.first; k < tiles.end; ++k) y.add_keys(tiles.tile(k), tiles.tile(k) + 1);
  const std::ptrdiff_t rows = (static_cast<std::ptrdiff_t>(part) * all + z) * n_q;
  y.store(task.N + rows * p, task.D + rows);
}

/// Queues the products of `z` matrices.
inline void queue_selected_queries(const SelectedQueriesTask& task, int z, cudaStream_t stream) {
  if (task.A.tokens == 0 || z == 0) return;
  launch("gradients: selected queries", selected_queries_kernel<TileShape::threads>,
         dim3{blocks_of<TileShape::tile>(task.A.tokens), static_cast<unsigned>(task.parts),
              static_cast<unsigned>(z * TileShape::column_tiles(task.U.V.channels))},
         dim3{TileShape::threads, 1, 1}, TileShape::shared, stream, task);
}

}  // namespace nprf::cuda
