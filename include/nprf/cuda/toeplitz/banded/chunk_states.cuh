// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <type_traits>

#include "nprf/core/compensated_sum.hpp"
#include "nprf/cuda/toeplitz/direct/bf16_mma_tile.cuh"

namespace nprf::cuda {

/// Sums over chunks of keys. M = sum_j B_j^T [V 1]_j (r,p + 1) over all chunks before chunk k is before[k], over chunk
/// k and all later ones after[k]. Sums are float; on tensor cores values are rounded to bfloat16. O(n_k r p).
template <Storage S, class Feature = float>
struct ChunkTask : TileTask<S, Feature> {
  static constexpr int chunk = 128;

  float *before, *after;  // [z, chunks + 1, r, p + 1]

  static __host__ __device__ constexpr int chunks_of(int n) { return (n + chunk - 1) / chunk; }
  __host__ __device__ int chunks() const { return chunks_of(this->B.tokens); }
  __host__ __device__ std::ptrdiff_t matrix() const {
    return static_cast<std::ptrdiff_t>(this->B.channels) * (this->U.V.channels + 1);
  }

  /// Stores the sum of chunk k alone in before[k + 1] and after[k]. running_sums_kernel accumulates them.
  __device__ __forceinline__ void put(int z, int k, int f, int column, float sum) const {
    const int columns = this->U.V.channels + 1;
    if (f >= this->B.channels || column >= columns) return;
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(f) * columns + column;
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(z) * (chunks() + 1) + k;
    before[(first + 1) * matrix() + at] = sum;
    after[first * matrix() + at] = sum;
  }
};

/// Computes the sum of each chunk. Blocks (chunks, tiles of features and columns, z).
template <Storage S>
__global__ void __launch_bounds__(TileShape::threads) chunks_kernel(ChunkTask<S> task) {
  constexpr int tile = TileShape::tile, stride = TileShape::stride;
  float *b = shared_memory<float>(), *u = b + tile * stride;  // (keys,features) (keys,columns)
  const int column_tiles = TileShape::tiles(task.U.V.channels + 1);
  const int z = static_cast<int>(blockIdx.z), chunk = static_cast<int>(blockIdx.x);
  const int f0 = static_cast<int>(blockIdx.y) / column_tiles * tile,
            p0 = static_cast<int>(blockIdx.y) % column_tiles * tile;
  const int row = static_cast<int>(threadIdx.x) / 16 * 4, column = static_cast<int>(threadIdx.x) % 16 * 4;
  const float* B = task.B.of(z);
  const ColumnsOf<S> U = task.U.of(z);
  float sum[4][4] = {};
  for (int j0 = chunk * task.chunk; j0 < (chunk + 1) * task.chunk; j0 += tile) {
    __syncthreads();
    load_tile({b, stride, 1}, task.B, B, {j0, tile}, {f0, tile});
    load_columns(u, stride, U, j0, tile, p0, tile);
    __syncthreads();
    for (int k = 0; k < tile; ++k) add_outer(sum, b + k * stride + row, u + k * stride + column);
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) task.put(z, chunk, f0 + row + i, p0 + column + j, sum[i][j]);
}

/// The same on tensor cores. Each of 4 warps has 16 of 64 columns; the first warp also has the column of ones.
template <Storage S>
__global__ void __launch_bounds__(Bf16TileShape::threads) tensor_chunks_kernel(ChunkTask<S, __nv_bfloat16> task) {
  if constexpr (has_mma) {
    constexpr int keys = task.chunk, tile = Bf16TileShape::channels, stride = Bf16TileShape::stride;
    __nv_bfloat16 *b = shared_memory<__nv_bfloat16>(), *u = b + keys * stride;  // (keys,features) (keys,columns)
    const int p = task.U.V.channels, column_tiles = TileShape::column_tiles(p);
    const int z = static_cast<int>(blockIdx.z), chunk = static_cast<int>(blockIdx.x);
    const int f0 = static_cast<int>(blockIdx.y) / column_tiles * tile,
              p0 = static_cast<int>(blockIdx.y) % column_tiles * tile;
    const int depth = min(tile, task.B.channels - f0), column = static_cast<int>(threadIdx.x) / 32 * 16;
    const bool has_ones = p0 + column == 0;
    const ColumnsOf<S> U = task.U.of(z);
    Bf16RowLoader<keys> features, values;
    features.fetch(task.B, task.B.of(z), chunk * keys, f0);
    if (has_aligned_rows(U)) {
      values.fetch(U, chunk * keys, p0);
      values.template put<S>(u);
    } else {
      load_columns(u, stride, U, chunk * keys, keys, p0, tile);
    }
    features.put(b);
    __syncthreads();
    SumFragment sum[tile / 16][2] = {}, ones[tile / 16] = {};
    for (int k = 0; k < keys; k += 16) {
      RightFragment value[2];
      load_right(value, u + k * stride + column, stride);
#pragma unroll
      for (int f = 0; f < tile; f += 16) {
        if (f < depth) {
          const LeftFragment feature = load_left_transposed(b + k * stride + f, stride);
          for (int n = 0; n < 2; ++n) multiply_add(sum[f / 16][n], feature, value[n]);
          if (has_ones) multiply_add(ones[f / 16], feature, right_ones());
        }
      }
    }
#pragma unroll
    for (int f = 0; f < tile; f += 16)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = f0 + f + SumFragment::row() + e / 2 * 8, k = p0 + column + SumFragment::column() + e % 2;
        for (int n = 0; n < 2; ++n)
          if (k + 8 * n < p) task.put(z, chunk, row, k + 8 * n, sum[f / 16][n].x[e]);
        if (has_ones && SumFragment::column() + e % 2 == 0) task.put(z, chunk, row, p, ones[f / 16].x[e]);
      }
  }
}

