// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/cuda/scratch.hpp"
#include "nprf/cuda/tile.cuh"

namespace nprf::cuda {

/// The keys around the band, in chunks.
struct BandChunks {
  static constexpr int chunk = 2 * TileShape::tile;

  int n_q, n_k;
  Band band;

  __host__ __device__ int chunks() const { return (n_k + chunk - 1) / chunk; }

  /// Chunks of which no query of tile I sees a key in the band or behind it, and before it.
  __device__ int before(int I) const { return min(chunks(), max(0, I * TileShape::tile + band.first) / chunk); }
  __device__ int after(int I) const {
    const int last_row = min((I + 1) * TileShape::tile, n_q) - 1;
    return max(before(I), min(chunks(), (max(0, last_row + band.last + 1) + chunk - 1) / chunk));
  }
};

/// Y = ((A B^T) o C) [V 1] where weights of all lags before a band are alike, and of all lags after it: T5's buckets,
/// clipped tables, no position. What a tile of queries needs of the keys out of its band are two matrices (r,p + 1),
///
///     y_i += A_i (c_before sum_{j < j_1} B_j^T [V 1]_j + c_after sum_{j >= j_2} B_j^T [V 1]_j)
///
/// kept for chunks of keys. Exact to rounding, in float. O((n_q + n_k) r p + n_q R (r + p)) for a band of R lags.
template <Storage S>
struct BandedTask : TileTask<S> {
  static constexpr int chunk = BandChunks::chunk;

  Band band;
  float *before, *after;  // [z, chunks + 1, r, p + 1]: sums of the chunks before, and of this one and all behind
  float *N, *D;           // [z, n_q, p] [z, n_q]

  __host__ __device__ BandChunks keys() const { return {this->A.tokens, this->B.tokens, band}; }
  __host__ __device__ int chunks() const { return keys().chunks(); }
  __host__ __device__ std::ptrdiff_t matrix() const {
    return static_cast<std::ptrdiff_t>(this->B.channels) * (this->U.V.channels + 1);
  }
};

/// The sums of each chunk, in before's next place and in after's own. Blocks (chunks, tiles of features and columns,
/// z).
template <Storage S>
__global__ void __launch_bounds__(TileShape::threads) chunks_kernel(BandedTask<S> task) {
  constexpr int tile = TileShape::tile, stride = TileShape::stride;
  float *b = shared_memory<float>(), *u = b + tile * stride;  // (keys,features) (keys,columns)
  const int r = task.B.channels, columns = task.U.V.channels + 1, column_tiles = TileShape::tiles(columns);
  const int z = static_cast<int>(blockIdx.z), chunk = static_cast<int>(blockIdx.x);
  const int f0 = static_cast<int>(blockIdx.y) / column_tiles * tile,
            p0 = static_cast<int>(blockIdx.y) % column_tiles * tile;
  const int row = static_cast<int>(threadIdx.x) / 16 * 4, column = static_cast<int>(threadIdx.x) % 16 * 4;
  const float* B = task.B.of(z);
  const ColumnsOf<S> U = task.U.of(z);
  float sum[4][4] = {};
  for (int j0 = chunk * task.chunk; j0 < (chunk + 1) * task.chunk; j0 += tile) {
    __syncthreads();
    load_tile(b, stride, 1, task.B, B, j0, tile, f0, tile);
    load_columns(u, stride, U, j0, tile, p0, tile);
    __syncthreads();
    for (int k = 0; k < tile; ++k) add_outer(sum, b + k * stride + row, u + k * stride + column);
  }
  const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(z) * (task.chunks() + 1) + chunk;
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) {
      const int f = f0 + row + i, k = p0 + column + j;
      if (f >= r || k >= columns) continue;
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(f) * columns + k;
      task.before[(first + 1) * task.matrix() + at] = sum[i][j];
      task.after[first * task.matrix() + at] = sum[i][j];
    }
}

