// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/core/row_quotient.hpp"
#include "nprf/cuda/attention/exact/pairs.cuh"
#include "nprf/cuda/device/inlined.cuh"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/position/token_places.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"

namespace nprf::cuda {

/// The gradients of pairs with the weights of exact softmax: near pairs, those of attention sinks, and all pairs of
/// rows by exact softmax. With the denominators D_i of all pairs, in units of exp(scale_i),
///
///     p_ij = exp(q_i.k_j + b_ij - scale_i) / D_i      g_ij = p_ij (dy_i.v_j - dy_i.y_i)
///     dq_i = sum_j g_ij k_j    dk_j = sum_i g_ij q_i    dv_j = sum_i p_ij dy_i    db[lag] = sum_{j-i=lag} g_ij
///
/// of normalised queries and keys. All sums have a fixed order. O(n w (d + p)) for w near keys and sinks of a query,
/// and O(n_k (d + p)) for each row by exact softmax. Near lags of a sequence are sums of diagonals of tiles, which take
/// about n (w / 32 + 6) scalars of memory. Other lags take O(n_q d) each in a matrix that has rows by exact softmax or
/// sinks, and so do near lags on a grid or of fields that are wider than 2,000 tokens.
struct ExactGradients {
  double* log_D;        // [z, n_q]: scale_i + log D_i; +infinity for rows without gradients
  float* dy_y;          // [z, n_q]: dy_i.y_i
  float *dq, *dk, *dv;  // [z, n_q, d] [z, n_k, d] [z, n_k, p]
  float* diagonals;     // [z, tile of queries, near_tiles, 2 tile - 1]: sums of g over tiles of queries and keys
  int near_tiles;       // tiles of keys for which `diagonals` has memory; 0: db does not use it

  static ExactGradients take(Scratch& scratch, const DeviceBias& b, int z, int n_q, int n_k, int d, int p) {
    ExactGradients all{};
    const bool has_diagonals = b.count > 0 && b.near.width > 0 && !b.places.is_grid();
    all.near_tiles = has_diagonals ? ExactPairs::most_near_tiles(b, n_k) : 0;
    if (all.near_tiles > most_near_tiles) all.near_tiles = 0;
    all.diagonals = scratch.take<float>(z, TileShape::tiles(n_q), all.near_tiles, 2 * TileShape::tile - 1);
    all.log_D = scratch.take<double>(z, n_q);
    all.dy_y = scratch.take<float>(z, n_q);
    all.dq = scratch.take<float>(z, n_q, d);
    all.dk = scratch.take<float>(z, n_k, d);
    all.dv = scratch.take<float>(z, n_k, p);
    return all;
  }

 private:
  static constexpr int most_near_tiles = 65;
};

template <Storage S>
struct ExactGradientTask {
  ExactPairs pairs;
  Operand<S> dy;     // (n_q,p)
  Operand<float> V;  // (n_k,p), by channel; zero for keys that affect no gradient
  CheckedSums sums;  // of all pairs
  bool positive;     // whether the features are
  int z, positions;
  const double* log_scales;  // [z, n_q]: scale_i
  const bool* is_exact;      // [z, n_q]: rows by exact softmax
  const int* exact_rows;     // [z]: how many
  ExactGradients to;
  float* db;  // [position, entries], added to: lags, then the border of a grid; null: not requested

  __device__ __forceinline__ float dy_at(int matrix, int i, int c) const {
    return to_float(dy.of(matrix)[i * dy.token_stride + c * dy.channel_stride]);
  }
  __device__ __forceinline__ std::ptrdiff_t row(int matrix, int i) const {
    return static_cast<std::ptrdiff_t>(matrix) * pairs.q.tokens + i;
  }

