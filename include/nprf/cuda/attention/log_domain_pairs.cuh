// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/feature_map/forward.cuh"
#include "nprf/cuda/feature_map/gradient_task.cuh"
#include "nprf/cuda/position/lag_weights.cuh"

namespace nprf::cuda {

/// The gradients of rows that the forward pass recomputes in the log domain (attention/recompute_log_domain.cuh). For
/// such rows i of a matrix z, the projections e_if = w_f.q_i and e_jf = w_f.k_j of normalised tokens, and s = 1
/// (positive features) or s = +-1 (hyperbolic features):
///
///     l_ij = log sum_f,s exp(s (e_if + e_jf)) - |k_j|^2 / 2 + b[j - i]      p_ij = exp(l_ij) / sum_j exp(l_ij)
///     g_ij = dL/dl_ij = p_ij (dy_i.v_j - dy_i.y_i)
///     pi_ijf = sum_s s exp(s (e_if + e_jf)) / sum_f,s exp(s (e_if + e_jf))
///
///     de_if = sum_j g_ij pi_ijf    de_jf = sum_i g_ij pi_ijf    dv_j = sum_i p_ij dy_i    db[lag] = sum_{j-i=lag} g_ij
///
/// From these follow dq_i = sum_f de_if w_f and dk_j = sum_f de_jf w_f - (sum_i g_ij) k_j
/// (feature_map/gradient_task.cuh). Of centred features q and k are the coordinates, and the factor of the centring is
/// added to l. All sums have a fixed order. O(rows (n_q + n_k) (m + d_v)), plus the projections. For a matrix without
/// such rows the blocks return at once.
struct LogDomainGradients {
  bool* is_log_domain;  // [z, n_q]: which rows; null: none, since the features are not exponential
  int* counts;          // [z]: number of such rows
  float *de_q, *de_k;   // [z, m, n_q] [z, m, n_k]
  float* g_sum;         // [z, n_k]: sum_i g_ij
  float* dv;            // [z, n_k, p]

  static LogDomainGradients take(Scratch& scratch, int* counts, int z, int n_q, int n_k, int m, int p) {
    LogDomainGradients all{};
    all.is_log_domain = scratch.take<bool>(z, n_q);
    all.counts = counts;
    all.de_q = scratch.take<float>(z, m, n_q);
    all.de_k = scratch.take<float>(z, m, n_k);
    all.g_sum = scratch.take<float>(z, n_k);
    all.dv = scratch.take<float>(z, n_k, p);
    return all;
  }

  LogDomainTerms of_queries() const { return {counts, de_q, nullptr}; }
  LogDomainTerms of_keys() const { return {counts, de_k, g_sum}; }
};

/// Scratch memory of the gradients in the log domain.
struct LogDomainScratch {
  int* rows;          // [z, n_q]: the rows, ascending
  float *e_q, *e_k;   // [z, m, n_q] [z, m, n_k]
  float* log_factor;  // [z, n_k]: -|k_j|^2 / 2, plus that of a centring
  double* sum;        // [z, n_q]: log sum_j exp(l_ij)
  float* dy_y;        // [z, n_q]: dy_i.y_i