/// Running sums, from the first chunk on and from the last one; what rounding takes from a sum is added to its next
/// (Kahan 1965). Threads (entries of a matrix), blocks (.., before or after, z).
template <Storage S>
__global__ void __launch_bounds__(256) running_sums_kernel(BandedTask<S> task) {
  const std::ptrdiff_t entry = static_cast<std::ptrdiff_t>(blockIdx.x) * blockDim.x + threadIdx.x, step = task.matrix();
  if (entry >= step) return;
  const bool forward = blockIdx.y == 0;
  const int chunks = task.chunks();
  float* sums =
      (forward ? task.before : task.after) + static_cast<std::ptrdiff_t>(blockIdx.z) * (chunks + 1) * step + entry;
  float sum = 0, lost = 0;
  sums[(forward ? 0 : chunks) * step] = 0;
  for (int k = 0; k < chunks; ++k) {
    float& at = sums[(forward ? k + 1 : chunks - 1 - k) * step];
    const float more = at + lost, next = sum + more;
    lost = more - (next - sum);
    at = sum = next;
  }
}

/// Blocks (tiles of queries, tiles of columns, z).
template <Storage S>
__global__ void __launch_bounds__(TileShape::threads, 2) banded_kernel(BandedTask<S> task) {
  constexpr int tile = TileShape::tile, tiles_of_chunk = BandedTask<S>::chunk / tile;
  const int n_q = task.A.tokens, p = task.U.V.channels, z = static_cast<int>(blockIdx.z),
            I = static_cast<int>(blockIdx.x);
  const int head = z % task.A.heads, chunks = task.chunks();
  const int before = task.keys().before(I), after = task.keys().after(I);
  const float c_before = task.c(head, max(task.c.first, task.band.first - 1));
  const float c_after = task.c(head, min(task.c.first + task.c.size - 1, task.band.last + 1));

  Tile<S> y(task, z, I, static_cast<int>(blockIdx.y) * tile);
  const int end = min(after * tiles_of_chunk, TileShape::tiles(task.B.tokens));
  for (int J = before * tiles_of_chunk; J < end; ++J) y.add_keys(J);
  const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(z) * (chunks + 1), columns = p + 1;
  const float *left = task.before + (first + before) * task.matrix(),
              *right = task.after + (first + after) * task.matrix();
  y.add_product([&](int f, int column) {
    const std::ptrdiff_t at = f * columns + column;
    return (c_before == 0 ? 0.0f : c_before * left[at]) + (c_after == 0 ? 0.0f : c_after * right[at]);
  });
  const std::ptrdiff_t rows = static_cast<std::ptrdiff_t>(z) * n_q;
  y.store(task.N + rows * p, task.D + rows);
}

/// Queues the products of `z` matrices.
template <Storage S>
void queue_banded(const BandedTask<S>& task, int z, cudaStream_t stream) {
  if (task.A.tokens == 0 || z == 0) return;
  const int r = task.B.channels, p = task.U.V.channels;
  const unsigned all = static_cast<unsigned>(z), chunks = static_cast<unsigned>(task.chunks());
  const dim3 block{TileShape::threads, 1, 1};
  constexpr std::size_t two_tiles = sizeof(float) * 2 * TileShape::tile * TileShape::stride;
  if (chunks > 0)
    launch("banded: chunks", chunks_kernel<S>,
           dim3{chunks, static_cast<unsigned>(TileShape::tiles(r) * TileShape::tiles(p + 1)), all}, block, two_tiles,
           stream, task);
  launch("banded: running sums", running_sums_kernel<S>,
         dim3{static_cast<unsigned>((task.matrix() + 255) / 256), 2, all}, dim3{256, 1, 1}, 0, stream, task);
  launch("banded", banded_kernel<S>,
         dim3{static_cast<unsigned>(TileShape::tiles(task.A.tokens)), static_cast<unsigned>(TileShape::column_tiles(p)),
              all},
         block, TileShape::shared, stream, task);
}

}  // namespace nprf::cuda
