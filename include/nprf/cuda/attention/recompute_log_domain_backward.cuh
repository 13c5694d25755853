// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include "nprf/cuda/device/call_counters.cuh"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/feature_map/backward.cuh"
#include "nprf/cuda/feature_map/forward.cuh"
#include "nprf/cuda/position/lag_weights.cuh"

namespace nprf::cuda {

/// The gradients of rows that forward rescues (attention/recompute_log_domain.cuh): of the lost rows i of a matrix z,
/// with normalised tokens' exponents e_if = w_f.q_i and e_jf = w_f.k_j, and s = 1, or s = 1 and s = -1,
///
///     l_ij = log sum_f,s exp(s (e_if + e_jf)) - |k_j|^2 / 2 + b[j - i]      p_ij = exp(l_ij) / sum_j exp(l_ij)
///     g_ij = dL/dl_ij = p_ij (dy_i.v_j - dy_i.y_i)
///     pi_ijf = sum_s s exp(s (e_if + e_jf)) / sum_f,s exp(s (e_if + e_jf))
///
///     de_if = sum_j g_ij pi_ijf    de_jf = sum_i g_ij pi_ijf    dv_j = sum_i p_ij dy_i    db[lag] = sum_{j-i=lag} g_ij
///
/// from which dq_i = sum_f de_if w_f and dk_j = sum_f de_jf w_f - (sum_i g_ij) k_j (feature_map/backward.cuh). All sums
/// have a fixed order. O(rows (n_q + n_k) (m + d_v)), and the projections; of a matrix without such rows nothing but
/// blocks that leave at once.
struct LostGradients {
  bool* lost;          // [z, n_q]: which rows; null: none, since features tell no logarithms
  int* sizes;          // [z]: how many
  float *de_q, *de_k;  // [z, m, n_q] [z, m, n_k]
  float* along;        // [z, n_k]: sum_i g_ij
  float* dv;           // [z, n_k, p]

  static LostGradients take(Scratch& scratch, int* sizes, int z, int n_q, int n_k, int m, int p) {
    LostGradients all{};
    all.lost = scratch.take<bool>(z, n_q);
    all.sizes = sizes;
    all.de_q = scratch.take<float>(z, m, n_q);
    all.de_k = scratch.take<float>(z, m, n_k);
    all.along = scratch.take<float>(z, n_k);
    all.dv = scratch.take<float>(z, n_k, p);
    return all;
  }

  LogGradients of_queries() const { return {sizes, de_q, nullptr}; }
  LogGradients of_keys() const { return {sizes, de_k, along}; }
};

/// What is in memory while they are computed.
struct LostLogs {
  int* rows;         // [z, n_q]: the lost ones, ascending
  float *e_q, *e_k;  // [z, m, n_q] [z, m, n_k]
  float* half;       // [z, n_k]: |k_j|^2 / 2
  double* sum;       // [z, n_q]: log sum_j exp(l_ij)
  float* dy_y;       // [z, n_q]: dy_i.y_i

  static LostLogs take(Scratch& scratch, int z, int n_q, int n_k, int m) {
    LostLogs all{};
    all.rows = scratch.take<int>(z, n_q);
    all.e_q = scratch.take<float>(z, m, n_q);
    all.e_k = scratch.take<float>(z, m, n_k);
    all.half = scratch.take<float>(z, n_k);
    all.sum = scratch.take<double>(z, n_q);
    all.dy_y = scratch.take<float>(z, n_q);
    return all;
  }
};

template <Storage S>
struct RescueGradientTask {
  FeatureTask<S> q, k;  // features of neither are read
  Operand<S> dy;        // (n_q,p)
  Operand<float> U;     // (n_k,p + 1), by channel
  DeviceBias b;         // of lags j - i from -(n_q - 1) on
  int z, positions;
  LostGradients to;
  LostLogs logs;
  float* db;  // [position, lags], which is added to; or null
};

struct RescueGradientShape {
  static constexpr int keys = FeatureShape::tokens, groups = FeatureShape::groups, threads = FeatureShape::threads;
  static constexpr int rows = 4 * groups, stride = keys + 1;
  static constexpr std::size_t shared = sizeof(float) * 4 * rows * stride;
};

/// A query and a key.
struct LogPair {
  float top, sum;  // sum_f,s exp(s (e_if + e_jf)) = sum exp(top)
  double log;      // l; -infinity where the query does not see the key
  float dy_v;      // dy.v
};

/// The lost rows of matrix z.
template <Storage S>
class LostRows {
 public:
  __device__ __forceinline__ LostRows(const RescueGradientTask<S>& task, int z)
      : m_task(task),
        m_z(z),
        m_count(task.to.sizes[z]),
        m_list(task.logs.rows + static_cast<std::ptrdiff_t>(z) * n_q()),
        m_e_q(task.logs.e_q + static_cast<std::ptrdiff_t>(z) * task.q.m * n_q()),
        m_e_k(task.logs.e_k + static_cast<std::ptrdiff_t>(z) * task.q.m * n_k()),
        m_both(task.q.kind == FeatureKind::hyperbolic) {}

