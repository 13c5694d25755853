// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/core/row_quotient.hpp"
#include "nprf/cuda/attention/exact/pair_tile.cuh"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/reductions.cuh"
#include "nprf/cuda/position/token_places.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"

namespace nprf::cuda {

/// The sum of g over the pairs of matrix z whose lag is `lag` = j - i, for a near lag of a sequence, from the
/// diagonals. `threads` threads divide the sum; this is the part of thread `thread`.
template <Storage S>
__device__ __forceinline__ float near_lag_gradient(const ExactGradientTask<S>& task, int z, int lag, int thread,
                                                   int threads) {
  constexpr int tile = TileShape::tile;
  const int tiles_of_lag =
      (lag < 0 ? lag - (tile - 1) : lag) / tile;  // rounded down: tiles with the lag have J - I = this or 1 more
  float sum = 0;
  for (int I = thread; I < TileShape::tiles(task.pairs.n_q); I += threads) {
    const KeyTiles near = task.pairs.near_tiles(z, I);
    for (int J = max(near.first, I + tiles_of_lag); J < min(near.end, I + tiles_of_lag + 2); ++J) {
      const int at = lag - (J - I) * tile + tile - 1;
      if (at < 2 * tile - 1 && at >= 0) sum += task.diagonals(z, I, J - near.first)[at];
    }
  }
  return sum;
}

/// What a pair adds to db, from its rows and dy_v = dy_i.v_j.
template <Storage S, class Scores>
__device__ __forceinline__ float pair_gradient(const ExactGradientTask<S>& task, const Scores& scores, int z, int i,
                                               int j, float dy_v) {
  const auto *q = scores.q.of(z) + i * scores.q.token_stride, *k = scores.k.of(z) + j * scores.k.token_stride;
  const float of_q = scores.factors_of_q(z)(i), of_k = scores.factors_of_k(z)(j);
  float s = 0;
  for (int c = 0; c < scores.q.channels; ++c)
    s = fmaf(of_q * to_float(q[c * scores.q.channel_stride]), of_k * to_float(k[c * scores.k.channel_stride]), s);
  return Scores::weight(s, task.gradients(scores, z, i, j, s, dy_v).y);
}

/// A part of db[entry] of matrix z, which is one head of one sequence: the sum of g = dL/db_ij over the pairs whose
/// bias is that entry, from their queries, keys and values. `threads` threads divide it; this is the part of thread
/// `thread`.
template <Storage S>
__device__ __forceinline__ float entry_gradient(const ExactGradientTask<S>& task, int z, int entry, int thread,
                                                int threads) {
  const DeviceBias& b = task.pairs.b;
  const int n_q = task.pairs.n_q;
  const bool is_near = entry < b.size && b.is_near(entry);
  const ExactPairs::Keys sinks = task.pairs.sinks(z);
  const bool only_sinks = !is_near && task.recomputed_rows[z] == 0;
  if (only_sinks && sinks.end == 0) return 0;
  const PairsOfEntry of_grid{b.places, b.first, b.size, entry};
  const int count = b.places.is_grid() ? of_grid.count() : n_q;
  // in a sequence the pairs of the entry are those of query j + first and key j
  const int first = n_q - 1 - entry;
  const bool is_short = only_sinks && !b.places.is_grid();
  const int end = is_short ? min(count, first + sinks.end) : count;
  float sum = 0;
  for (int k = (is_short ? max(0, first + sinks.first) : 0) + thread; k < end; k += threads) {
    const TokenPair at = b.places.is_grid() ? of_grid[k] : TokenPair{k, k - first};
    if (at.query < 0 || at.key < 0 || at.key >= task.pairs.n_k) continue;
    const RowKind kind = task.kinds[task.row(z, at.query)];
    if (!is_near && at.key >= sinks.end && kind == RowKind::field) continue;
    const float* v = task.V.of(z) + at.key * task.V.token_stride;
    float dy_v = 0;
    for (int c = 0; c < task.dy.channels; ++c)
      dy_v = fmaf(task.dy_at(z, at.query, c), v[c * task.V.channel_stride], dy_v);
    sum += kind == RowKind::features ? pair_gradient(task, task.features, z, at.query, at.key, dy_v)
                                     : pair_gradient(task, task.softmax, z, at.query, at.key, dy_v);
  }
  return sum;
}

/// Adds the gradients of exact pairs to db. blockIdx.x: entry of db, blockIdx.y: position.
template <Storage S, int threads>
__global__ void __launch_bounds__(threads) exact_entries_kernel(ExactGradientTask<S> task) {
  start_kernel();
  const DeviceBias& b = task.pairs.b;
  const int thread = static_cast<int>(threadIdx.x), position = static_cast<int>(blockIdx.y);
  const int entry = static_cast<int>(blockIdx.x), lag = entry - (task.pairs.n_q - 1);
  const bool from_diagonals = task.to.near_tiles > 0 && b.is_near(entry);
  float sum = 0;
  for (int z = position; z < task.z; z += task.positions)
    sum += from_diagonals ? near_lag_gradient(task, z, lag, thread, threads)
                          : entry_gradient(task, z, entry, thread, threads);
  if (!__syncthreads_or(sum != 0)) return;
  sum = over_block<threads>(shared_memory<float>(), sum, Sum());
  if (thread == 0) task.db[static_cast<std::ptrdiff_t>(position) * gridDim.x + blockIdx.x] += sum;
}

/// Computes log_D and dy_y. `lanes` threads share a row, so that they load whole sectors of memory.
template <Storage S, int lanes>
__global__ void __launch_bounds__(256) exact_rows_kernel(ExactGradientTask<S> task) {
  start_kernel();
  const std::ptrdiff_t row = (static_cast<std::ptrdiff_t>(blockIdx.x) * 256 + threadIdx.x) / lanes;
  const int n_q = task.pairs.n_q, lane = static_cast<int>(threadIdx.x) % lanes;
  const bool has_pairs = row < task.sums.sums.rows && (task.has_field || task.kinds[row] != RowKind::field);
  const int z = has_pairs ? static_cast<int>(row / n_q) : 0, i = has_pairs ? static_cast<int>(row % n_q) : 0;
  const float D = has_pairs ? task.sums.denominator(row) : 0.0f;
  const bool has_gradients = has_pairs && (D != D || denominator_keeps_precision(D, task.positive));
  float dy_y = 0;
  for (int c = lane; has_gradients && c < task.dy.channels; c += lanes)
    dy_y = fmaf(task.dy_at(z, i, c), task.sums.quotient(z, row, c, D), dy_y);
  dy_y = over_warp<lanes>(dy_y, Sum());
  if (!has_pairs || lane > 0) return;
  task.to.log_D[row] = has_gradients ? task.log_scales[row] + log(static_cast<double>(D)) : -minus_infinity;
  task.to.dy_y[row] = dy_y;
}

/// Whether a tile of queries has a row of this kind, which is not RowKind::field. All threads of the block must call
/// it.
template <Storage S>
__device__ __forceinline__ bool has_row(const ExactGradientTask<S>& task, int z, int i0, RowKind kind) {
  if (task.recomputed_rows[z] == 0) return false;
  const int thread = static_cast<int>(threadIdx.x), i = i0 + thread;
  return __syncthreads_or(thread < TileShape::tile && i < task.pairs.n_q && task.kinds[task.row(z, i)] == kind);
}

/// Sets the rows of the tile that begins at t0 to zero, in matrix z of x [z, n, channels]. All threads of the block
/// must call it, and synchronise before they add to the rows.
__device__ __forceinline__ void clear_rows(float* x, int z, int t0, int n, int channels) {
  float* first = x + (static_cast<std::ptrdiff_t>(z) * n + t0) * channels;
  for (int e = static_cast<int>(threadIdx.x); e < min(TileShape::tile, n - t0) * channels; e += TileShape::threads)
    first[e] = 0;
}

/// Computes dq, dA, and the diagonals, as far as they are requested. blockIdx.x: tile of queries, blockIdx.y: z.
template <Storage S>
__global__ void __launch_bounds__(TileShape::threads) exact_queries_kernel(ExactGradientTask<S> task) {
  start_kernel();
  constexpr int tile = TileShape::tile;
  const int z = static_cast<int>(blockIdx.y), i0 = static_cast<int>(blockIdx.x) * tile, n_k = task.pairs.n_k;
  if (!task.has_any(z)) return;
  const KeyTiles near = task.to.near_tiles > 0 ? task.pairs.near_tiles(z, i0 / tile) : KeyTiles{0, 0};
  const int last = min(i0 + tile, task.pairs.n_q) - 1;
  if (task.to.dq) {
    clear_rows(task.to.dq, z, i0, task.pairs.n_q, task.softmax.q.channels);
    const bool all = has_row(task, z, i0, RowKind::softmax);
    const ExactPairs::Tiles tiles =
        task.pairs.tiles_with(z, all ? ExactPairs::Keys{0, n_k} : task.pairs.near_keys(i0, last));
#pragma unroll 1
    for (int k = 0; k < tiles.count; ++k) {
      const ExactPairTile<S, SoftmaxScores<S>, PairSide::queries> pairs(task, task.softmax, z, i0, tiles(k));
      pairs.add_to_queries(task.to.dq);
      const int J = tiles(k) / tile;
      if (task.db && J >= near.first && J < near.end)
        pairs.store_diagonals(task.diagonals(z, i0 / tile, J - near.first));
    }
  }
  if (!task.to.dA || !has_row(task, z, i0, RowKind::features)) return;
#pragma unroll 1
  for (int j0 = 0; j0 < n_k; j0 += tile)
    ExactPairTile<S, FeatureScores<float>, PairSide::queries>(task, task.features, z, i0, j0)
        .add_to_queries(task.to.dA);
}

/// Computes dk, dB and dv, as far as they are requested. blockIdx.x: tile of keys, blockIdx.y: z.
template <Storage S>
__global__ void __launch_bounds__(TileShape::threads) exact_keys_kernel(ExactGradientTask<S> task) {
  start_kernel();
  constexpr int tile = TileShape::tile;
  const int z = static_cast<int>(blockIdx.y), j0 = static_cast<int>(blockIdx.x) * tile, n_q = task.pairs.n_q;
  if (!task.has_any(z)) return;
  const auto [first, end] = task.pairs.near_queries(j0, min(j0 + tile, task.pairs.n_k) - 1);
  const ExactPairs::Keys sinks = task.pairs.sinks(z);
  const bool has_sinks = j0 < sinks.end && j0 + tile > sinks.first;
  float *dk = task.to.dk, *dB = task.to.dB, *dv = task.to.dv;
  if (dk) clear_rows(dk, z, j0, task.pairs.n_k, task.softmax.q.channels);
  if (dv && task.has_field) clear_rows(dv, z, j0, task.pairs.n_k, task.dy.channels);
  for (int i0 = 0; i0 < n_q; i0 += tile) {
    if (has_row(task, z, i0, RowKind::softmax) || has_sinks || (first < end && i0 + tile > first && i0 < end))
      ExactPairTile<S, SoftmaxScores<S>, PairSide::keys>(task, task.softmax, z, i0, j0).add_to_keys(dk, dv);
    if (!task.has_field && has_row(task, z, i0, RowKind::features))
      ExactPairTile<S, FeatureScores<float>, PairSide::keys>(task, task.features, z, i0, j0).add_to_keys(dB, dv);
  }
}

/// Queues log_D and dy_y, which all following kernels read.
template <Storage S>
void queue_exact_rows(const ExactGradientTask<S>& task, cudaStream_t stream) {
  constexpr int lanes = 8;
  if (task.sums.sums.rows == 0) return;
  launch("exact gradients: rows", exact_rows_kernel<S, lanes>, dim3{blocks_of<256 / lanes>(task.sums.sums.rows), 1, 1},
         dim3{256, 1, 1}, 0, stream, task);
}

/// Queues dq, dA, and the diagonals.
template <Storage S>
void queue_exact_queries(const ExactGradientTask<S>& task, cudaStream_t stream) {
  if (task.pairs.n_q == 0 || task.z == 0) return;
  launch("exact gradients: queries", exact_queries_kernel<S>,
         dim3{blocks_of<TileShape::tile>(task.pairs.n_q), static_cast<unsigned>(task.z), 1},
         dim3{TileShape::threads, 1, 1}, ExactPairTile<S, SoftmaxScores<S>, PairSide::queries>::shared, stream, task);
}

/// Queues dk, dB and dv.
template <Storage S>
void queue_exact_keys(const ExactGradientTask<S>& task, cudaStream_t stream) {
  if (task.pairs.n_k == 0 || task.z == 0) return;
  launch("exact gradients: keys", exact_keys_kernel<S>,
         dim3{blocks_of<TileShape::tile>(task.pairs.n_k), static_cast<unsigned>(task.z), 1},
         dim3{TileShape::threads, 1, 1}, ExactPairTile<S, SoftmaxScores<S>, PairSide::keys>::shared, stream, task);
}

/// Queues what exact pairs add to db, if db is requested. It must follow the diagonals, and the engine's gradients in
/// db.
template <Storage S>
void queue_exact_entries(const ExactGradientTask<S>& task, cudaStream_t stream) {
  constexpr int threads = 128;
  if (!task.db || task.pairs.n_q == 0 || task.pairs.n_k == 0 || task.z == 0) return;
  launch("exact gradients: lags", exact_entries_kernel<S, threads>,
         dim3{static_cast<unsigned>(task.pairs.b.size + task.pairs.b.places.border_size()),
              static_cast<unsigned>(task.positions), 1},
         dim3{threads, 1, 1}, threads * sizeof(float), stream, task);
}

}  // namespace nprf::cuda
