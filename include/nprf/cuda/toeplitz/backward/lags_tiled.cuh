// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/toeplitz/backward/lag_factors.cuh"
#include "nprf/cuda/toeplitz/backward/selected_queries.cuh"
#include "nprf/cuda/toeplitz/banded/kernel.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"

namespace nprf::cuda {

/// dL/db of the lags by tiles, where Y = ((A B^T) o C) U, c = exp(b) and G = dL/dY:
///
///     db[lag] = c[lag] sum_{j - i = lag} (A_i.B_j) (G_i.U_j)
///
/// summed along diagonals of tiles. Lags on one side of the band share one weight, so only the sum of their gradients
/// is computed. It is stored at the lag next to the band. It uses the sums M over chunks of keys of
/// toeplitz/banded/kernel.cuh:
///
///     sum_{j < j_1} sum_i (A_i.B_j) (G_i.U_j) = sum_i A_i^T M G_i.
struct LagGradientTask {
  Operand<float> A, B, G, U;  // (n_q,r) (n_k,r) (n_q,p + 1) (n_k,p + 1)
  DeviceWeights c;
  BandChunks keys;
  SelectedQueries selected;  // queries that are summed over
  int z, positions, first_diagonal, diagonals, segments;
  const float *before, *after;  // ChunkTask's sums; null: no lag is outside the band
  float* diagonal_sums;         // [z, segment, diagonal, 2 tile]: sums for the lags of a diagonal of tiles
  float* tails;                 // [before or after, z, tile of queries]
  float* tail_sums;             // [before or after, position]
  float* db;                    // [position, lags]

  // the last query of tile I
  __device__ int last_row(int I) const { return min((I + 1) * TileShape::tile, A.tokens) - 1; }
};

/// s = x y^T for a tile of x and a tile of y. All 256 threads of the block take part.
__device__ __forceinline__ void multiply_tiles(float (&s)[4][4], const Operand<float>& x, const float* x_z, int i0,
                                               const Operand<float>& y, const float* y_z, int j0) {
  constexpr int tile = TileShape::tile, k_tile = TileShape::k_tile, stride = TileShape::stride;
  float *a = shared_memory<float>(), *b = a + k_tile * stride;
  const int row = static_cast<int>(threadIdx.x) / 16 * 4, column = static_cast<int>(threadIdx.x) % 16 * 4;
  for (int k0 = 0; k0 < x.channels; k0 += k_tile) {
    __syncthreads();
    load_tile({a, 1, stride}, x, x_z, {i0, tile}, {k0, k_tile});
    load_tile({b, 1, stride}, y, y_z, {j0, tile}, {k0, k_tile});
    __syncthreads();
    const int depth = min(k_tile, x.channels - k0);
    for (int k = 0; k < depth; ++k) add_outer(s, a + k * stride + row, b + k * stride + column);
  }
}

/// The sum of x over the block, in a fixed order; valid in thread 0. `scratch` has one float per thread.
template <int threads>
__device__ __forceinline__ float sum_of_block(float* scratch, float x) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  scratch[thread] = x;
  for (int half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) scratch[thread] += scratch[thread + half];
  }
  return scratch[0];
}

/// Blocks (diagonals, segments, z).
template <int threads>
__global__ void __launch_bounds__(threads) lag_gradients_kernel(LagGradientTask task) {
  constexpr int tile = TileShape::tile, tiles_of_chunk = BandChunks::chunk / tile, stride = tile + 1;
  const int diagonal = static_cast<int>(blockIdx.x), segment = static_cast<int>(blockIdx.y);
  const int z = static_cast<int>(blockIdx.z), offset = task.first_diagonal + diagonal;
  const int first = max(0, -offset);
  const int count = max(0, min(TileShape::tiles(task.A.tokens), TileShape::tiles(task.B.tokens) - offset) - first);
  const auto bound = [&](int k) { return first + static_cast<int>(static_cast<long long>(count) * k / task.segments); };
  const float *A = task.A.of(z), *B = task.B.of(z), *G = task.G.of(z), *U = task.U.of(z);

  // in all tiles of a diagonal, an entry has the same lag
  float sum[4][4] = {};
  const bool attended = offset * tile - (tile - 1) <= task.c.last_attended && task.selected.any_in_matrix(z);
  for (int I = bound(segment); attended && I < bound(segment + 1); ++I) {
    const int J = I + offset, chunk = J / tiles_of_chunk;
    if (!task.selected.any_in_tile(z, I, task.A.tokens)) continue;
    if (chunk < task.keys.before(I * tile) || chunk >= task.keys.after(I * tile, task.last_row(I))) continue;
    float s[4][4] = {}, g[4][4] = {};
    multiply_tiles(s, task.A, A, I * tile, task.B, B, J * tile);
    multiply_tiles(g, task.G, G, I * tile, task.U, U, J * tile);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[i][j] = fmaf(s[i][j], g[i][j], sum[i][j]);
  }

  float* all = shared_memory<float>();  // (queries,keys)
  const int thread = static_cast<int>(threadIdx.x), row = thread / 16 * 4, column = thread % 16 * 4;
  __syncthreads();
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) all[(row + i) * stride + column + j] = sum[i][j];
  __syncthreads();
  if (thread >= 2 * tile) return;
  float of_lag = 0;
  const int lag = thread - (tile - 1);  // in the tile: key - query
  for (int i = max(0, -lag); i < min(tile, tile - lag); ++i) of_lag += all[i * stride + i + lag];
  const std::ptrdiff_t block = (static_cast<std::ptrdiff_t>(z) * task.segments + segment) * task.diagonals + diagonal;
  task.diagonal_sums[block * 2 * tile + thread] = of_lag;
}

