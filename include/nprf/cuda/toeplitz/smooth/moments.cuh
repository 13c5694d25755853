// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/reductions.cuh"
#include "nprf/cuda/device/storage.cuh"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/device/value_columns.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"
#include "nprf/cuda/toeplitz/smooth/plan.cuh"

namespace nprf::cuda {

/// Computes Y = ((A B^T) o C) [V 1] for weights that are smooth far from the diagonal (toeplitz/smooth/engine.hpp).
/// With the polynomials P_q of the slots v of a chunk, the moments of the keys j of a chunk J, and the sums of moments
/// that a chunk I of queries needs, are
///
///     M_J[f,q] = sum_j P_q(v_j) B_jf [V 1]_j      L_I[f,p] = sum over J and q of K[p,q] M_J[f,q]      (r,terms,p + 1)
///
/// and the rows of queries i are y_i = sum_fp P_p(u_i) A_if L_I[f,p], plus tiles. All this is in float, for any type of
/// the features. Moments and sums are those of some of the matrices z at a time.
template <Storage S, class Feature = float>
struct SmoothTask : TileTask<S, Feature> {
  static constexpr int terms = SmoothChunks::terms;

  SmoothBlocks blocks;
  float* moments;  // [z - first_z, chunks of keys of all levels, r, terms, p + 1]
  float* sums;     // [z - first_z, chunks of queries of the levels from 1 on, r, terms, p + 1]
  float *N, *D;    // [part, z, n_q, p] [part, z, n_q]: parts are the products of moments, and the tiles
  int first_z;

  __host__ __device__ int columns() const { return this->U.V.channels + 1; }
  /// The number of scalars of a chunk.
  __host__ __device__ std::ptrdiff_t of_chunk() const {
    return static_cast<std::ptrdiff_t>(this->B.channels) * terms * columns();
  }

  /// The moments of a chunk, and the sums of a chunk of a level from 1 on, for the z-th matrix from first_z on.
  __device__ __forceinline__ float* moments_of(int z, int level, int chunk) const {
    const int n = this->B.tokens, all = SmoothChunks::below(n, blocks.levels);
    return moments + (static_cast<std::ptrdiff_t>(z) * all + SmoothChunks::below(n, level) + chunk) * of_chunk();
  }
  __device__ __forceinline__ float* sums_of(int z, int level, int chunk) const {
    const int n = this->A.tokens, before = SmoothChunks::below(n, 1),
              all = SmoothChunks::below(n, blocks.levels) - before;
    return sums + (static_cast<std::ptrdiff_t>(z) * all + SmoothChunks::below(n, level) - before + chunk) * of_chunk();
  }

  /// The entries of one feature and one column: one of each polynomial.
  struct Entries {
    float of[terms] = {};

    /// Adds M x for a matrix M (terms,terms), where x points to the first of these entries of moments, or of sums.
    __device__ __forceinline__ void add(const float* M, const float* x, int columns) {
      constexpr int pairs = SmoothChunks::pairs;
      static_assert(pairs % 4 == 0);
      float column[terms], matrix[pairs];
#pragma unroll
      for (int q = 0; q < terms; ++q) column[q] = x[q * columns];
#pragma unroll
      for (int k = 0; k < pairs; k += 4) {
        const float4 four = *reinterpret_cast<const float4*>(M + k);
        matrix[k] = four.x, matrix[k + 1] = four.y, matrix[k + 2] = four.z, matrix[k + 3] = four.w;
      }
#pragma unroll
      for (int p = 0; p < terms; ++p)
#pragma unroll
        for (int q = 0; q < terms; ++q) of[p] = fmaf(matrix[p * terms + q], column[q], of[p]);
    }
    __device__ __forceinline__ void store(float* to, int columns) const {
#pragma unroll
      for (int p = 0; p < terms; ++p) to[p * columns] = of[p];
    }
  };
  /// The place of the first of these entries in a chunk.
  __device__ __forceinline__ std::ptrdiff_t place(int f, int column) const {
    return static_cast<std::ptrdiff_t>(f) * terms * columns() + column;
  }
  /// Calls use(place) for the entries of this thread, where blockIdx.y and threadIdx.x count them.
  template <class Use>
  __device__ __forceinline__ void for_each_place(Use&& use) const {
    const int width = columns(), all = this->B.channels * width;
    for (int e = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x); e < all;
         e += static_cast<int>(gridDim.y * blockDim.x))
      inlined(use, place(e / width, e % width));
  }

