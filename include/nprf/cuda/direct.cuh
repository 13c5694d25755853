// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/cuda/tensor_tile.cuh"

namespace nprf::cuda {

/// Y = ((A B^T) o C) [V 1] for every z, in parts that are to be added up: each has its share of the keys.
///
///     N [part, z, n_q, p]        D [part, z, n_q], the same for values of 1
///
/// exact to rounding of the tiles. O(n_q n_k (r + p)).
template <Storage S, class Feature = float>
struct DirectTask : TileTask<S, Feature> {
  int parts;
  float *N, *D;
};

/// Blocks (tiles of queries, parts, z and tiles of columns).
template <Storage S, class Feature>
__global__ void __launch_bounds__((TileOf<S, Feature>::threads), (TileOf<S, Feature>::blocks))
    direct_kernel(DirectTask<S, Feature> task) {
  using Y = TileOf<S, Feature>;
  if constexpr (Y::compiled) {
    const int n_q = task.A.tokens, n_k = task.B.tokens, p = task.U.V.channels;
    const int column_tiles = TileShape::column_tiles(p), all = static_cast<int>(gridDim.z) / column_tiles;
    const int z = static_cast<int>(blockIdx.z) / column_tiles, p0 = static_cast<int>(blockIdx.z) % column_tiles;
    const int i0 = static_cast<int>(blockIdx.x) * Y::queries, part = static_cast<int>(blockIdx.y);

    // the keys that some query of the tile sees, in tiles; this part's share of them
    const int last_row = min(i0 + Y::queries, n_q) - 1, first = max(0, i0 + task.c.first_seen) / Y::keys;
    const int count = max(0, TileShape::tiles(min(n_k, max(0, last_row + task.c.last_seen + 1))) - first);
    const auto bound = [&](int k) { return first + static_cast<int>(static_cast<long long>(count) * k / task.parts); };

    Y y(task, z, i0, p0 * Y::columns);
    y.add_keys(bound(part), bound(part + 1));
    const std::ptrdiff_t rows = (static_cast<std::ptrdiff_t>(part) * all + z) * n_q;
    y.store(task.N + rows * p, task.D + rows);
  }
}

/// Queues the products of `z` matrices.
template <Storage S, class Feature>
void queue_direct(const DirectTask<S, Feature>& task, int z, cudaStream_t stream) {
  using Y = TileOf<S, Feature>;
  if (task.A.tokens == 0 || z == 0) return;
  const dim3 grid{blocks_of<Y::queries>(task.A.tokens), static_cast<unsigned>(task.parts),
                  static_cast<unsigned>(z * TileShape::column_tiles(task.U.V.channels))};
  launch("direct", direct_kernel<S, Feature>, grid, dim3{Y::threads, 1, 1}, Y::shared, stream, task);
}

}  // namespace nprf::cuda