  /// Sums of g over the diagonals of a tile of queries and its near tile of keys `near_tile`.
  __device__ __forceinline__ float* diagonals(int matrix, int I, int near_tile) const {
    const std::ptrdiff_t tile_of_queries = static_cast<std::ptrdiff_t>(matrix) * TileShape::tiles(pairs.q.tokens) + I;
    return to.diagonals + (tile_of_queries * to.near_tiles + near_tile) * (2 * TileShape::tile - 1);
  }

  /// p and g of a pair, from s = q.k and dy.v.
  __device__ __forceinline__ float2 gradients(int matrix, int i, int j, float s, float dy_v) const {
    if (i >= pairs.q.tokens) return make_float2(0, 0);
    const double bias = pairs.bias(matrix, i, j, !is_exact[row(matrix, i)]);
    const double log_weight = ExactPairs::exponent(s, bias) - to.log_D[row(matrix, i)];
    if (bias == minus_infinity || log_weight == minus_infinity) return make_float2(0, 0);
    const float p = expf(static_cast<float>(log_weight));
    return make_float2(p, p * (dy_v - to.dy_y[row(matrix, i)]));
  }
};

/// Computes log_D and dy_y. `lanes` threads a row, which load whole sectors.
template <Storage S, int lanes>
__global__ void __launch_bounds__(256) exact_rows_kernel(ExactGradientTask<S> task) {
  start_kernel();
  const std::ptrdiff_t row = (static_cast<std::ptrdiff_t>(blockIdx.x) * 256 + threadIdx.x) / lanes;
  const int n_q = task.pairs.q.tokens, lane = static_cast<int>(threadIdx.x) % lanes;
  const bool is_inside = row < task.sums.sums.rows;
  const int z = is_inside ? static_cast<int>(row / n_q) : 0, i = is_inside ? static_cast<int>(row % n_q) : 0;
  const float D = is_inside ? task.sums.denominator(row) : 0.0f;
  const bool has_gradients = is_inside && (D != D || denominator_keeps_precision(D, task.positive));
  float dy_y = 0;
  for (int c = lane; has_gradients && c < task.dy.channels; c += lanes)
    dy_y = fmaf(task.dy_at(z, i, c), task.sums.quotient(z, row, c, D), dy_y);
  dy_y = over_warp<lanes>(dy_y, [](float a, float b) { return a + b; });
  if (!is_inside || lane > 0) return;
  task.to.log_D[row] = has_gradients ? task.log_scales[row] + log(static_cast<double>(D)) : -minus_infinity;
  task.to.dy_y[row] = dy_y;
}

/// Of a tile of queries and one of keys, those whose rows get sums over the others.
enum class PairSide { queries, keys };

/// A tile of queries and one of keys: p and g of its pairs, and their products with other rows. A block of 16 x 16
/// threads; all of them must call all functions.
template <Storage S, PairSide side>
class ExactPairTile {
 public:
  static constexpr std::size_t shared =
      sizeof(float) * (2 * TileShape::k_tile + 2 * TileShape::tile) * static_cast<std::size_t>(TileShape::stride);

  __device__ __forceinline__ ExactPairTile(const ExactGradientTask<S>& task, int z, int i0, int j0)
      : m_task(task), m_z(z), m_i0(i0), m_j0(j0) {
    float of_p[4][4] = {}, of_g[4][4] = {};
    add_products(of_p, task.pairs.q, i0, task.pairs.k, j0);
    add_products(of_g, task.dy, i0, task.V, j0);
    // q.k and dy.v, and then p and g, of this thread's pairs, in an array that is indexed at run time, so that one copy
    // of the code computes all pairs. It may replace the previous p and g: add_products has synchronised the threads
    for_each([&](int i, int j) { own(4 * i + j) = of_p[i][j], own(16 + 4 * i + j) = of_g[i][j]; });
#pragma unroll 1
    for (int pair = 0; pair < 16; ++pair) {
      const float2 of_pair =
          task.gradients(z, i0 + row() + pair / 4, j0 + column() + pair % 4, own(pair), own(16 + pair));
      own(pair) = of_pair.x;
      own(16 + pair) = of_pair.y;
    }
    for_each([&](int i, int j) { of_p[i][j] = own(4 * i + j), of_g[i][j] = own(16 + 4 * i + j); });
    __syncthreads();
    if constexpr (side == PairSide::keys) store_pairs(p(), of_p);
    store_pairs(g(), of_g);
  }