  /// Entries of the sums of a chunk of a level: their share of the sums of the level above, and the moments of the
  /// chunks of keys that it is coupled with.
  __device__ __forceinline__ Entries sums_at(int z, int level, int chunk, std::ptrdiff_t place) const {
    Entries y;
    if (level + 1 < blocks.levels)
      y.add(blocks.W + (2 * level + chunk % 2) * SmoothChunks::pairs, sums_of(z, level + 1, chunk / 2) + place,
            columns());
    const int chunks = SmoothChunks::count(this->B.tokens, level);
    const float* first = moments_of(z, level, 0) + place;
    for (const SmoothCoupling& each : blocks.of((first_z + z) % this->A.heads, level, chunk)) {
      const int of_keys = chunk + each.offset;
      if (of_keys >= 0 && of_keys < chunks) y.add(each.K, first + of_keys * of_chunk(), columns());
    }
    return y;
  }
};

/// The products with a column of ones: sums[i] = sum over k of x[k][row + i] ones[k], for x with `depth` rows of
/// TileShape::stride scalars. 16 lanes next to each other have the same row, and share out the k.
template <int depth>
__device__ __forceinline__ void add_ones(float (&sums)[4], const float* x, int row, const float* ones) {
  float share[4] = {};
  for (int k = static_cast<int>(threadIdx.x) % 16; k < depth; k += 16)
#pragma unroll
    for (int i = 0; i < 4; ++i) share[i] = fmaf(x[k * TileShape::stride + row + i], ones[k], share[i]);
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i] += over_warp<16>(share[i], Sum());
}

/// Computes the moments of the chunks of level 0. blockIdx.x: chunk, blockIdx.y: tile of 64 rows, which are a
/// polynomial and a feature each, and tile of columns, blockIdx.z: z - first_z. The blocks of the first tile of columns
/// also have the column of ones.
template <Storage S, class Feature>
__global__ void __launch_bounds__(TileShape::threads) smooth_moments_kernel(SmoothTask<S, Feature> task) {
  start_kernel();
  constexpr int tile = TileShape::tile, stride = TileShape::stride, terms = SmoothChunks::terms;
  static_assert(SmoothChunks::size == tile);
  float *x = shared_memory<float>(), *u = x + tile * stride, *ones = u + tile * stride;  // by key
  const int r = task.B.channels, p = task.U.V.channels, column_tiles = TileShape::column_tiles(p);
  const int z = static_cast<int>(blockIdx.z), chunk = static_cast<int>(blockIdx.x), j0 = chunk * tile;
  const int row0 = static_cast<int>(blockIdx.y) / column_tiles * tile,
            p0 = static_cast<int>(blockIdx.y) % column_tiles * tile;
  const int row = static_cast<int>(threadIdx.x) / 16 * 4, column = static_cast<int>(threadIdx.x) % 16 * 4;
  const Feature* B = task.B.of(task.first_z + z);
  const ColumnsOf<S> U = task.U.of(task.first_z + z);
  const float* scales =
      task.scales.keys ? task.scales.keys + static_cast<std::ptrdiff_t>(task.first_z + z) * task.B.tokens : nullptr;
  const auto load = [&](int t, int k) {
    const int q = (row0 + k) % terms, f = (row0 + k) / terms;
    if (f >= r || j0 + t >= task.B.tokens) return 0.0f;
    const float scale = task.blocks.polynomials[t * terms + q] * (scales ? scales[j0 + t] : 1.0f);
    return scale * to_float(B[(j0 + t) * task.B.token_stride + f * task.B.channel_stride]);
  };
  const auto put = [&](int t, int k, float value) { x[t * stride + k] = value; };
  if (task.B.token_stride == 1)
    copy_tile<tile, tile, TileShape::threads, 4>([&](int k, int t) { return load(t, k); },
                                                 [&](int k, int t, float value) { put(t, k, value); });
  else
    copy_tile<tile, tile, TileShape::threads, 4>(load, put);
  load_columns_at_once<tile, tile, TileShape::threads>(u, stride, U, j0, p0);
  if (threadIdx.x < tile) ones[threadIdx.x] = U(j0 + static_cast<int>(threadIdx.x), p);
  __syncthreads();
  float sum[4][4] = {}, sum_of_ones[4] = {};
  for (int k = 0; k < tile; ++k) add_outer(sum, x + k * stride + row, u + k * stride + column);
  if (p0 == 0) add_ones<tile>(sum_of_ones, x, row, ones);
  float* M = task.moments_of(z, 0, chunk);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (row0 + row + i >= terms * r) continue;
    float* of_row = M + static_cast<std::ptrdiff_t>(row0 + row + i) * (p + 1);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (p0 + column + j < p) of_row[p0 + column + j] = sum[i][j];
    if (p0 + column == 0) of_row[p] = sum_of_ones[i];
  }
}

