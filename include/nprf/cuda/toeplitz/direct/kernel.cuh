// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/toeplitz/direct/mma_tile.cuh"
#include "nprf/cuda/toeplitz/direct/streamed_tile.cuh"

namespace nprf::cuda {

/// Computes Y = ((A B^T) o C) [V 1] for every z, as a sum over parts. Each part has some of the keys:
///
///     N [part, z, n_q, p]        D [part, z, n_q], which is N for values of 1
///
/// Rounding errors are those of the tiles (Tile, TensorTile). O(n_q n_k (r + p)).
template <Storage S, class Feature = float>
struct DirectTask : TileTask<S, Feature> {
  int parts;
  float *N, *D;
};

/// Computes the tile of a block, by the class Y. blockIdx.x: tile of queries, in reverse order; blockIdx.y: part;
/// blockIdx.z: z and tile of columns.
template <class Y, Storage S, class Feature>
__device__ __forceinline__ void compute_tile(const DirectTask<S, Feature>& task) {
  if constexpr (Y::compiled) {
    const int n_q = task.A.tokens, n_k = task.B.tokens, p = task.U.V.channels;
    const int column_tiles = TileShape::column_tiles(p), all = static_cast<int>(gridDim.z) / column_tiles;
    const int z = static_cast<int>(blockIdx.z) / column_tiles, p0 = static_cast<int>(blockIdx.z) % column_tiles;
    // the last queries first, since in causal direction they attend to the most keys
    const int i0 = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Y::queries, part = static_cast<int>(blockIdx.y);

    const int last_row = min(i0 + Y::queries, n_q) - 1;
    const KeyTiles keys = KeyTiles::attended(task.c, i0, last_row, n_k).part(part, task.parts);
    Y y(task, z, i0, p0 * Y::columns);
    y.add_keys(keys.first, keys.end);
    const std::ptrdiff_t rows = (static_cast<std::ptrdiff_t>(part) * all + z) * n_q;
    y.store(task.N + rows * p, task.D + rows);
  }
}

template <Storage S, class Feature, MmaShape shape>
__global__ void __launch_bounds__((TileOf<S, Feature, shape>::threads), (TileOf<S, Feature, shape>::blocks))
    direct_kernel(DirectTask<S, Feature> task) {
  start_kernel();
  compute_tile<TileOf<S, Feature, shape>>(task);
}
template <class Feature>
__global__ void __launch_bounds__(StreamedTile<Feature>::threads, StreamedTile<Feature>::blocks)
    streamed_direct_kernel(DirectTask<Feature, Feature> task) {
  start_kernel();
  compute_tile<StreamedTile<Feature>>(task);
}

/// The number of parts to split the keys into, so that each multiprocessor gets about `blocks_at_once` blocks. For
/// causal attention pass twice as many: half of the blocks then have less than half of the keys. `keys` is the largest
/// number of keys that a tile of queries attends to. Each part has at least one tile of keys.
inline int parts_of_keys(const Device& device, int tiles_of_queries, int keys, int p, int z, int blocks_at_once = 2) {
  const std::ptrdiff_t blocks = static_cast<std::ptrdiff_t>(tiles_of_queries) * z * TileShape::column_tiles(p);
  const std::ptrdiff_t wanted = blocks_at_once * device.multiprocessors / std::max<std::ptrdiff_t>(blocks, 1);
  constexpr int most = 32;
  return static_cast<int>(std::clamp<std::ptrdiff_t>(wanted, 1, std::clamp(keys / TileShape::tile, 1, most)));
}

/// Queues the products of `z` matrices. `shape` is the instruction that multiplies 16-bit features. `streams`: whether
/// the device has asynchronous copies, and the program is compiled for them.
template <Storage S, class Feature, MmaShape shape = MmaShape::native>
void queue_direct(const DirectTask<S, Feature>& task, int z, cudaStream_t stream, bool streams = false) {
  using Y = TileOf<S, Feature, shape>;
  if (task.A.tokens == 0 || z == 0) return;
  const dim3 grid{blocks_of<Y::queries>(task.A.tokens), static_cast<unsigned>(task.parts),
                  static_cast<unsigned>(z * TileShape::column_tiles(task.U.V.channels))};
  if constexpr (MmaFactor<Feature> && std::is_same_v<S, Feature>) {
    using Streamed = StreamedTile<Feature>;
    static_assert(Streamed::queries == Y::queries);
    // The streamed kernel takes no mask and only aligned rows, the other one takes all calls. While kernels are loaded
    // ahead (KernelLoading), both are, since later calls may have a mask or other strides
    const bool is_streamed = streams && Streamed::supports(task);
    if (is_streamed || (streams && KernelLoading::is_active()))
      launch("direct", streamed_direct_kernel<Feature>, grid, dim3{Streamed::threads, 1, 1}, Streamed::shared, stream,
             task);
    if (is_streamed && !KernelLoading::is_active()) return;
  }
  launch("direct", direct_kernel<S, Feature, shape>, grid, dim3{Y::threads, 1, 1}, Y::shared, stream, task);
}

}  // namespace nprf::cuda
