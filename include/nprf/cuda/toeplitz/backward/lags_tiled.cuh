// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/reductions.cuh"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/toeplitz/backward/lag_factors.cuh"
#include "nprf/cuda/toeplitz/backward/selected_queries.cuh"
#include "nprf/cuda/toeplitz/banded/kernel.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"
#include "nprf/cuda/toeplitz/engine.cuh"

namespace nprf::cuda {

/// Computes the gradient dL/db of the bias of each lag by tiles, where Y = ((A B^T) o C) U, c = exp(b) and G = dL/dY:
///
///     db[lag] = c[lag] sum_{j - i = lag} (A_i.B_j) (G_i.U_j)
///
/// It is summed along diagonals of tiles. For the lags of a tail, on one side of the band, only the sum of their
/// gradients is computed. It is stored at the lag of the tail next to the band, the edge. The states S of
/// toeplitz/banded/kernel.cuh give this sum:
///
///     sum_{lags of the tail} db[lag] = sum_i c[anchor - i] A_i^T S G_i.
///
/// If the tails have a slope, the gradient of the slope also needs the first moments. They are computed with states S'
/// whose weights are multiplied by |j - anchor|. If the weights of the tail fall outwards, the keys j lie further
/// outside than the anchor, and the sign of S' is +; if they rise, the keys lie further inside, and it is -:
///
///     sum_{lags} |lag - edge| db[lag] = sum_i c[anchor - i] A_i^T (|anchor - i - edge| S +- S') G_i.
struct LagGradientTask : LagFactors {
  DeviceWeights c;
  BandChunks keys;
  SelectedQueries selected;                               // queries that are summed over
  int z, positions, first_diagonal, diagonals, segments;  // diagonals of tiles, each summed in `segments` parts
  TailSlope slope;
  const float *before, *after;                  // ChunkTask's states; null: no lag is outside the band
  const float *moments_before, *moments_after;  // the states with factors |j - anchor|; null: without a slope
  float* diagonal_sums;                         // [z, segment, diagonal, 2 * tile]: for the lags of a diagonal of tiles
  float* tails;      // [sum or first moment, before or after, z, tile of queries]; not yet times c if there is no slope
  float* tail_sums;  // [sum or first moment, before or after, position]
  float* db;         // [position, lags]