  /// dq_i += sum_j g_ij k_j
  __device__ __forceinline__ void add_to_queries() const
    requires(side == PairSide::queries)
  {
    const Operand<float>& k = m_task.pairs.k;
    add_rows(m_task.to.dq + m_task.row(m_z, 0) * k.channels, m_i0, m_task.pairs.q.tokens, g(), k, m_j0);
  }
  /// dk_j += sum_i g_ij q_i and dv_j += sum_i p_ij dy_i
  __device__ __forceinline__ void add_to_keys() const
    requires(side == PairSide::keys)
  {
    const std::ptrdiff_t n_k = m_task.pairs.k.tokens;
    const Operand<float>& q = m_task.pairs.q;
    add_rows(m_task.to.dk + m_z * n_k * q.channels, m_j0, static_cast<int>(n_k), g(), q, m_i0);
    add_rows(m_task.to.dv + m_z * n_k * m_task.dy.channels, m_j0, static_cast<int>(n_k), p(), m_task.dy, m_i0);
  }
  /// sums[tile - 1 + s - t] = the sum of g over the pairs of queries t and keys s of the tile. To be called after
  /// add_to_queries(), which synchronises the threads.
  __device__ __forceinline__ void store_diagonals(float* sums) const
    requires(side == PairSide::queries)
  {
    const int at = static_cast<int>(threadIdx.x);
    if (at >= 2 * tile - 1) return;
    const int lag = at - (tile - 1);
    float sum = 0;
    for (int s = max(0, lag); s < min(tile, tile + lag); ++s) sum += g()[TileShape::pair(s, s - lag)];
    sums[at] = sum;
  }

 private:
  static constexpr int tile = TileShape::tile, k_tile = TileShape::k_tile, stride = TileShape::stride;

