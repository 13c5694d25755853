// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include "nprf/cuda/attention/log_domain_pairs.cuh"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/feature_map/forward.cuh"
#include "nprf/cuda/feature_map/gradient_task.cuh"
#include "nprf/cuda/position/token_places.cuh"

namespace nprf::cuda {

/// Computes e_f of a tile of tokens. If requested, also stores the logarithms of their factors, and clears the sums of
/// gradients.
template <Storage S>
__device__ __forceinline__ void project_tokens(const FeatureTask<S>& task, float* e, float* log_factor, float* zeros) {
  using Shape = FeatureShape;
  float *x = shared_memory<float>(), *scratch = x + task.tiles() * task.tile_size();
  const int z = static_cast<int>(blockIdx.y), t0 = static_cast<int>(blockIdx.x) * Shape::tokens, n = task.x.tokens;
  const int token = t0 + static_cast<int>(threadIdx.x) % Shape::tokens;
  if (t0 >= n) return;
  load_tokens({x, 1, Shape::stride}, task.x, task.x.of(z), t0, Shape::tokens, task.d_padded);
  __syncthreads();
  const TokenCoordinates at = coordinates_of(task, z % task.x.heads, x, scratch, normalise(task, x, scratch));
  if (token >= n) return;
  if (log_factor && threadIdx.x < Shape::tokens) log_factor[static_cast<std::ptrdiff_t>(z) * n + token] = at.log_factor;
  project(task, at.z, [&](int f, int count, const float(&e_f)[Shape::at_once]) {
#pragma unroll
    for (int k = 0; k < Shape::at_once; ++k) {
      const std::ptrdiff_t to = (static_cast<std::ptrdiff_t>(z) * task.m + f + k) * n + token;
      if (k < count) e[to] = e_f[k];
      if (k < count && zeros) zeros[to] = 0;
    }
  });
}

/// Lists the flagged rows of a matrix in ascending order. Each thread handles a contiguous share of the rows.
__device__ __forceinline__ void list_rows(const bool* listed, int n, int* rows) {
  int* counts = shared_memory<int>();
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int share = (n + threads - 1) / threads, first = min(n, thread * share), end = min(n, first + share);
  int count = 0, before = 0;
  for (int i = first; i < end; ++i) count += listed[i];
  counts[thread] = count;
  __syncthreads();
  for (int k = 0; k < thread; ++k) before += counts[k];
  for (int i = first; i < end; ++i)
    if (listed[i]) rows[before++] = i;
}

/// Computes projections and the list of rows. Blocks (tiles of tokens, z, queries or keys or list).
template <Storage S>
__global__ void __launch_bounds__(FeatureShape::threads) log_domain_projections_kernel(LogDomainGradientTask<S> task) {
  start_kernel();
  const int z = static_cast<int>(blockIdx.y), n_q = task.q.x.tokens;
  if (task.to.counts[z] == 0) return;
  if (blockIdx.z == 0) project_tokens(task.q, task.scratch.e_q, nullptr, task.to.de_q);
  if (blockIdx.z == 1) project_tokens(task.k, task.scratch.e_k, task.scratch.log_factor, nullptr);
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(z) * n_q;
  if (blockIdx.z == 2 && blockIdx.x == 0) list_rows(task.to.is_log_domain + at, n_q, task.scratch.rows + at);
}

/// Computes de_if. Blocks (groups of rows, z).
template <Storage S>
__global__ void __launch_bounds__(FeatureShape::threads) log_domain_queries_kernel(LogDomainGradientTask<S> task) {
  start_kernel();
  using Shape = LogDomainGradientShape;
  const int z = static_cast<int>(blockIdx.y), at = static_cast<int>(blockIdx.x) * Shape::rows, m = task.q.m;
  if (at >= task.to.counts[z]) return;
  const LogDomainRows<S> rows(task, z);
  rows.normalise(at);
  for (int j0 = 0; j0 < rows.n_k(); j0 += Shape::keys) {
    const PairTile<S> tile(rows, at, j0);
    for (int e = static_cast<int>(threadIdx.x); e < m * Shape::rows; e += Shape::threads) {
      const int k = e % Shape::rows, f = e / Shape::rows;
      if (at + k >= rows.count()) continue;
      const int i = rows[at + k];
      float sum = 0;
      for (int t = 0; t < Shape::keys; ++t)
        if (tile.h(k, t) != 0) sum = fmaf(tile.h(k, t), rows.slope(f, i, j0 + t, tile.max_exponent(k, t)), sum);
      task.to.de_q[(static_cast<std::ptrdiff_t>(z) * m + f) * rows.n_q() + i] += sum;
    }
  }
}

/// Computes de_jf, g_sum and dv. Blocks (tiles of keys, z).
template <Storage S>
__global__ void __launch_bounds__(FeatureShape::threads) log_domain_keys_kernel(LogDomainGradientTask<S> task) {
  start_kernel();
  using Shape = LogDomainGradientShape;
  const int z = static_cast<int>(blockIdx.y), j0 = static_cast<int>(blockIdx.x) * Shape::keys, m = task.q.m;
  const int thread = static_cast<int>(threadIdx.x);
  if (task.to.counts[z] == 0) return;
  const LogDomainRows<S> rows(task, z);
  const int p = rows.p(), keys = min(Shape::keys, rows.n_k() - j0);
  for (int at = 0; at < rows.count(); at += Shape::rows) {
    const PairTile<S> tile(rows, at, j0);
    const int count = min(Shape::rows, rows.count() - at);
    // to += sum_k term(k); each `to` belongs to one thread
    const auto add = [&](float& to, auto&& term) {
      float sum = at == 0 ? 0.0f : to;
      for (int k = 0; k < count; ++k) sum += term(k);
      to = sum;
    };
    for (int e = thread; e < m * Shape::keys; e += Shape::threads) {
      const int t = e % Shape::keys, f = e / Shape::keys;
      if (t >= keys) continue;
      add(task.to.de_k[(static_cast<std::ptrdiff_t>(z) * m + f) * rows.n_k() + j0 + t], [&](int k) {
        const float h = tile.h(k, t);
        return h == 0 ? 0.0f : h * rows.slope(f, rows[at + k], j0 + t, tile.max_exponent(k, t));
      });
    }
    if (thread < keys) add(task.to.g_sum[rows.of_key(j0 + thread)], [&](int k) { return tile.g(k, thread); });
    for (int e = thread; e < p * keys; e += Shape::threads) {
      const int t = e / p, c = e % p;
      add(task.to.dv[rows.of_key(j0 + t) * p + c],
          [&](int k) { return gradient_times(tile.p(k, t), rows.dy(rows[at + k], c)); });
    }
  }
}

/// Adds to db. Blocks (tiles of lags, positions).
template <Storage S>
__global__ void __launch_bounds__(FeatureShape::threads) log_domain_lags_kernel(LogDomainGradientTask<S> task) {
  start_kernel();
  using Shape = LogDomainGradientShape;
  const int thread = static_cast<int>(threadIdx.x), position = static_cast<int>(blockIdx.y);
  const int at = static_cast<int>(blockIdx.x) * Shape::keys + thread % Shape::keys, size = task.b.size;
  float sum = 0;
  for (int z = position; z < task.z; z += task.positions) {
    if (task.to.counts[z] == 0) continue;
    const LogDomainRows<S> rows(task, z);
    for (int k = thread / Shape::keys; k < rows.count(); k += Shape::groups) {
      const int i = rows[k], j = at + i - (rows.n_q() - 1);
      sum += rows.gradients(i, rows.pair(i, j)).y;
    }
  }
  sum = over_groups(shared_memory<float>(), sum, [](float a, float b) { return a + b; });
  if (thread < Shape::keys && at < size) task.db[static_cast<std::ptrdiff_t>(position) * size + at] += sum;
}

/// Adds to db of a grid. Blocks (entries, positions).
template <Storage S>
__global__ void __launch_bounds__(FeatureShape::threads) log_domain_entries_kernel(LogDomainGradientTask<S> task) {
  start_kernel();
  using Shape = LogDomainGradientShape;
  const int thread = static_cast<int>(threadIdx.x), position = static_cast<int>(blockIdx.y);
  const PairsOfEntry pairs{task.b.places, task.b.first, task.b.size, static_cast<int>(blockIdx.x)};
  float sum = 0;
  for (int z = position; z < task.z; z += task.positions) {
    if (task.to.counts[z] == 0) continue;
    const LogDomainRows<S> rows(task, z);
    for (int k = thread; k < pairs.count(); k += Shape::threads) {
      const auto [i, j] = pairs[k];
      if (i >= 0 && task.to.is_log_domain[rows.of_query(i)]) sum += rows.gradients(i, rows.pair(i, j)).y;
    }
  }
  float* sums = shared_memory<float>();
  sums[thread] = sum;
  for (int half = Shape::threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) sums[thread] += sums[thread + half];
  }
  if (thread == 0) task.db[static_cast<std::ptrdiff_t>(position) * gridDim.x + blockIdx.x] += sums[0];
}