  // the last query of tile I
  __device__ int last_row(int I) const { return min((I + 1) * TileShape::tile, A.tokens) - 1; }
};

/// s += x y^T for the tile of x from token i0 on and the tile of y from token j0 on, of the matrices at x_z and y_z.
/// All 256 threads of the block take part.
__device__ __forceinline__ void multiply_tiles(float (&s)[4][4], const Operand<float>& x, const float* x_z, int i0,
                                               const Operand<float>& y, const float* y_z, int j0) {
  constexpr int tile = TileShape::tile, k_tile = TileShape::k_tile, stride = TileShape::stride;
  float *a = shared_memory<float>(), *b = a + k_tile * stride;
  const int row = static_cast<int>(threadIdx.x) / 16 * 4, column = static_cast<int>(threadIdx.x) % 16 * 4;
  for (int k0 = 0; k0 < x.channels; k0 += k_tile) {
    __syncthreads();
    load_tile<tile, k_tile, TileShape::threads>({a, 1, stride}, x, x_z, i0, k0);
    load_tile<tile, k_tile, TileShape::threads>({b, 1, stride}, y, y_z, j0, k0);
    __syncthreads();
    const int depth = min(k_tile, x.channels - k0);
    for (int k = 0; k < depth; ++k) add_outer(s, a + k * stride + row, b + k * stride + column);
  }
}

/// Computes diagonal_sums. blockIdx.x: diagonal of tiles, blockIdx.y: segment of the diagonal, blockIdx.z: z.
template <int threads>
__global__ void __launch_bounds__(threads) lag_gradients_kernel(LagGradientTask task) {
  start_kernel();
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
  const SelectedQueries::Tiles tiles =
      task.selected.tiles_of(z, task.A.tokens, bound(segment), attended ? bound(segment + 1) : bound(segment));
  for (int k = tiles.first; k < tiles.end; ++k) {
    const int I = tiles.tile(k), J = I + offset, chunk = J / tiles_of_chunk;
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

/// For query i and the state of a tail: weight(i) = c[anchor - i], which the state is multiplied by, and distance(i),
/// the distance of the lag anchor - i from the edge.
struct TailRows {
  const DeviceWeights& c;
  int head, anchor, edge;

  __device__ __forceinline__ float weight(int i) const { return c(head, anchor - i); }
  __device__ __forceinline__ float distance(int i) const {
    const int lag = anchor - i - edge;
    return static_cast<float>(lag < 0 ? -lag : lag);
  }
};

/// tile[t] *= factor(first + t) for a tile (queries,channels). All threads of the block take part.
template <class Factor>
__device__ __forceinline__ void scale_rows(float* tile, int first, Factor&& factor) {
  constexpr int size = TileShape::tile;
  for (int e = static_cast<int>(threadIdx.x); e < size * size; e += static_cast<int>(blockDim.x)) {
    float& x = tile[e / size * TileShape::stride + e % size];
    const float by = factor(first + e / size);
    x = by == 0 ? 0.0f : by * x;
  }
}

/// Computes `tails`. blockIdx.x: tile of queries, blockIdx.y: 0 before the band, 1 after it, blockIdx.z: z.
template <int threads>
__global__ void __launch_bounds__(threads) tail_gradients_kernel(LagGradientTask task) {
  start_kernel();
  constexpr int tile = TileShape::tile, stride = TileShape::stride;
  float *a = shared_memory<float>(), *g = a + tile * stride;  // (queries,features) (queries,columns)
  const int I = static_cast<int>(blockIdx.x), side = static_cast<int>(blockIdx.y), z = static_cast<int>(blockIdx.z);
  const int r = task.A.channels, columns = task.G.channels, thread = static_cast<int>(threadIdx.x);
  const int row = thread / 16 * 4, column = thread % 16 * 4, head = z % task.A.heads;
  const int k = side == 0 ? task.keys.before(I * tile) : task.keys.after(I * tile, task.last_row(I));
  const std::ptrdiff_t first = (static_cast<std::ptrdiff_t>(z) * (task.keys.count() + 1) + k) * r * columns;
  const float* S = (side == 0 ? task.before : task.after) + first;
  const double slope = task.slope(head);
  const TailRows rows{task.c, head, task.keys.anchor(side == 0 ? TailSide::before : TailSide::after, k, slope),
                      side == 0 ? task.keys.band.first - 1 : task.keys.band.last + 1};
  const bool has_slope = !task.slope.is_zero(), has_keys = side == 0 ? k > 0 : k < task.keys.count();
  const bool is_zero = has_slope && (!has_keys || (rows.weight(I * tile) == 0 && rows.weight(task.last_row(I)) == 0));
  float sum = 0, moment = 0;
  for (int f0 = 0; !is_zero && f0 < r; f0 += tile)
    for (int c0 = 0; c0 < columns; c0 += tile) {
      const auto add = [&](float& to, const float* X, float sign) {
        float outer[4][4] = {};
        for (int t = 0; t < tile; ++t) add_outer(outer, a + t * stride + row, g + t * stride + column);
        for (int i = 0; i < 4; ++i)
          for (int j = 0; j < 4; ++j) {
            const int f = f0 + row + i, c = c0 + column + j;
            if (f < r && c < columns)
              to = fmaf(sign * X[static_cast<std::ptrdiff_t>(f) * columns + c], outer[i][j], to);
          }
      };
      __syncthreads();
      load_tile<tile, tile, TileShape::threads>({a, stride, 1}, task.A, task.A.of(z), I * tile, f0);
      load_tile<tile, tile, TileShape::threads>({g, stride, 1}, task.G, task.G.of(z), I * tile, c0);
      __syncthreads();
      if (has_slope) {
        scale_rows(a, I * tile, [&](int i) { return rows.weight(i); });
        __syncthreads();
      }
      add(sum, S, 1);
      if (!has_slope) continue;
      add(moment, (side == 0 ? task.moments_before : task.moments_after) + first, slope > 0 ? -1.0f : 1.0f);
      __syncthreads();
      scale_rows(a, I * tile, [&](int i) { return rows.distance(i); });
      __syncthreads();
      add(moment, S, 1);
    }
  const auto store = [&](int what, float x) {
    const float all = over_block<threads>(a, x, Sum());
    const std::ptrdiff_t at = (static_cast<std::ptrdiff_t>(what) * 2 + side) * task.z + z;
    if (thread == 0) task.tails[at * gridDim.x + I] = all;
  };
  store(0, sum);
  if (has_slope) store(1, moment);
}

/// Computes tail_sums from `tails`. blockIdx.x: 0 before the band, 1 after it, blockIdx.y: position, blockIdx.z: 0 for
/// the sum, 1 for the first moment.
template <int threads>
__global__ void __launch_bounds__(threads) tail_sums_kernel(LagGradientTask task) {
  start_kernel();
  const int side = static_cast<int>(blockIdx.z) * 2 + static_cast<int>(blockIdx.x);
  const int position = static_cast<int>(blockIdx.y), tiles = TileShape::tiles(task.A.tokens);
  float sum = 0;
  for (int z = position; z < task.z; z += task.positions)
    for (int I = static_cast<int>(threadIdx.x); I < tiles; I += threads)
      sum += task.tails[(static_cast<std::ptrdiff_t>(side) * task.z + z) * tiles + I];
  sum = over_block<threads>(shared_memory<float>(), sum, Sum());
  if (threadIdx.x == 0) task.tail_sums[side * task.positions + position] = sum;
}

/// Computes db from diagonal_sums and tail_sums. blockIdx.x and threadIdx.x: lag, blockIdx.y: position.
template <int threads>
__global__ void __launch_bounds__(threads) lag_sums_kernel(LagGradientTask task) {
  start_kernel();
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
  float of_tails = 0;
  if (task.before && lag == task.keys.band.first - 1) of_tails += task.tail_sums[position];
  if (task.after && lag == task.keys.band.last + 1) of_tails += task.tail_sums[task.positions + position];
  const bool is_weighted = !task.slope.is_zero();
  if (!is_weighted) sum += of_tails;
  const float c = task.c(position, lag);
  task.db[static_cast<std::ptrdiff_t>(position) * task.c.size + at] =
      (c == 0 ? 0.0f : c * sum) + (is_weighted ? of_tails : 0.0f);
}

/// Computes dL/db by tiles, for weights with tails outside of a band.
class LagGradients {
 public:
  LagGradients() = default;
  /// `columns` is the number of columns of G.
  LagGradients(const Device& device, const ProductShape& shape, const ToeplitzWeights& weights, int columns)
      : m_z(shape.z),
        m_positions(weights.positions),
        m_tiles(TileShape::tiles(shape.n_q)),
        m_state(static_cast<std::size_t>(shape.r) * static_cast<std::size_t>(columns)),
        m_keys{shape.n_k, weights.band},
        m_c(weights.c),
        m_slope(weights.tail_slope) {
    constexpr int tile = TileShape::tile, chunk = BandChunks::chunk;
    m_first = std::max(-(m_tiles - 1), (weights.band.first - chunk) / tile - 1);
    const int last = std::min(TileShape::tiles(shape.n_k) - 1, (weights.band.last + chunk + tile) / tile + 1);
    m_diagonals = std::max(0, last - m_first + 1);
    const std::ptrdiff_t blocks = std::max<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(m_diagonals) * m_z, 1);
    m_segments =
        static_cast<int>(std::clamp<std::ptrdiff_t>(2 * device.multiprocessors / blocks, 1, std::max(m_tiles / 4, 1)));
  }

  /// Scratch memory of a call.
  struct Arrays {
    float *diagonal_sums, *tails, *tail_sums, *moments_before, *moments_after;
  };
  Arrays take(Scratch& scratch) const {
    Arrays arrays{};
    arrays.diagonal_sums = scratch.take<float>(m_z, m_segments, m_diagonals, 2 * TileShape::tile);
    arrays.tails = scratch.take<float>(4, m_z, m_tiles);
    arrays.tail_sums = scratch.take<float>(4, m_positions);
    if (m_slope.is_zero()) return arrays;
    const std::size_t states = static_cast<std::size_t>(m_z) * static_cast<std::size_t>(m_keys.count() + 1) * m_state;
    arrays.moments_before = scratch.take<float>(states);
    arrays.moments_after = scratch.take<float>(states);
    return arrays;
  }

  /// The first moments [before or after, position] of the tails, which the gradient of the slope needs besides db. They
  /// are valid when what queue() has queued is complete. Null if there are none.
  const float* moments(const Arrays& arrays, const float* before) const {
    return before && m_z > 0 && m_c.size > 0 && !m_slope.is_zero() ? arrays.tail_sums + 2 * m_positions : nullptr;
  }

  /// Queues the computation of db [position, lags]. `before` and `after` are ChunkTask's states, or null. Only the
  /// queries of `selected` are summed over; G must be zero for all others.
  void queue(const LagFactors& factors, const SelectedQueries& selected, const float* before, const float* after,
             float* db, const Arrays& arrays, cudaStream_t stream) const {
    constexpr int threads = TileShape::threads;
    if (m_c.size == 0) return;
    if (m_z == 0) before = after = nullptr;
    const bool has_moments = before && !m_slope.is_zero();
    if (has_moments) {
      Operand<float> V = factors.U;
      --V.channels;  // the last one has the ones
      queue_chunks<float, float>({{factors.A, factors.B, {V, nullptr}, m_c},
                                  arrays.moments_before,
                                  arrays.moments_after,
                                  m_slope,
                                  before,
                                  after},
                                 m_z, stream);
    }
    const LagGradientTask task{factors,
                               m_c,
                               m_keys,
                               selected,
                               m_z,
                               m_positions,
                               m_first,
                               m_diagonals,
                               m_segments,
                               m_slope,
                               before,
                               after,
                               arrays.moments_before,
                               arrays.moments_after,
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
      launch("gradients: sums beyond the band", tail_sums_kernel<threads>, dim3{2, positions, has_moments ? 2u : 1u},
             block, threads * sizeof(float), stream, task);
    }
    launch("gradients: sums of lags", lag_sums_kernel<threads>, dim3{blocks_of<threads>(m_c.size), positions, 1}, block,
           0, stream, task);
  }

 private:
  static constexpr std::size_t tile_bytes = sizeof(float) * TileShape::tile * TileShape::stride,
                               lags_shared = tile_bytes, tail_shared = 2 * tile_bytes;

  int m_z = 0, m_positions = 1, m_tiles = 0;
  std::size_t m_state = 0;  // scalars of a state
  BandChunks m_keys{};
  DeviceWeights m_c{};
  TailSlope m_slope{};
  int m_first = 0, m_diagonals = 0, m_segments = 1;
};

}  // namespace nprf::cuda