  __device__ __forceinline__ int count() const { return m_count; }
  /// The number of the k-th.
  __device__ __forceinline__ int operator[](int k) const { return m_list[k]; }

  __device__ __forceinline__ static double none() { return -1.0 / 0.0; }

  __device__ __forceinline__ LogPair pair(int i, int j) const {
    const bool seen = j >= 0 && j < n_k() && !(m_task.k.mask && !m_task.k.mask[mask_at(j)]);
    const double b = seen ? m_task.b(m_z % m_task.q.x.heads, j - i + n_q() - 1) : none();
    if (b == none()) return {0, 1, none(), 0};
    LogPair pair{-largest_float, 0, 0, 0};
    for (int f = 0; f < m_task.q.m; ++f) {
      const float x = exponent(f, i, j);
      pair.top = fmaxf(pair.top, m_both ? fabsf(x) : x);
    }
    for (int f = 0; f < m_task.q.m; ++f) {
      const float x = exponent(f, i, j);
      pair.sum += expf(x - pair.top);
      if (m_both) pair.sum += expf(-x - pair.top);
    }
    pair.log = static_cast<double>(pair.top) + log(static_cast<double>(pair.sum)) -
               static_cast<double>(m_task.logs.half[of_key(j)]) + b;
    const float* v = m_task.U.of(m_z) + j;
    for (int c = 0; c < p(); ++c) pair.dy_v = fmaf(dy(i, c), v[c * m_task.U.channel_stride], pair.dy_v);
    return pair;
  }

  /// sum_s s exp(s (e_if + e_jf) - top): pi_ijf times sum.
  __device__ __forceinline__ float slope(int f, int i, int j, float top) const {
    const float x = exponent(f, i, j), up = expf(x - top);
    return m_both ? up - expf(-x - top) : up;
  }

  /// p and g of a pair whose query has been normalised.
  __device__ __forceinline__ float2 gradients(int i, const LogPair& pair) const {
    if (pair.log == none()) return make_float2(0, 0);
    const float p = expf(static_cast<float>(pair.log - m_task.logs.sum[of_query(i)]));
    return make_float2(p, p * (pair.dy_v - m_task.logs.dy_y[of_query(i)]));
  }

