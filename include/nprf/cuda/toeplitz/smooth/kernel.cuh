// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/storage.cuh"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"
#include "nprf/cuda/toeplitz/direct/mma_tile.cuh"
#include "nprf/cuda/toeplitz/smooth/moments.cuh"
#include "nprf/cuda/toeplitz/smooth/plan.cuh"

namespace nprf::cuda {

/// How many features a step of smooth_rows_kernel has.
constexpr int smooth_features = 8;

/// Computes the first part of Y, the products of queries and sums of moments, for a chunk of queries and a tile of
/// columns. The sums of level 0 are computed on the way. Each of 16 x 16 threads has 4 x 4 entries of Y in registers.
/// blockIdx.x: chunk, blockIdx.y: tile of columns, blockIdx.z: z - first_z.
template <Storage S, class Feature>
__global__ void __launch_bounds__(TileShape::threads) smooth_rows_kernel(SmoothTask<S, Feature> task) {
  start_kernel();
  constexpr int tile = TileShape::tile, stride = TileShape::stride, terms = SmoothChunks::terms;
  constexpr int features = smooth_features, depth = features * terms;  // row f terms + q: polynomial q of feature f
  float *x = shared_memory<float>(), *l = x + depth * stride, *ones = l + depth * stride;  // by row
  const int r = task.A.channels, p = task.U.V.channels, n_q = task.A.tokens, thread = static_cast<int>(threadIdx.x);
  const int z = static_cast<int>(blockIdx.z), chunk = static_cast<int>(blockIdx.x), i0 = chunk * tile,
            p0 = static_cast<int>(blockIdx.y) * tile;
  const int row = thread / 16 * 4, column = thread % 16 * 4;
  const Feature* A = task.A.of(task.first_z + z);
  const auto load = [&](int t, int f) {
    return i0 + t < n_q && f < r ? to_float(A[(i0 + t) * task.A.token_stride + f * task.A.channel_stride]) : 0.0f;
  };
  const auto put = [&](int t, int f, float value) {
#pragma unroll
    for (int q = 0; q < terms; ++q) x[(f * terms + q) * stride + t] = task.blocks.polynomials[t * terms + q] * value;
  };
  float y[4][4] = {}, sum[4] = {};
  for (int f0 = 0; f0 < r; f0 += features) {
    __syncthreads();
    if (task.A.token_stride == 1)
      copy_tile<features, tile, TileShape::threads, 2>([&](int f, int t) { return load(t, f0 + f); },
                                                       [&](int f, int t, float value) { put(t, f, value); });
    else
      copy_tile<tile, features, TileShape::threads, 2>([&](int t, int f) { return load(t, f0 + f); }, put);
    // the columns of the tile and, in the blocks of the first one, the column of ones
    for (int e = thread; e < features * (tile + 1); e += TileShape::threads) {
      const int f = e / (tile + 1), c = e % (tile + 1);
      typename SmoothTask<S, Feature>::Entries sums;
      if (f0 + f < r && (c < tile ? p0 + c < p : p0 == 0))
        sums = task.sums_at(z, 0, chunk, task.place(f0 + f, c < tile ? p0 + c : p));
#pragma unroll
      for (int q = 0; q < terms; ++q) (c < tile ? l[(f * terms + q) * stride + c] : ones[f * terms + q]) = sums.of[q];
    }
    __syncthreads();
    for (int k = 0; k < depth; ++k) add_outer(y, x + k * stride + row, l + k * stride + column);
    if (p0 == 0) add_ones<depth>(sum, x, row, ones);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i0 + row + i >= n_q) continue;
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(task.first_z + z) * n_q + i0 + row + i;
    const float unit = task.scales.unit * (task.scales.rows ? task.scales.rows[at] : 1.0f);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (p0 + column + j < p) task.N[at * p + p0 + column + j] = unit * y[i][j];
    if (p0 + column == 0) task.D[at] = unit * sum[i];
  }
}

/// Computes the second part of Y, the tiles. blockIdx.x: tile of queries, blockIdx.y: z and tile of columns.
template <Storage S, class Feature, MmaShape shape>
__global__ void __launch_bounds__((TileOf<S, Feature, shape>::threads), (TileOf<S, Feature, shape>::blocks))
    smooth_tiles_kernel(SmoothTask<S, Feature> task) {
  start_kernel();
  using Y = TileOf<S, Feature, shape>;
  if constexpr (Y::compiled) {
    static_assert(SmoothChunks::size == Y::keys && Y::queries % SmoothChunks::size == 0);
    const int n_q = task.A.tokens, p = task.U.V.channels, column_tiles = TileShape::column_tiles(p);
    const int z = static_cast<int>(blockIdx.y) / column_tiles, p0 = static_cast<int>(blockIdx.y) % column_tiles;
    const int i0 = static_cast<int>(blockIdx.x) * Y::queries, first = i0 / SmoothChunks::size;
    const SmoothBlocks::Runs runs = task.blocks.runs_of(z % task.A.heads);
    Y y(task, z, i0, p0 * Y::columns);
#pragma unroll 1
    for (int k = 0; k < runs.count; ++k)
      y.add_keys(max(0, first + runs.all[k].x), min(SmoothChunks::count(task.B.tokens, 0), first + runs.all[k].y + 1));
    const std::ptrdiff_t rows = (static_cast<std::ptrdiff_t>(gridDim.y) / column_tiles + z) * n_q;
    y.store(task.N + rows * p, task.D + rows);
  }
}

/// Queues the products of `z` matrices, of whose moments and sums `at_once` fit into memory. `shape` is the instruction
/// that multiplies 16-bit features.
template <Storage S, class Feature, MmaShape shape = MmaShape::native>
void queue_smooth(SmoothTask<S, Feature> task, int z, int at_once, cudaStream_t stream) {
  using Y = TileOf<S, Feature, shape>;
  if (task.A.tokens == 0 || z == 0) return;
  const auto column_tiles = static_cast<unsigned>(TileShape::column_tiles(task.U.V.channels));
  constexpr std::size_t rows_shared =
      sizeof(float) * smooth_features * SmoothChunks::terms * (2 * TileShape::stride + 1);
  for (task.first_z = 0; task.first_z < z; task.first_z += at_once) {
    const int count = std::min(at_once, z - task.first_z);
    queue_smooth_sums(task, count, stream);
    launch(
        "products of moments", smooth_rows_kernel<S, Feature>,
        dim3{static_cast<unsigned>(SmoothChunks::count(task.A.tokens, 0)), column_tiles, static_cast<unsigned>(count)},
        dim3{TileShape::threads, 1, 1}, rows_shared, stream, task);
  }
  launch("tiles", smooth_tiles_kernel<S, Feature, shape>,
         dim3{blocks_of<Y::queries>(task.A.tokens), static_cast<unsigned>(z) * column_tiles, 1}, dim3{Y::threads, 1, 1},
         Y::shared, stream, task);
}

}  // namespace nprf::cuda
