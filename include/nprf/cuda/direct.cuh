// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/cuda/tile.cuh"

namespace nprf::cuda {

/// Y = ((A B^T) o C) [V 1] for every z, in parts that are to be added up: each has its share of the keys.
///
///     N [part, z, n_q, p]        D [part, z, n_q], the same for values of 1
///
/// exact to rounding, in float. O(n_q n_k (r + p)).
template <Storage S>
struct DirectTask : TileTask<S> {
  int parts;
  float *N, *D;
};

/// Blocks (tiles of queries, parts, z and tiles of columns).
template <Storage S>
__global__ void __launch_bounds__(TileShape::threads) direct_kernel(DirectTask<S> task) {
  constexpr int tile = TileShape::tile;
  const int n_q = task.A.tokens, n_k = task.B.tokens, p = task.U.V.channels;
  const int column_tiles = TileShape::column_tiles(p), all = static_cast<int>(gridDim.z) / column_tiles;
  const int z = static_cast<int>(blockIdx.z) / column_tiles, p0 = static_cast<int>(blockIdx.z) % column_tiles * tile;
  const int I = static_cast<int>(blockIdx.x), part = static_cast<int>(blockIdx.y);

  // the keys that some query of the tile sees, in tiles; this part's share of them
  const int last_row = min((I + 1) * tile, n_q) - 1, first = max(0, I * tile + task.c.first_seen) / tile;
  const int count = max(0, TileShape::tiles(min(n_k, max(0, last_row + task.c.last_seen + 1))) - first);
  const auto bound = [&](int k) { return first + static_cast<int>(static_cast<long long>(count) * k / task.parts); };

  Tile<S> y(task, z, I, p0);
  const int end = bound(part + 1);
  for (int J = bound(part); J < end; ++J) y.add_keys(J);
  const std::ptrdiff_t rows = (static_cast<std::ptrdiff_t>(part) * all + z) * n_q;
  y.store(task.N + rows * p, task.D + rows);
}

/// Queues the products of `z` matrices.
template <Storage S>
void queue_direct(const DirectTask<S>& task, int z, cudaStream_t stream) {
  if (task.A.tokens == 0 || z == 0) return;
  const dim3 grid{static_cast<unsigned>(TileShape::tiles(task.A.tokens)), static_cast<unsigned>(task.parts),
                  static_cast<unsigned>(z * TileShape::column_tiles(task.U.V.channels))};
  launch("direct", direct_kernel<S>, grid, dim3{TileShape::threads, 1, 1}, TileShape::shared, stream, task);
}

}  // namespace nprf::cuda