  __device__ __forceinline__ static float* a() { return shared_memory<float>(); }  // (k_tile,tile)
  __device__ __forceinline__ static float* b() { return a() + k_tile * stride; }   // (k_tile,tile)
  __device__ __forceinline__ static float* x() { return a(); }                     // (tile,tile), in place of a and b
  // (tile,tile): the entry of a token t of `side` and an s of the other is at TileShape::pair(s, t)
  __device__ __forceinline__ static float* p() { return b() + k_tile * stride; }
  __device__ __forceinline__ static float* g() { return p() + tile * stride; }
  // entry k of this thread's array, in place of p and g
  __device__ __forceinline__ static float& own(int k) {
    return p()[k * TileShape::threads + static_cast<int>(threadIdx.x)];
  }
  static_assert(2 * k_tile >= tile && 32 * TileShape::threads <= 2 * tile * stride);
  // this thread's pairs are those of queries row() + i and keys column() + j
  __device__ __forceinline__ static int row() { return static_cast<int>(threadIdx.x) / 16 * 4; }
  __device__ __forceinline__ static int column() { return static_cast<int>(threadIdx.x) % 16 * 4; }
  template <class F>
  __device__ __forceinline__ static void for_each(F&& f) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) inlined(f, i, j);
  }

  // s += x y^T of a tile of x and a tile of y
  template <class X>
  __device__ __forceinline__ void add_products(float (&s)[4][4], const Operand<X>& x, int i0, const Operand<float>& y,
                                               int j0) const {
    for (int k0 = 0; k0 < x.channels; k0 += k_tile) {
      __syncthreads();
      load_tile_of_rows<tile, k_tile, TileShape::threads, stride>(a(), x, x.of(m_z), i0, k0);
      load_tile_of_rows<tile, k_tile, TileShape::threads, stride>(b(), y, y.of(m_z), j0, k0);
      __syncthreads();
      for (int k = 0; k < min(k_tile, x.channels - k0); ++k)
        add_outer(s, a() + k * stride + row(), b() + k * stride + column());
    }
  }
  __device__ __forceinline__ static void store_pairs(float* to, const float (&of)[4][4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if constexpr (side == PairSide::keys)
        *reinterpret_cast<float4*>(to + TileShape::pair(row() + k, column())) =
            make_float4(of[k][0], of[k][1], of[k][2], of[k][3]);
      else
        *reinterpret_cast<float4*>(to + TileShape::pair(column() + k, row())) =
            make_float4(of[0][k], of[1][k], of[2][k], of[3][k]);
  }

  // row t0 + t of `to` (n,channels) += sum_s weights(s, t) x_{s0 + s}; pairs of weight 0 are left out, even if x is not
  // finite
  template <class X>
  __device__ __forceinline__ void add_rows(float* to, int t0, int n, const float* weights, const Operand<X>& from,
                                           int s0) const {
    const int channels = from.channels, count = min(tile, from.tokens - s0);
    for (int c0 = 0; c0 < channels; c0 += tile) {
      __syncthreads();
      const bool has_nonfinite =
          __syncthreads_or(load_tile<tile, tile, TileShape::threads, 4>({x(), stride, 1}, from, from.of(m_z), s0, c0));
      float sums[4][4] = {};
      for (int s = 0; s < count; ++s) {
        const float *of_s = weights + TileShape::pair(s, row()), *x_s = x() + s * stride + column();
        if (has_nonfinite)
          for_each([&](int i, int j) { sums[i][j] = of_s[i] == 0 ? sums[i][j] : fmaf(of_s[i], x_s[j], sums[i][j]); });
        else
          add_outer(sums, of_s, x_s);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int t = t0 + row() + i, c = c0 + column();
        float* at = to + static_cast<std::ptrdiff_t>(t) * channels + c;
        if (t >= n || c >= channels) continue;
        if (channels % 4 == 0) {
          const float4 before = *reinterpret_cast<const float4*>(at);
          *reinterpret_cast<float4*>(at) =
              make_float4(before.x + sums[i][0], before.y + sums[i][1], before.z + sums[i][2], before.w + sums[i][3]);
        } else {
#pragma unroll
          for (int j = 0; j < 4; ++j)
            if (c + j < channels) at[j] += sums[i][j];
        }
      }
    }
  }

  const ExactGradientTask<S>& m_task;
  int m_z, m_i0, m_j0;
};

/// Whether a tile of queries has a row by exact softmax. All threads of the block must call it.
template <Storage S>
__device__ __forceinline__ bool has_exact_row(const ExactGradientTask<S>& task, int z, int i0) {
  if (task.exact_rows[z] == 0) return false;
  const int thread = static_cast<int>(threadIdx.x), i = i0 + thread;
  return __syncthreads_or(thread < TileShape::tile && i < task.pairs.q.tokens && task.is_exact[task.row(z, i)]);
}

/// Computes dq, and the diagonals. Blocks (tiles of queries, z).
template <Storage S>
__global__ void __launch_bounds__(TileShape::threads) exact_queries_kernel(ExactGradientTask<S> task) {
  start_kernel();
  constexpr int tile = TileShape::tile;
  const int z = static_cast<int>(blockIdx.y), i0 = static_cast<int>(blockIdx.x) * tile, n_k = task.pairs.k.tokens;
  const KeyTiles near = task.to.near_tiles > 0 ? task.pairs.near_tiles(z, i0 / tile) : KeyTiles{0, 0};
  const int last = min(i0 + tile, task.pairs.q.tokens) - 1;
  const bool all = has_exact_row(task, z, i0);
  const ExactPairs::Tiles tiles =
      task.pairs.tiles_with(z, all ? ExactPairs::Keys{0, n_k} : task.pairs.near_keys(i0, last));
#pragma unroll 1
  for (int k = 0; k < tiles.count; ++k) {
    const ExactPairTile<S, PairSide::queries> pairs(task, z, i0, tiles(k));
    pairs.add_to_queries();
    const int J = tiles(k) / tile;
    if (task.db && J >= near.first && J < near.end) pairs.store_diagonals(task.diagonals(z, i0 / tile, J - near.first));
  }
}

