// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include "nprf/cuda/device/call_counters.cuh"
#include "nprf/cuda/device/reductions.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"
#include "nprf/cuda/toeplitz/direct/kernel.cuh"

namespace nprf::cuda {

/// Recomputes rows of Y = ((A B^T) o C) [V 1] by tiles, like Engine::direct, as a sum over parts of the keys. The first
/// part overwrites the row; the other parts are stored separately. The keys of a part do not depend on the list, so
/// that the sums of a row do not depend on it either. O(rows n_k (r + p)).
template <Storage S>
struct RecomputeTiledTask : TileTask<S> {
  RowList rows;
  int parts;
  float *N, *D;              // [z, n_q, p] [z, n_q]
  float *N_extra, *D_extra;  // [part - 1, z, n_q, p] [part - 1, z, n_q]
};

/// Each block computes every gridDim.x-th tile of listed rows, from tile blockIdx.x on. blockIdx.y: part, blockIdx.z: z
/// and tile of columns.
template <Storage S>
__global__ void __launch_bounds__(TileShape::threads) recompute_tiled_kernel(RecomputeTiledTask<S> task) {
  start_kernel();
  constexpr int tile = TileShape::tile;
  const int n_q = task.A.tokens, n_k = task.B.tokens, p = task.U.V.channels;
  const int column_tiles = TileShape::column_tiles(p), all = static_cast<int>(gridDim.z) / column_tiles;
  const int z = static_cast<int>(blockIdx.z) / column_tiles, p0 = static_cast<int>(blockIdx.z) % column_tiles * tile;
  const int part = static_cast<int>(blockIdx.y), count = task.rows.sizes[z], lane = static_cast<int>(threadIdx.x) % 32;
  const KeyTiles share = KeyTiles{0, TileShape::tiles(n_k)}.part(part, task.parts);
  for (int at = static_cast<int>(blockIdx.x) * tile; at < count; at += static_cast<int>(gridDim.x) * tile) {
    const ListedRows rows{task.rows.of(z) + at, min(tile, count - at)};
    int first = n_q, last = -1;
    for (int t = lane; t < rows.count; t += 32) first = min(first, rows(t)), last = max(last, rows(t));
    first = over_warp(first, [](int a, int b) { return min(a, b); });
    last = over_warp(last, Largest());
    const KeyTiles attended = KeyTiles::attended(task.c, first, last, n_k);

    __syncthreads();  // all threads have read the previous tile
    Tile<S, ListedRows> y(task, z, rows, p0);
    y.add_keys(max(attended.first, share.first), min(attended.end, share.end));
    const std::ptrdiff_t begin = (static_cast<std::ptrdiff_t>(max(0, part - 1)) * all + z) * n_q;
    y.store((part == 0 ? task.N : task.N_extra) + begin * p, (part == 0 ? task.D : task.D_extra) + begin);
  }
}

/// Queues the recomputation of the listed rows of `z` matrices, by at least `blocks` blocks, or fewer if these suffice
/// for all rows.
template <Storage S>
void queue_recompute_tiled(const RecomputeTiledTask<S>& task, int z, int blocks, cudaStream_t stream) {
  if (task.A.tokens == 0 || z == 0) return;
  const int others = task.parts * z * TileShape::column_tiles(task.U.V.channels);
  const int turns = std::min(TileShape::tiles(task.A.tokens), (blocks + others - 1) / others);
  launch("recomputing rows by tiles", recompute_tiled_kernel<S>,
         dim3{static_cast<unsigned>(turns), static_cast<unsigned>(task.parts),
              static_cast<unsigned>(z * TileShape::column_tiles(task.U.V.channels))},
         dim3{TileShape::threads, 1, 1}, TileShape::shared, stream, task);
}

}  // namespace nprf::cuda
