// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/attention/exact/gradient_task.cuh"
#include "nprf/cuda/device/launch.cuh"
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
  float* sums = shared_memory<float>();
  sums[thread] = sum;
  for (int half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) sums[thread] += sums[thread + half];
  }
  if (thread == 0) task.db[static_cast<std::ptrdiff_t>(position) * gridDim.x + blockIdx.x] += sums[0];
}

}  // namespace nprf::cuda