  static LogDomainScratch take(Scratch& scratch, int z, int n_q, int n_k, int m) {
    LogDomainScratch all{};
    all.rows = scratch.take<int>(z, n_q);
    all.e_q = scratch.take<float>(z, m, n_q);
    all.e_k = scratch.take<float>(z, m, n_k);
    all.log_factor = scratch.take<float>(z, n_k);
    all.sum = scratch.take<double>(z, n_q);
    all.dy_y = scratch.take<float>(z, n_q);
    return all;
  }
};

template <Storage S>
struct LogDomainGradientTask {
  FeatureTask<S> q, k;  // the phi of both are not read
  Operand<S> dy;        // (n_q,p)
  Operand<float> U;     // (n_k,p + 1), by channel
  DeviceBias b;
  int z, positions;
  LogDomainGradients to;
  LogDomainScratch scratch;
  float* db;  // [position, entries], added to: lags, then the border of a grid; null: not requested
};

struct LogDomainGradientShape {
  static constexpr int keys = FeatureShape::tokens, groups = FeatureShape::groups, threads = FeatureShape::threads;
  static constexpr int rows = 4 * groups, stride = keys + 1;
  static constexpr std::size_t shared = sizeof(float) * 4 * rows * stride;
};

/// Data of a query and a key.
struct LogPair {
  float max_exponent, sum;  // sum_f,s exp(s (e_if + e_jf)) = sum exp(max_exponent)
  double log;               // l; -infinity if the query does not attend to the key
  float dy_v;               // dy.v
};

/// The rows of matrix z in the log domain.
template <Storage S>
class LogDomainRows {
 public:
  __device__ __forceinline__ LogDomainRows(const LogDomainGradientTask<S>& task, int z)
      : m_task(task),
        m_z(z),
        m_count(task.to.counts[z]),
        m_list(task.scratch.rows + static_cast<std::ptrdiff_t>(z) * n_q()),
        m_e_q(task.scratch.e_q + static_cast<std::ptrdiff_t>(z) * task.q.m * n_q()),
        m_e_k(task.scratch.e_k + static_cast<std::ptrdiff_t>(z) * task.q.m * n_k()),
        m_both(task.q.kind == FeatureKind::hyperbolic) {}

  __device__ __forceinline__ int count() const { return m_count; }
  /// The query index of the k-th row.
  __device__ __forceinline__ int operator[](int k) const { return m_list[k]; }

  __device__ __forceinline__ LogPair pair(int i, int j) const {
    const bool attended = j >= 0 && j < n_k() && !(m_task.k.mask && !m_task.k.mask[mask_at(j)]);
    const double b = attended ? m_task.b.between(m_z % m_task.q.x.heads, i, j) : minus_infinity;
    if (b == minus_infinity) return {0, 1, minus_infinity, 0};
    LogPair pair{-largest_float, 0, 0, 0};
    for (int f = 0; f < m_task.q.m; ++f) {
      const float x = exponent(f, i, j);
      pair.max_exponent = fmaxf(pair.max_exponent, m_both ? fabsf(x) : x);
    }
    for (int f = 0; f < m_task.q.m; ++f) {
      const float x = exponent(f, i, j);
      pair.sum += expf(x - pair.max_exponent);
      if (m_both) pair.sum += expf(-x - pair.max_exponent);
    }
    pair.log = static_cast<double>(pair.max_exponent) + log(static_cast<double>(pair.sum)) +
               static_cast<double>(m_task.scratch.log_factor[of_key(j)]) + b;
    const float* v = m_task.U.of(m_z) + j;
    for (int c = 0; c < p(); ++c) pair.dy_v = fmaf(dy(i, c), v[c * m_task.U.channel_stride], pair.dy_v);
    return pair;
  }

  /// sum_s s exp(s (e_if + e_jf) - max_exponent), which is pi_ijf times LogPair::sum.
  __device__ __forceinline__ float slope(int f, int i, int j, float max_exponent) const {
    const float x = exponent(f, i, j), up = expf(x - max_exponent);
    return m_both ? up - expf(-x - max_exponent) : up;
  }

  /// p and g of a pair; normalise() must have been called for the row.
  __device__ __forceinline__ float2 gradients(int i, const LogPair& pair) const {
    if (pair.log == minus_infinity) return make_float2(0, 0);
    const float p = expf(static_cast<float>(pair.log - m_task.scratch.sum[of_query(i)]));
    return make_float2(p, p * (pair.dy_v - m_task.scratch.dy_y[of_query(i)]));
  }