/// Computes dk and dv. Blocks (tiles of keys, z).
template <Storage S>
__global__ void __launch_bounds__(TileShape::threads) exact_keys_kernel(ExactGradientTask<S> task) {
  start_kernel();
  constexpr int tile = TileShape::tile;
  const int z = static_cast<int>(blockIdx.y), j0 = static_cast<int>(blockIdx.x) * tile, n_q = task.pairs.q.tokens;
  const auto [first, end] = task.pairs.near_queries(j0, min(j0 + tile, task.pairs.k.tokens) - 1);
  const ExactPairs::Keys sinks = task.pairs.sinks(z);
  const bool has_sinks = j0 < sinks.end && j0 + tile > sinks.first;
  for (int i0 = 0; i0 < n_q; i0 += tile)
    if (has_exact_row(task, z, i0) || has_sinks || (first < end && i0 + tile > first && i0 < end))
      ExactPairTile<S, PairSide::keys>(task, z, i0, j0).add_to_keys();
}

/// The sum of g over the pairs of matrix z at lag j - i of a sequence, which is near, from the diagonals: the part of a
/// thread of `threads`.
template <Storage S>
__device__ __forceinline__ float near_lag_gradient(const ExactGradientTask<S>& task, int z, int lag, int thread,
                                                   int threads) {
  constexpr int tile = TileShape::tile;
  const int tiles_of_lag =
      (lag < 0 ? lag - (tile - 1) : lag) / tile;  // rounded down: the lag is in this tile and the next
  float sum = 0;
  for (int I = thread; I < TileShape::tiles(task.pairs.q.tokens); I += threads) {
    const KeyTiles near = task.pairs.near_tiles(z, I);
    for (int J = max(near.first, I + tiles_of_lag); J < min(near.end, I + tiles_of_lag + 2); ++J) {
      const int at = lag - (J - I) * tile + tile - 1;
      if (at < 2 * tile - 1 && at >= 0) sum += task.diagonals(z, I, J - near.first)[at];
    }
  }
  return sum;
}

/// The sum of g over the pairs of matrix z that an entry of db has, from their queries, keys and values: likewise.
template <Storage S>
__device__ __forceinline__ float entry_gradient(const ExactGradientTask<S>& task, int z, int entry, int thread,
                                                int threads) {
  const DeviceBias& b = task.pairs.b;
  const int n_q = task.pairs.q.tokens;
  const bool is_near = entry < b.size && b.is_near(entry);
  const ExactPairs::Keys sinks = task.pairs.sinks(z);
  const bool only_sinks = !is_near && task.exact_rows[z] == 0;
  if (only_sinks && sinks.end == 0) return 0;
  const PairsOfEntry of_grid{b.places, b.first, b.size, entry};
  const int count = b.places.is_grid() ? of_grid.count() : n_q;
  // in a sequence key j of the entry is that of query j + first
  const int first = n_q - 1 - entry;
  const bool is_short = only_sinks && !b.places.is_grid();
  const int end = is_short ? min(count, first + sinks.end) : count;
  float sum = 0;
  for (int k = (is_short ? max(0, first + sinks.first) : 0) + thread; k < end; k += threads) {
    const TokenPair at = b.places.is_grid() ? of_grid[k] : TokenPair{k, k - first};
    if (at.query < 0 || at.key < 0 || at.key >= task.pairs.k.tokens) continue;
    if (!is_near && at.key >= sinks.end && !task.is_exact[task.row(z, at.query)]) continue;
    const float *q = task.pairs.q.of(z) + at.query * task.pairs.q.token_stride,
                *key = task.pairs.k.of(z) + at.key * task.pairs.k.token_stride,
                *v = task.V.of(z) + at.key * task.V.token_stride;
    float s = 0, dy_v = 0;
    for (int c = 0; c < task.pairs.q.channels; ++c) s = fmaf(q[c], key[c], s);
    for (int c = 0; c < task.dy.channels; ++c)
      dy_v = fmaf(task.dy_at(z, at.query, c), v[c * task.V.channel_stride], dy_v);
    sum += task.gradients(z, at.query, at.key, s, dy_v).y;
  }
  return sum;
}