  /// Writes what normalises the rows from `at` on, a few: the block's, whose groups of threads have one at a time.
  __device__ __forceinline__ void normalise(int at) const {
    using Shape = RescueGradientShape;
    double* tops = shared_memory<double>();  // (groups,keys)
    float *Ds = reinterpret_cast<float*>(tops + Shape::threads), *Ns = Ds + Shape::threads;
    const int thread = static_cast<int>(threadIdx.x), t = thread % Shape::keys;
    for (int turn = 0; turn < Shape::rows; turn += Shape::groups) {
      const int k = at + turn + thread / Shape::keys, i = k < m_count ? m_list[k] : -1;
      double top = none();
      float D = 0, N = 0;
      for (int j = t; i >= 0 && j < n_k(); j += Shape::keys) {
        const LogPair own = pair(i, j);
        if (own.log == none()) continue;
        const double next = fmax(top, own.log);
        const float before = expf(static_cast<float>(top - next)), weight = expf(static_cast<float>(own.log - next));
        D = fmaf(before, D, weight);
        N = fmaf(before, N, weight * own.dy_v);
        top = next;
      }
      __syncthreads();  // the sums before have been read
      tops[thread] = top;
      Ds[thread] = D;
      Ns[thread] = N;
      __syncthreads();
      if (t > 0 || i < 0) continue;
      for (int u = 0; u < Shape::keys; ++u) top = fmax(top, tops[thread + u]);
      D = N = 0;
      for (int u = thread; u < thread + Shape::keys; ++u) {
        if (Ds[u] == 0) continue;
        const float factor = expf(static_cast<float>(tops[u] - top));
        D = fmaf(factor, Ds[u], D);
        N = fmaf(factor, Ns[u], N);
      }
      m_task.logs.sum[of_query(i)] = top + log(static_cast<double>(D));
      m_task.logs.dy_y[of_query(i)] = N / D;
    }
    __syncthreads();  // the block reads them
  }

  __device__ __forceinline__ int n_q() const { return m_task.q.x.tokens; }
  __device__ __forceinline__ int n_k() const { return m_task.k.x.tokens; }
  __device__ __forceinline__ int p() const { return m_task.dy.channels; }
  __device__ __forceinline__ std::ptrdiff_t of_query(int i) const {
    return static_cast<std::ptrdiff_t>(m_z) * n_q() + i;
  }
  __device__ __forceinline__ std::ptrdiff_t of_key(int j) const { return static_cast<std::ptrdiff_t>(m_z) * n_k() + j; }
  __device__ __forceinline__ float dy(int i, int c) const {
    return to_float(m_task.dy.of(m_z)[i * m_task.dy.token_stride + c * m_task.dy.channel_stride]);
  }

 private:
  __device__ __forceinline__ std::ptrdiff_t mask_at(int j) const {
    return static_cast<std::ptrdiff_t>(m_z / m_task.k.x.heads) * n_k() + j;
  }
  __device__ __forceinline__ float exponent(int f, int i, int j) const {
    return m_e_q[static_cast<std::ptrdiff_t>(f) * n_q() + i] + m_e_k[static_cast<std::ptrdiff_t>(f) * n_k() + j];
  }

  const RescueGradientTask<S>& m_task;
  int m_z, m_count;
  const int* m_list;
  const float *m_e_q, *m_e_k;
  bool m_both;
};

/// Pairs of a few lost rows, from `at` on, and a tile of keys from j0 on, in shared memory; zero where a query does not
/// see the key. By all threads of a block.
template <Storage S>
class PairTile {
 public:
  __device__ __forceinline__ PairTile(const LostRows<S>& rows, int at, int j0) {
    const int t = static_cast<int>(threadIdx.x) % Shape::keys;
    __syncthreads();  // the tile before has been read
    for (int k = static_cast<int>(threadIdx.x) / Shape::keys; k < Shape::rows; k += Shape::groups) {
      LogPair pair{0, 1, LostRows<S>::none(), 0};
      const int i = at + k < rows.count() ? rows[at + k] : -1;
      if (i >= 0) pair = rows.pair(i, j0 + t);
      const float2 of_pair = rows.gradients(i, pair);
      p(k, t) = of_pair.x;
      g(k, t) = of_pair.y;
      top(k, t) = pair.top;
      h(k, t) = of_pair.y == 0 ? 0.0f : of_pair.y / pair.sum;
    }
    __syncthreads();
  }

  __device__ __forceinline__ float& p(int k, int t) const { return entry(0, k, t); }
  __device__ __forceinline__ float& g(int k, int t) const { return entry(1, k, t); }
  __device__ __forceinline__ float& top(int k, int t) const { return entry(2, k, t); }
  /// g pi_f = h slope_f, h = g / sum.
  __device__ __forceinline__ float& h(int k, int t) const { return entry(3, k, t); }

 private:
  using Shape = RescueGradientShape;