constexpr int smooth_entry_threads = 128;

/// Computes the moments of the chunks of a level from 1 on from those of their halves. blockIdx.x: chunk, blockIdx.y
/// and threadIdx.x: entries, blockIdx.z: z - first_z.
template <Storage S, class Feature>
__global__ void __launch_bounds__(smooth_entry_threads) smooth_join_kernel(SmoothTask<S, Feature> task, int level) {
  start_kernel();
  const int chunk = static_cast<int>(blockIdx.x), z = static_cast<int>(blockIdx.z);
  const int halves = min(2, SmoothChunks::count(task.B.tokens, level - 1) - 2 * chunk);
  task.for_each_place([&](std::ptrdiff_t place) {
    typename SmoothTask<S, Feature>::Entries y;
    for (int half = 0; half < halves; ++half)
      y.add(task.blocks.Wt + (2 * (level - 1) + half) * SmoothChunks::pairs,
            task.moments_of(z, level - 1, 2 * chunk + half) + place, task.columns());
    y.store(task.moments_of(z, level, chunk) + place, task.columns());
  });
}

/// Computes the sums of the chunks of a level from 1 on, from those of the level above. blockIdx as of
/// smooth_join_kernel.
template <Storage S, class Feature>
__global__ void __launch_bounds__(smooth_entry_threads) smooth_sums_kernel(SmoothTask<S, Feature> task, int level) {
  start_kernel();
  const int chunk = static_cast<int>(blockIdx.x), z = static_cast<int>(blockIdx.z);
  task.for_each_place([&](std::ptrdiff_t place) {
    task.sums_at(z, level, chunk, place).store(task.sums_of(z, level, chunk) + place, task.columns());
  });
}

/// Queues the moments and sums of `z` matrices from first_z on, but for the sums of level 0.
template <Storage S, class Feature>
void queue_smooth_sums(const SmoothTask<S, Feature>& task, int z, cudaStream_t stream) {
  constexpr int tile = TileShape::tile, threads = smooth_entry_threads;
  const int n_q = task.A.tokens, n_k = task.B.tokens, levels = task.blocks.levels;
  const unsigned all = static_cast<unsigned>(z),
                 entries = std::min(blocks_of<threads>(static_cast<std::ptrdiff_t>(task.B.channels) * task.columns()),
                                    65535u);
  const auto tiles = static_cast<unsigned>(TileShape::tiles(SmoothChunks::terms * task.B.channels) *
                                           TileShape::column_tiles(task.U.V.channels));
  if (n_k > 0)
    launch("moments", smooth_moments_kernel<S, Feature>,
           dim3{static_cast<unsigned>(SmoothChunks::count(n_k, 0)), tiles, all}, dim3{TileShape::threads, 1, 1},
           sizeof(float) * tile * (2 * TileShape::stride + 1), stream, task);
  for (int level = 1; level < levels && n_k > 0; ++level)
    launch("moments of larger chunks", smooth_join_kernel<S, Feature>,
           dim3{static_cast<unsigned>(SmoothChunks::count(n_k, level)), entries, all}, dim3{threads, 1, 1}, 0, stream,
           task, level);
  for (int level = levels - 1; level > 0; --level)
    launch("sums of moments", smooth_sums_kernel<S, Feature>,
           dim3{static_cast<unsigned>(SmoothChunks::count(n_q, level)), entries, all}, dim3{threads, 1, 1}, 0, stream,
           task, level);
}

}  // namespace nprf::cuda