/// Adds to db. Blocks (entries, positions).
template <Storage S, int threads>
__global__ void __launch_bounds__(threads) exact_entries_kernel(ExactGradientTask<S> task) {
  start_kernel();
  const DeviceBias& b = task.pairs.b;
  const int thread = static_cast<int>(threadIdx.x), position = static_cast<int>(blockIdx.y);
  const int entry = static_cast<int>(blockIdx.x), lag = entry - (task.pairs.q.tokens - 1);
  const bool from_diagonals = task.to.near_tiles > 0 && b.is_near(entry);
  float sum = 0;
  for (int z = position; z < task.z; z += task.positions)
    sum += from_diagonals ? near_lag_gradient(task, z, lag, thread, threads)
                          : entry_gradient(task, z, entry, thread, threads);
  if (!__syncthreads_or(sum != 0)) return;
  float* sums = shared_memory<float>();
  sums[thread] = sum;
  for (int half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) sums[thread] += sums[thread + half];
  }
  if (thread == 0) task.db[static_cast<std::ptrdiff_t>(position) * gridDim.x + blockIdx.x] += sums[0];
}

/// Queues all gradients, after those of db by the engine.
template <Storage S>
void queue_exact_gradients(const ExactGradientTask<S>& task, cudaStream_t stream) {
  const int n_q = task.pairs.q.tokens, n_k = task.pairs.k.tokens;
  const unsigned z = static_cast<unsigned>(task.z);
  const dim3 block{TileShape::threads, 1, 1};
  const auto clear = [&](float* x, int n, int channels) {
    queue_fill("clearing gradients", x, 0,
               sizeof(float) * z * static_cast<std::size_t>(n) * static_cast<std::size_t>(channels), stream);
  };
  clear(task.to.dq, n_q, task.pairs.q.channels);
  clear(task.to.dk, n_k, task.pairs.q.channels);
  clear(task.to.dv, n_k, task.dy.channels);
  if (n_q == 0 || n_k == 0 || z == 0) return;
  constexpr int lanes = 8;
  launch("exact gradients: rows", exact_rows_kernel<S, lanes>, dim3{blocks_of<256 / lanes>(task.sums.sums.rows), 1, 1},
         block, 0, stream, task);
  launch("exact gradients: queries", exact_queries_kernel<S>, dim3{blocks_of<TileShape::tile>(n_q), z, 1}, block,
         ExactPairTile<S, PairSide::queries>::shared, stream, task);
  launch("exact gradients: keys", exact_keys_kernel<S>, dim3{blocks_of<TileShape::tile>(n_k), z, 1}, block,
         ExactPairTile<S, PairSide::keys>::shared, stream, task);
  constexpr int threads = 128;
  if (task.db)
    launch("exact gradients: lags", exact_entries_kernel<S, threads>,
           dim3{static_cast<unsigned>(task.pairs.b.size + task.pairs.b.places.border_size()),
                static_cast<unsigned>(task.positions), 1},
           dim3{threads, 1, 1}, threads * sizeof(float), stream, task);
}

}  // namespace nprf::cuda