/// Queues all gradients of rows in the log domain.
template <Storage S>
void queue_log_domain_gradients(const LogDomainGradientTask<S>& task, cudaStream_t stream) {
  using Shape = LogDomainGradientShape;
  const int n_q = task.q.x.tokens, n_k = task.k.x.tokens;
  const unsigned z = static_cast<unsigned>(task.z);
  const dim3 block{Shape::threads, 1, 1};
  if (n_q == 0 || z == 0) return;
  launch("gradients in the log domain: projections", log_domain_projections_kernel<S>,
         dim3{blocks_of<Shape::keys>(std::max(n_q, n_k)), z, 3}, block, task.q.shared(), stream, task);
  if (n_k == 0) return;
  launch("gradients in the log domain: queries", log_domain_queries_kernel<S>, dim3{blocks_of<Shape::rows>(n_q), z, 1},
         block, Shape::shared, stream, task);
  launch("gradients in the log domain: keys", log_domain_keys_kernel<S>, dim3{blocks_of<Shape::keys>(n_k), z, 1}, block,
         Shape::shared, stream, task);
  const unsigned positions = static_cast<unsigned>(task.positions);
  if (task.db && task.b.places.is_grid())
    launch("gradients in the log domain: entries", log_domain_entries_kernel<S>,
           dim3{static_cast<unsigned>(task.b.size + task.b.places.border_size()), positions, 1}, block, Shape::shared,
           stream, task);
  else if (task.db)
    launch("gradients in the log domain: lags", log_domain_lags_kernel<S>,
           dim3{blocks_of<Shape::keys>(task.b.size), positions, 1}, block, Shape::shared, stream, task);
}

}  // namespace nprf::cuda
