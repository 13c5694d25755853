// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"

namespace nprf::cuda {

/// The queries whose rows fail the FFT error bound. Null flags: all queries.
struct SelectedQueries {
  const bool* selected = nullptr;  // [z, n]: whether a query is selected
  const int* counts = nullptr;     // [z]: number of selected queries

  __device__ __forceinline__ bool any_in_matrix(int z) const { return !selected || counts[z] > 0; }
  /// Whether a tile has a selected query, of n queries of a matrix z that has any. All threads of the block must call
  /// this.
  __device__ __forceinline__ bool any_in_tile(int z, int I, int n) const {
    if (!selected) return true;
    const int thread = static_cast<int>(threadIdx.x), i = I * TileShape::tile + thread;
    return __syncthreads_or(thread < TileShape::tile && i < n && selected[static_cast<std::ptrdiff_t>(z) * n + i]);
  }
};

/// Y = ((A B^T) o C) [V 1] of gradients, where B or V is zero except for the selected queries, which have the role of
/// keys. Computed by tiles, in parts as in Engine::direct. Tiles without a selected query are skipped; Y is zero for a
/// matrix z without any. O(tiles n_q (r + p)) for n_q rows of Y and `tiles` tiles that are not skipped.
struct SelectedQueriesTask : TileTask<float> {
  SelectedQueries queries;  // they have the role of keys
  int parts;
  float *N, *D;  // [part, z, n_q, p] [part, z, n_q]
};

/// Blocks (tiles of rows, parts, z and tiles of columns).
template <int threads>
__global__ void __launch_bounds__(threads) selected_queries_kernel(SelectedQueriesTask task) {
  constexpr int tile = TileShape::tile;
  const int n_q = task.A.tokens, n_k = task.B.tokens, p = task.U.V.channels;
  const int column_tiles = TileShape::column_tiles(p), all = static_cast<int>(gridDim.z) / column_tiles;
  const int z = static_cast<int>(blockIdx.z) / column_tiles, p0 = static_cast<int>(blockIdx.z) % column_tiles;
  const int i0 = static_cast<int>(blockIdx.x) * tile, part = static_cast<int>(blockIdx.y);
  Tile<float> y(task, z, i0, p0 * tile);
  const KeyTiles keys = KeyTiles::attended(task.c, i0, min(i0 + tile, n_q) - 1, n_k).part(part, task.parts);
  const bool has_selected = task.queries.any_in_matrix(z);
  for (int J = keys.first; has_selected && J < keys.end; ++J)
    if (task.queries.any_in_tile(z, J, n_k)) y.add_keys(J, J + 1);
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
