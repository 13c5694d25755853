// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include "nprf/cuda/device/call_counters.cuh"
#include "nprf/cuda/device/value_columns.cuh"
#include "nprf/cuda/feature_map/forward.cuh"
#include "nprf/cuda/position/lag_weights.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"

namespace nprf::cuda {

/// Recomputes rows of attention whose denominators underflow, in the log domain of exponential features:
///
///     l_ij = log sum_f,s exp(s w_f.(q_i + k_j)) - |k_j|^2 / 2 + b[j - i]
///     y_i  = sum_j exp(l_ij - max_j l_ij) v_j / sum_j exp(l_ij - max_j l_ij)
///
/// with s = 1 for positive and s = +-1 for hyperbolic features; of centred ones q and k are the coordinates, and the
/// factor of the centring is added to l. A block recomputes the keys' projections for a few rows at a time. O(rows n_k
/// (m d + d_v)).
template <Storage S>
struct LogDomainTask {
  FeatureTask<S> q, k;  // the phi of both are not read
  Columns<S> U;         // (n_k,p + 1)
  DeviceBias b;
  int last_attended;  // the last attended j - i
  RowList rows;
  DeviceMatrixView<S> y;
  Counts* counts;
};

struct LogDomainShape {
  static constexpr int rows = FeatureShape::groups, keys = FeatureShape::tokens, columns = keys;
  static constexpr int k_tile = FeatureShape::groups * FeatureShape::at_once;  // projections per step

  static std::size_t shared(int d_padded, int tiles, int m) {
    return FeatureShape::shared(d_padded, tiles) +
           sizeof(float) * static_cast<std::size_t>((k_tile + rows) * keys + rows * m) + sizeof(double) * rows * keys;
  }
};

/// The work of a block: 4 x 64 threads, each with one row, and with one key of a tile or one column of y.
template <Storage S>
class LogDomainTile {
 public:
  /// The rows from `at` on in the list of z, and the columns from p0 on.
  __device__ __forceinline__ LogDomainTile(const LogDomainTask<S>& task, int z, int at, int p0)
      : m_task(task),
        m_z(z),
        m_head(z % task.q.x.heads),
        m_p0(p0),
        m_t(static_cast<int>(threadIdx.x) % keys),
        m_g(static_cast<int>(threadIdx.x) / keys),
        m_w(task.q.w + m_head * task.q.w_stride) {
    const int count = min(rows, task.rows.sizes[z] - at);
    const int* list = task.rows.of(z) + at;
    m_row = m_g < count ? list[m_g] : -1;
    for (int k = 0; k < count; ++k) m_last = max(m_last, list[k]);
    const S* q = task.q.x.of(z);
    for (int e = static_cast<int>(threadIdx.x); e < task.q.d_padded * keys; e += FeatureShape::threads) {
      const int k = e / keys, row = e % keys;
      x()[k * FeatureShape::stride + row] =
          row < count && k < task.q.x.channels
              ? to_float(q[list[row] * task.q.x.token_stride + k * task.q.x.channel_stride])
              : 0.0f;
    }
    __syncthreads();
    const float* coordinates = coordinates_of(task.q, m_head, x(), scratch(), normalise(task.q, x(), scratch())).z;
    for (int f0 = m_g * FeatureShape::at_once; f0 < task.q.m; f0 += k_tile) {
      float sum[FeatureShape::at_once] = {};
      project(task.q, m_w, coordinates + m_t, f0, sum);
      for (int f = 0; f < FeatureShape::at_once && f0 + f < task.q.m; ++f)
        if (m_t < rows) e_q()[(f0 + f) * rows + m_t] = sum[f];
    }
  }

  __device__ __forceinline__ void add_all_keys() {
    const int end = min(m_task.k.x.tokens, max(0, m_last + m_task.last_attended + 1));
    for (int j0 = 0; j0 < end; j0 += keys) {
      __syncthreads();  // all threads have read the previous tile
      load_tokens({x(), 1, FeatureShape::stride}, m_task.k.x, m_task.k.x.of(m_z), j0, keys, m_task.k.d_padded);
      __syncthreads();
      const TokenCoordinates at = coordinates_of(m_task.k, m_head, x(), scratch(), normalise(m_task.k, x(), scratch()));
      const double log = log_of_features(at.z) + static_cast<double>(at.log_factor);
      const double b = attends_to(j0 + m_t) ? bias(j0 + m_t) : minus_infinity;
      // a NaN becomes +infinity, which makes the row NaN
      add_keys(j0, b == minus_infinity ? minus_infinity : log == log ? log + b : -minus_infinity);
    }
  }

  __device__ __forceinline__ void store_row() const {
    const int column = m_p0 + m_t;
    if (m_row < 0) return;
    if (column == 0 && m_D == m_D) {
      atomicAdd(&m_task.counts->repaired_rows, 1);
      atomicAdd(&m_task.counts->log_domain_rows, 1);
    }
    if (column >= m_task.U.V.channels) return;
    store(row_of(m_task.y, m_z, m_row) + column, m_D == 0 ? 0.0f : m_N / m_D);
  }

 private:
  static constexpr int rows = LogDomainShape::rows, keys = LogDomainShape::keys, k_tile = LogDomainShape::k_tile;

  __device__ __forceinline__ double* log_weights() const { return shared_memory<double>(); }  // (rows,keys)
  __device__ __forceinline__ float* e_k() const {
    return reinterpret_cast<float*>(log_weights() + rows * keys);
  }                                                                                    // (k_tile,keys)  w_f.k_j
  __device__ __forceinline__ float* weights() const { return e_k() + k_tile * keys; }  // (rows,keys)
  __device__ __forceinline__ float* e_q() const { return weights() + rows * keys; }    // (m,rows)  w_f.q_i
  __device__ __forceinline__ float* x() const { return e_q() + rows * m_task.q.m; }    // (d_padded,tokens), or two
  __device__ __forceinline__ float* scratch() const { return x() + m_task.q.tiles() * m_task.q.tile_size(); }

