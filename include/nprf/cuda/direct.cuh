// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include "nprf/cuda/runtime.hpp"
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

  const int last_row = min((I + 1) * tile, n_q) - 1;
  const KeyTiles keys = KeyTiles::seen(task.c, I * tile, last_row, n_k).part(part, task.parts);
  Tile<S> y(task, z, I, p0);
  for (int J = keys.first; J < keys.end; ++J) y.add_keys(J);
  const std::ptrdiff_t rows = (static_cast<std::ptrdiff_t>(part) * all + z) * n_q;
  y.store(task.N + rows * p, task.D + rows);
}

/// How many parts of the keys give every multiprocessor two blocks, each part a tile at least.
inline int direct_parts(const Device& device, int n_q, int n_k, int p, int z) {
  const std::ptrdiff_t blocks = static_cast<std::ptrdiff_t>(TileShape::tiles(n_q)) * z * TileShape::column_tiles(p);
  const std::ptrdiff_t wanted = 2 * device.multiprocessors / std::max<std::ptrdiff_t>(blocks, 1);
  constexpr int most = 32;
  return static_cast<int>(std::clamp<std::ptrdiff_t>(wanted, 1, std::clamp(n_k / TileShape::tile, 1, most)));
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