  __device__ __forceinline__ static float& entry(int array, int k, int t) {
    return shared_memory<float>()[(array * Shape::rows + k) * Shape::stride + t];
  }
};

/// e_f of a tile of tokens, and where they are asked for |x'|^2 / 2 and zeros for what is added up.
template <Storage S>
__device__ __forceinline__ void project_tokens(const FeatureTask<S>& task, float* e, float* half, float* zeros) {
  using Shape = FeatureShape;
  float *x = shared_memory<float>(), *scratch = x + Shape::stride * task.d_padded;
  const int z = static_cast<int>(blockIdx.y), t0 = static_cast<int>(blockIdx.x) * Shape::tokens, n = task.x.tokens;
  const int token = t0 + static_cast<int>(threadIdx.x) % Shape::tokens;
  if (t0 >= n) return;
  load_tile(x, 1, Shape::stride, task.x, task.x.of(z), t0, Shape::tokens, 0, task.d_padded);
  __syncthreads();
  const Normalised all = normalise(task, x, scratch);
  __syncthreads();
  if (token >= n) return;
  if (half && threadIdx.x < Shape::tokens) half[static_cast<std::ptrdiff_t>(z) * n + token] = all.half;
  project(task, x, [&](int f, int count, const float(&e_f)[Shape::at_once]) {
#pragma unroll
    for (int k = 0; k < Shape::at_once; ++k) {
      const std::ptrdiff_t at = (static_cast<std::ptrdiff_t>(z) * task.m + f + k) * n + token;
      if (k < count) e[at] = e_f[k];
      if (k < count && zeros) zeros[at] = 0;
    }
  });
}

/// The rows of a matrix that are lost, in their order: each thread finds those of its share.
__device__ __forceinline__ void list_rows(const bool* lost, int n, int* rows) {
  int* counts = shared_memory<int>();
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int share = (n + threads - 1) / threads, first = min(n, thread * share), end = min(n, first + share);
  int count = 0, before = 0;
  for (int i = first; i < end; ++i) count += lost[i];
  counts[thread] = count;
  __syncthreads();
  for (int k = 0; k < thread; ++k) before += counts[k];
  for (int i = first; i < end; ++i)
    if (lost[i]) rows[before++] = i;
}

/// Blocks (tiles of tokens, z, queries or keys or the list of rows).
template <Storage S>
__global__ void __launch_bounds__(FeatureShape::threads) lost_logs_kernel(RescueGradientTask<S> task) {
  const int z = static_cast<int>(blockIdx.y), n_q = task.q.x.tokens;
  if (task.to.sizes[z] == 0) return;
  if (blockIdx.z == 0) project_tokens(task.q, task.logs.e_q, nullptr, task.to.de_q);
  if (blockIdx.z == 1) project_tokens(task.k, task.logs.e_k, task.logs.half, nullptr);
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(z) * n_q;
  if (blockIdx.z == 2 && blockIdx.x == 0) list_rows(task.to.lost + at, n_q, task.logs.rows + at);
}

/// de_if. Blocks (some rows each, z).
template <Storage S>
__global__ void __launch_bounds__(FeatureShape::threads) lost_queries_kernel(RescueGradientTask<S> task) {
  using Shape = RescueGradientShape;
  const int z = static_cast<int>(blockIdx.y), at = static_cast<int>(blockIdx.x) * Shape::rows, m = task.q.m;
  if (at >= task.to.sizes[z]) return;
  const LostRows<S> rows(task, z);
  rows.normalise(at);
  for (int j0 = 0; j0 < rows.n_k(); j0 += Shape::keys) {
    const PairTile<S> tile(rows, at, j0);
    for (int e = static_cast<int>(threadIdx.x); e < m * Shape::rows; e += Shape::threads) {
      const int k = e % Shape::rows, f = e / Shape::rows;
      if (at + k >= rows.count()) continue;
      const int i = rows[at + k];
      float sum = 0;
      for (int t = 0; t < Shape::keys; ++t)
        if (tile.h(k, t) != 0) sum = fmaf(tile.h(k, t), rows.slope(f, i, j0 + t, tile.top(k, t)), sum);
      task.to.de_q[(static_cast<std::ptrdiff_t>(z) * m + f) * rows.n_q() + i] += sum;
    }
  }
}

/// de_jf, along and dv. Blocks (tiles of keys, z).
template <Storage S>
__global__ void __launch_bounds__(FeatureShape::threads) lost_keys_kernel(RescueGradientTask<S> task) {
  using Shape = RescueGradientShape;
  const int z = static_cast<int>(blockIdx.y), j0 = static_cast<int>(blockIdx.x) * Shape::keys, m = task.q.m;
  const int thread = static_cast<int>(threadIdx.x);
  if (task.to.sizes[z] == 0) return;
  const LostRows<S> rows(task, z);
  const int p = rows.p(), keys = min(Shape::keys, rows.n_k() - j0);
  for (int at = 0; at < rows.count(); at += Shape::rows) {
    const PairTile<S> tile(rows, at, j0);
    const int count = min(Shape::rows, rows.count() - at);
    // to += sum_k term(k) of the block's own
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
        return h == 0 ? 0.0f : h * rows.slope(f, rows[at + k], j0 + t, tile.top(k, t));
      });
    }
    if (thread < keys) add(task.to.along[rows.of_key(j0 + thread)], [&](int k) { return tile.g(k, thread); });
    for (int e = thread; e < p * keys; e += Shape::threads) {
      const int t = e / p, c = e % p;
      add(task.to.dv[rows.of_key(j0 + t) * p + c],
          [&](int k) { return passed(tile.p(k, t), rows.dy(rows[at + k], c)); });
    }
  }
}