  __device__ __forceinline__ double bias(int j) const {
    return m_row < 0 ? minus_infinity : m_task.b.between(m_head, m_row, j);
  }
  __device__ __forceinline__ bool attends_to(int j) const {
    return j < m_task.k.x.tokens &&
           !(m_task.U.mask &&
             !m_task.U.mask[static_cast<std::ptrdiff_t>(m_z / m_task.U.V.heads) * m_task.U.V.tokens + j]);
  }

  // log sum_f exp(+-w_f.(q + k)) of this thread's row and key, from the coordinates of the keys. All threads must call
  // it
  __device__ __forceinline__ double log_of_features(const float* coordinates) const {
    const bool both = m_task.k.kind == FeatureKind::hyperbolic;
    float max_exponent = -largest_float, sum = 0;
    for (int f0 = 0; f0 < m_task.k.m; f0 += k_tile) {
      float part[FeatureShape::at_once] = {};
      const int first = m_g * FeatureShape::at_once, count = min(k_tile, m_task.k.m - f0);
      project(m_task.k, m_w, coordinates + m_t, f0 + first, part);
      for (int f = 0; f < FeatureShape::at_once; ++f) e_k()[(first + f) * keys + m_t] = part[f];
      __syncthreads();
      const auto exponent = [&](int f) { return e_q()[(f0 + f) * rows + m_g] + e_k()[f * keys + m_t]; };
      float next = max_exponent;
      for (int f = 0; f < count; ++f) next = fmaxf(next, both ? fabsf(exponent(f)) : exponent(f));
      sum *= expf(max_exponent - next);
      for (int f = 0; f < count; ++f) {
        sum += expf(exponent(f) - next);
        if (both) sum += expf(-exponent(f) - next);
      }
      max_exponent = next;
      __syncthreads();
    }
    return static_cast<double>(max_exponent) + log(static_cast<double>(sum));
  }

  // adds the keys from j0 on; log_weight is the logarithm of the weight of this thread's row and key
  __device__ __forceinline__ void add_keys(int j0, double log_weight) {
    double* of_row = log_weights() + m_g * keys;
    float* weight = weights() + m_g * keys;
    of_row[m_t] = log_weight;
    __syncthreads();
    double max_log = m_max_log;
    for (int t = 0; t < keys; ++t) max_log = fmax(max_log, of_row[t]);
    weight[m_t] = log_weight == minus_infinity ? 0.0f : static_cast<float>(exp(log_weight - max_log));
    __syncthreads();
    if (max_log == minus_infinity) return;
    const ColumnsOf<S> U = m_task.U.of(m_z);
    float N = 0, D = 0;
    for (int t = 0; t < keys; ++t) {
      if (of_row[t] == minus_infinity) continue;
      if (m_p0 + m_t < U.p) N = fmaf(weight[t], U(j0 + t, m_p0 + m_t), N);
      D += weight[t];
    }
    const float factor = static_cast<float>(exp(m_max_log - max_log));
    m_N = fmaf(factor, m_N, N);
    m_D = fmaf(factor, m_D, D);
    m_max_log = max_log;
  }

  const LogDomainTask<S>& m_task;
  int m_z, m_head, m_p0;
  int m_t, m_g;            // of this thread: its key of the tile or column of y; its row among those of the block
  int m_row, m_last = -1;  // the query of this thread's row, -1 if there is none; the last query of the block
  const float* m_w;
  double m_max_log = minus_infinity;
  float m_N = 0, m_D = 0;
};

/// Each block computes every gridDim.x-th group of rows. Blocks (groups of rows, z and tiles of columns).
template <Storage S>
__global__ void __launch_bounds__(FeatureShape::threads) log_domain_kernel(LogDomainTask<S> task) {
  start_kernel();
  constexpr int rows = LogDomainShape::rows;
  const int column_tiles = TileShape::column_tiles(task.U.V.channels), z = static_cast<int>(blockIdx.y) / column_tiles;
  const int p0 = static_cast<int>(blockIdx.y) % column_tiles * LogDomainShape::columns, count = task.rows.sizes[z];
  for (int at = static_cast<int>(blockIdx.x) * rows; at < count; at += static_cast<int>(gridDim.x) * rows) {
    __syncthreads();  // all threads have finished the previous rows
    LogDomainTile<S> y(task, z, at, p0);
    y.add_all_keys();
    y.store_row();
  }
}

/// Queues the recomputation of the listed rows of `z` matrices, by at least `blocks` blocks, or fewer if these suffice
/// for all rows.
template <Storage S>
void queue_log_domain(const LogDomainTask<S>& task, int z, int blocks, cudaStream_t stream) {
  if (task.q.x.tokens == 0 || z == 0) return;
  const int others = z * TileShape::column_tiles(task.U.V.channels);
  const int turns =
      std::min((task.q.x.tokens + LogDomainShape::rows - 1) / LogDomainShape::rows, (blocks + others - 1) / others);
  launch("recomputing rows in the log domain", log_domain_kernel<S>,
         dim3{static_cast<unsigned>(turns), static_cast<unsigned>(others), 1}, dim3{FeatureShape::threads, 1, 1},
         LogDomainShape::shared(task.q.d_padded, task.q.tiles(), task.q.m), stream, task);
}

}  // namespace nprf::cuda