/// Blocks (tiles of queries, before or after, z).
template <int threads>
__global__ void __launch_bounds__(threads) tail_gradients_kernel(LagGradientTask task) {
  constexpr int tile = TileShape::tile, stride = TileShape::stride;
  float *a = shared_memory<float>(), *g = a + tile * stride;  // (queries,features) (queries,columns)
  const int I = static_cast<int>(blockIdx.x), side = static_cast<int>(blockIdx.y), z = static_cast<int>(blockIdx.z);
  const int r = task.A.channels, columns = task.G.channels, thread = static_cast<int>(threadIdx.x);
  const int row = thread / 16 * 4, column = thread % 16 * 4;
  const std::ptrdiff_t sums = static_cast<std::ptrdiff_t>(z) * (task.keys.count() + 1);
  const std::ptrdiff_t chunk =
      sums + (side == 0 ? task.keys.before(I * tile) : task.keys.after(I * tile, task.last_row(I)));
  const float* M = (side == 0 ? task.before : task.after) + chunk * r * columns;
  float sum = 0;
  for (int f0 = 0; f0 < r; f0 += tile)
    for (int c0 = 0; c0 < columns; c0 += tile) {
      __syncthreads();
      load_tile({a, stride, 1}, task.A, task.A.of(z), {I * tile, tile}, {f0, tile});
      load_tile({g, stride, 1}, task.G, task.G.of(z), {I * tile, tile}, {c0, tile});
      __syncthreads();
      float outer[4][4] = {};
      for (int k = 0; k < tile; ++k) add_outer(outer, a + k * stride + row, g + k * stride + column);
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) {
          const int f = f0 + row + i, c = c0 + column + j;
          if (f < r && c < columns) sum = fmaf(M[static_cast<std::ptrdiff_t>(f) * columns + c], outer[i][j], sum);
        }
    }
  const float all = sum_of_block<threads>(a, sum);
  if (thread == 0) task.tails[(static_cast<std::ptrdiff_t>(side) * task.z + z) * gridDim.x + I] = all;
}

/// Blocks (before or after, positions).
template <int threads>
__global__ void __launch_bounds__(threads) tail_sums_kernel(LagGradientTask task) {
  const int side = static_cast<int>(blockIdx.x), position = static_cast<int>(blockIdx.y);
  const int tiles = TileShape::tiles(task.A.tokens);
  float sum = 0;
  for (int z = position; z < task.z; z += task.positions)
    for (int I = static_cast<int>(threadIdx.x); I < tiles; I += threads)
      sum += task.tails[(static_cast<std::ptrdiff_t>(side) * task.z + z) * tiles + I];
  sum = sum_of_block<threads>(shared_memory<float>(), sum);
  if (threadIdx.x == 0) task.tail_sums[side * task.positions + position] = sum;
}