/// db. Blocks (tiles of lags, positions).
template <Storage S>
__global__ void __launch_bounds__(FeatureShape::threads) lost_lags_kernel(RescueGradientTask<S> task) {
  using Shape = RescueGradientShape;
  const int thread = static_cast<int>(threadIdx.x), position = static_cast<int>(blockIdx.y);
  const int at = static_cast<int>(blockIdx.x) * Shape::keys + thread % Shape::keys, size = task.b.size;
  float sum = 0;
  for (int z = position; z < task.z; z += task.positions) {
    if (task.to.sizes[z] == 0) continue;
    const LostRows<S> rows(task, z);
    for (int k = thread / Shape::keys; k < rows.count(); k += Shape::groups) {
      const int i = rows[k], j = at + i - (rows.n_q() - 1);
      sum += rows.gradients(i, rows.pair(i, j)).y;
    }
  }
  sum = over_groups(shared_memory<float>(), sum, [](float a, float b) { return a + b; });
  if (thread < Shape::keys && at < size) task.db[static_cast<std::ptrdiff_t>(position) * size + at] += sum;
}

/// Queues what lost rows give.
template <Storage S>
void queue_rescue_gradients(const RescueGradientTask<S>& task, cudaStream_t stream) {
  using Shape = RescueGradientShape;
  const int n_q = task.q.x.tokens, n_k = task.k.x.tokens;
  const unsigned z = static_cast<unsigned>(task.z);
  const dim3 block{Shape::threads, 1, 1};
  if (n_q == 0 || z == 0) return;
  launch("gradients: logarithms of lost rows", lost_logs_kernel<S>,
         dim3{blocks_of<Shape::keys>(std::max(n_q, n_k)), z, 3}, block, FeatureShape::shared(task.q.d_padded), stream,
         task);
  if (n_k == 0) return;
  launch("gradients: lost rows' queries", lost_queries_kernel<S>, dim3{blocks_of<Shape::rows>(n_q), z, 1}, block,
         Shape::shared, stream, task);
  launch("gradients: lost rows' keys", lost_keys_kernel<S>, dim3{blocks_of<Shape::keys>(n_k), z, 1}, block,
         Shape::shared, stream, task);
  if (task.db)
    launch("gradients: lost rows' lags", lost_lags_kernel<S>,
           dim3{blocks_of<Shape::keys>(task.b.size), static_cast<unsigned>(task.positions), 1}, block, Shape::shared,
           stream, task);
}

}  // namespace nprf::cuda