/// Accumulates the sums of chunks, forward for `before` and backward for `after`, by Kahan-compensated summation (Kahan
/// 1965). Threads (entries of a matrix), blocks (.., before or after, z).
template <Storage S, class Feature>
__global__ void __launch_bounds__(256) running_sums_kernel(ChunkTask<S, Feature> task) {
  const std::ptrdiff_t entry = static_cast<std::ptrdiff_t>(blockIdx.x) * blockDim.x + threadIdx.x, step = task.matrix();
  if (entry >= step) return;
  const bool forward = blockIdx.y == 0;
  const int chunks = task.chunks();
  float* sums =
      (forward ? task.before : task.after) + static_cast<std::ptrdiff_t>(blockIdx.z) * (chunks + 1) * step + entry;
  float sum = 0, compensation = 0;
  sums[(forward ? 0 : chunks) * step] = 0;
  const auto place = [&](int k) { return sums + (forward ? k + 1 : chunks - 1 - k) * step; };
  // loads a batch of chunks at once, since a load would otherwise wait for the store before it
  constexpr int batch = 32;
  for (int k0 = 0; k0 < chunks; k0 += batch) {
    float of_chunk[batch];
#pragma unroll
    for (int k = 0; k < batch; ++k) of_chunk[k] = k0 + k < chunks ? *place(k0 + k) : 0.0f;
#pragma unroll
    for (int k = 0; k < batch; ++k) {
      sum = fast_two_sum(sum, of_chunk[k] + compensation, compensation);
      if (k0 + k < chunks) *place(k0 + k) = sum;
    }
  }
}

/// Queues `before` and `after` of `z` matrices.
template <Storage S, class Feature>
void queue_chunks(const ChunkTask<S, Feature>& task, int z, cudaStream_t stream) {
  const int r = task.B.channels, p = task.U.V.channels;
  const unsigned all = static_cast<unsigned>(z), chunks = static_cast<unsigned>(task.chunks());
  const auto tiles = [&](int columns) { return static_cast<unsigned>(TileShape::tiles(r) * columns); };
  if (chunks > 0) {
    if constexpr (std::is_same_v<Feature, float>)
      launch("chunks", chunks_kernel<S>, dim3{chunks, tiles(TileShape::tiles(p + 1)), all},
             dim3{TileShape::threads, 1, 1}, sizeof(float) * 2 * TileShape::tile * TileShape::stride, stream, task);
    else
      launch("chunks", tensor_chunks_kernel<S>, dim3{chunks, tiles(TileShape::column_tiles(p)), all},
             dim3{Bf16TileShape::threads, 1, 1}, Bf16TileShape::bytes(2 * task.chunk), stream, task);
  }
  constexpr int threads = 256;
  launch("running sums", running_sums_kernel<S, Feature>, dim3{blocks_of<threads>(task.matrix()), 2, all},
         dim3{threads, 1, 1}, 0, stream, task);
}

}  // namespace nprf::cuda