  /// Computes log sum_j exp(l_ij) and dy_i.y_i of the block's rows, from `at` on. Each group of threads has one row at
  /// a time.
  __device__ __forceinline__ void normalise(int at) const {
    using Shape = LogDomainGradientShape;
    double* max_logs = shared_memory<double>();  // (groups,keys)
    float *Ds = reinterpret_cast<float*>(max_logs + Shape::threads), *Ns = Ds + Shape::threads;
    const int thread = static_cast<int>(threadIdx.x), t = thread % Shape::keys;
    for (int turn = 0; turn < Shape::rows; turn += Shape::groups) {
      const int k = at + turn + thread / Shape::keys, i = k < m_count ? m_list[k] : -1;
      double max_log = minus_infinity;
      float D = 0, N = 0;
      for (int j = t; i >= 0 && j < n_k(); j += Shape::keys) {
        const LogPair key_pair = pair(i, j);
        if (key_pair.log == minus_infinity) continue;
        const double next = fmax(max_log, key_pair.log);
        const float before = expf(static_cast<float>(max_log - next)),
                    weight = expf(static_cast<float>(key_pair.log - next));
        D = fmaf(before, D, weight);
        N = fmaf(before, N, weight * key_pair.dy_v);
        max_log = next;
      }
      __syncthreads();  // all threads have read the previous sums
      max_logs[thread] = max_log;
      Ds[thread] = D;
      Ns[thread] = N;
      __syncthreads();
      if (t > 0 || i < 0) continue;
      for (int u = 0; u < Shape::keys; ++u) max_log = fmax(max_log, max_logs[thread + u]);
      D = N = 0;
      for (int u = thread; u < thread + Shape::keys; ++u) {
        if (Ds[u] == 0) continue;
        const float factor = expf(static_cast<float>(max_logs[u] - max_log));
        D = fmaf(factor, Ds[u], D);
        N = fmaf(factor, Ns[u], N);
      }
      m_task.scratch.sum[of_query(i)] = max_log + log(static_cast<double>(D));
      m_task.scratch.dy_y[of_query(i)] = N / D;
    }
    __syncthreads();  // the whole block reads the results
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

  const LogDomainGradientTask<S>& m_task;
  int m_z, m_count;
  const int* m_list;
  const float *m_e_q, *m_e_k;
  bool m_both;
};

/// The pairs of the rows from `at` on and of the keys from j0 on, in shared memory. Entries are zero if the query does
/// not attend to the key. All threads of the block take part.
template <Storage S>
class PairTile {
 public:
  __device__ __forceinline__ PairTile(const LogDomainRows<S>& rows, int at, int j0) {
    const int t = static_cast<int>(threadIdx.x) % Shape::keys;
    __syncthreads();  // all threads have read the previous tile
    for (int k = static_cast<int>(threadIdx.x) / Shape::keys; k < Shape::rows; k += Shape::groups) {
      LogPair pair{0, 1, minus_infinity, 0};
      const int i = at + k < rows.count() ? rows[at + k] : -1;
      if (i >= 0) pair = rows.pair(i, j0 + t);
      const float2 of_pair = rows.gradients(i, pair);
      p(k, t) = of_pair.x;
      g(k, t) = of_pair.y;
      max_exponent(k, t) = pair.max_exponent;
      h(k, t) = of_pair.y == 0 ? 0.0f : of_pair.y / pair.sum;
    }
    __syncthreads();
  }

  __device__ __forceinline__ float& p(int k, int t) const { return entry(0, k, t); }
  __device__ __forceinline__ float& g(int k, int t) const { return entry(1, k, t); }
  __device__ __forceinline__ float& max_exponent(int k, int t) const { return entry(2, k, t); }
  /// h = g / sum, so that g pi_f = h slope_f.
  __device__ __forceinline__ float& h(int k, int t) const { return entry(3, k, t); }

 private:
  using Shape = LogDomainGradientShape;

  __device__ __forceinline__ static float& entry(int array, int k, int t) {
    return shared_memory<float>()[(array * Shape::rows + k) * Shape::stride + t];
  }
};

}  // namespace nprf::cuda