/// Blocks (lags, positions).
template <int threads>
__global__ void __launch_bounds__(threads) lag_sums_kernel(LagGradientTask task) {
  constexpr int tile = TileShape::tile;
  const int at = static_cast<int>(blockIdx.x * threads + threadIdx.x), position = static_cast<int>(blockIdx.y);
  if (at >= task.c.size) return;
  const int lag = task.c.first + at, offset = (lag < 0 ? lag - (tile - 1) : lag) / tile;  // rounded down
  float sum = 0;
  for (int z = position; z < task.z; z += task.positions)
    for (int segment = 0; segment < task.segments; ++segment)
      for (int more = 0; more < 2; ++more) {  // the two diagonals of tiles that contain the lag
        const int diagonal = offset + more - task.first_diagonal, place = lag - (offset + more) * tile + tile - 1;
        if (diagonal < 0 || diagonal >= task.diagonals || place < 0) continue;
        const std::ptrdiff_t block =
            (static_cast<std::ptrdiff_t>(z) * task.segments + segment) * task.diagonals + diagonal;
        sum += task.diagonal_sums[block * 2 * tile + place];
      }
  if (task.before && lag == task.keys.band.first - 1) sum += task.tail_sums[position];
  if (task.after && lag == task.keys.band.last + 1) sum += task.tail_sums[task.positions + position];
  const float c = task.c(position, lag);
  task.db[static_cast<std::ptrdiff_t>(position) * task.c.size + at] = c == 0 ? 0.0f : c * sum;
}

/// Computes dL/db by tiles, for weights that are constant before a band of lags and constant after it.
class LagGradients {
 public:
  LagGradients() = default;
  LagGradients(const Device& device, int z, int positions, int n_q, int n_k, const Band& band, const DeviceWeights& c)
      : m_z(z), m_positions(positions), m_tiles(TileShape::tiles(n_q)), m_keys{n_k, band}, m_c(c) {
    constexpr int tile = TileShape::tile, chunk = BandChunks::chunk;
    m_first = std::max(-(m_tiles - 1), (band.first - chunk) / tile - 1);
    const int last = std::min(TileShape::tiles(n_k) - 1, (band.last + chunk + tile) / tile + 1);
    m_diagonals = std::max(0, last - m_first + 1);
    const std::ptrdiff_t blocks = std::max<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(m_diagonals) * z, 1);
    m_segments =
        static_cast<int>(std::clamp<std::ptrdiff_t>(2 * device.multiprocessors / blocks, 1, std::max(m_tiles / 4, 1)));
  }

  /// Scratch memory of a call.
  struct Arrays {
    float *diagonal_sums, *tails, *tail_sums;
  };
  Arrays take(Scratch& scratch) const {
    float* diagonal_sums = scratch.take<float>(m_z, m_segments, m_diagonals, 2 * TileShape::tile);
    float* tails = scratch.take<float>(2, m_z, m_tiles);
    return {diagonal_sums, tails, scratch.take<float>(2, m_positions)};
  }

  /// Queues db [position, lags]. `before` and `after` are ChunkTask's sums, or null. `selected` limits the sum to
  /// queries outside of which G is zero.
  void queue(const LagFactors& factors, const SelectedQueries& selected, const float* before, const float* after,
             float* db, const Arrays& arrays, cudaStream_t stream) const {
    const auto& [A, B, G, U] = factors;
    constexpr int threads = TileShape::threads;
    if (m_c.size == 0) return;
    if (m_z == 0) before = after = nullptr;
    const LagGradientTask task{A,
                               B,
                               G,
                               U,
                               m_c,
                               m_keys,
                               selected,
                               m_z,
                               m_positions,
                               m_first,
                               m_diagonals,
                               m_segments,
                               before,
                               after,
                               arrays.diagonal_sums,
                               arrays.tails,
                               arrays.tail_sums,
                               db};
    const unsigned all = static_cast<unsigned>(m_z), positions = static_cast<unsigned>(m_positions);
    const dim3 block{threads, 1, 1};
    if (m_z > 0 && m_diagonals > 0)
      launch("gradients: lags", lag_gradients_kernel<threads>,
             dim3{static_cast<unsigned>(m_diagonals), static_cast<unsigned>(m_segments), all}, block, lags_shared,
             stream, task);
    if (before) {
      launch("gradients: lags beyond the band", tail_gradients_kernel<threads>,
             dim3{static_cast<unsigned>(m_tiles), 2, all}, block, tail_shared, stream, task);
      launch("gradients: sums beyond the band", tail_sums_kernel<threads>, dim3{2, positions, 1}, block,
             threads * sizeof(float), stream, task);
    }
    launch("gradients: sums of lags", lag_sums_kernel<threads>, dim3{blocks_of<threads>(m_c.size), positions, 1}, block,
           0, stream, task);
  }

 private:
  static constexpr std::size_t tile_bytes = sizeof(float) * TileShape::tile * TileShape::stride,
                               lags_shared = tile_bytes, tail_shared = 2 * tile_bytes;

  int m_z = 0, m_positions = 1, m_tiles = 0;
  BandChunks m_keys{};
  DeviceWeights m_c{};
  int m_first = 0, m_diagonals = 0, m_segments = 1;
};

}  // namespace nprf::cuda
