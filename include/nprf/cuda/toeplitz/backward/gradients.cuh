// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/core/row_quotient.hpp"
#include "nprf/cuda/device/call_counters.cuh"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/reductions.cuh"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/device/value_columns.cuh"
#include "nprf/cuda/position/attention_mask.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"

namespace nprf::cuda {

/// Computes the columns that take the place of features in the products of the backward pass, by channel:
///
///     G [z, p + 1, stride]   dL/d[N D] of y = N / D:  G_c = dy_c / D,  G_p = -sum_c dy_c N_c / D^2
///     H [z, p + 1, stride]   if not null, G of the rows that are recomputed, in which G itself is then zero
///     U [z, p + 1, stride]   [V 1]
///
/// G and H are zero for queries whose D is zero, underflows or is infinite. U is zero for keys that are padding, and
/// for keys with non-finite values that no query attends to. All are zero beyond the last token. G and H are zero, too,
/// for rows that are recomputed from their pairs, since attention/exact/backward.cuh computes the gradients of these
/// rows. Without the list failing_rows they are the rows whose kind is not RowKind::field. With it they are the rows
/// that are added to the list here, because their D is zero, underflows or is infinite, though they attend to a key.
template <Storage S>
struct GradientColumnsTask {
  Operand<S> dy;     // (n_q,p), p = d_v
  CheckedSums sums;  // of the forward product
  bool positive;     // whether the features are positive
  Columns<S> V;      // (n_k,p + 1)
  int z, stride_q, stride_k;
  float *G, *H, *U;      // H may be null
  bool* recomputed;      // the flags in `sums`, if H is not null; cleared for rows whose H is zero
  RowList failing_rows;  // rows are added to this list; null: there is no list
  RowKind* kinds;        // [z, n_q]: set to RowKind::field if there is a list; null: no row has exact pairs
  AttentionMask attention_mask;
};

/// A block has a tile of tokens, which it transposes in shared memory: a warp reads 32 channels of a token, and writes
/// 32 tokens of a channel, both in whole sectors.
struct GradientColumnsShape {
  static constexpr int tokens = 32, channels = 32, warps = 8, threads = 32 * warps, turns = tokens / warps,
                       stride = tokens + 1;
};

/// Computes the columns for a tile of tokens. All threads of a block of GradientColumnsShape take part.
template <Storage S>
class GradientColumnsTile {
 public:
  __device__ __forceinline__ explicit GradientColumnsTile(const GradientColumnsTask<S>& task)
      : m_task(task),
        m_z(static_cast<int>(blockIdx.z)),
        m_t0(static_cast<int>(blockIdx.x) * Shape::tokens),
        m_p(task.dy.channels),
        m_lane(static_cast<int>(threadIdx.x) % 32),
        m_warp(static_cast<int>(threadIdx.x) / 32) {}

  __device__ __forceinline__ void store_U() const {
    const ColumnsOf<S> V = m_task.V.of(m_z);
    bool is_ignored[Shape::turns];  // non-finite, and no query attends to it: must not affect any gradient
    for (int turn = 0; turn < Shape::turns; ++turn) {
      const int j = m_t0 + token(turn);
      bool finite = true;
      for (int c = m_lane; c < m_p; c += 32) finite &= fabsf(V(j, c)) <= largest_float;
      const bool all_finite = over_warp(finite ? 1 : 0, [](int x, int y) { return min(x, y); }) == 1;
      is_ignored[turn] = !all_finite && !m_task.attention_mask.is_attended(m_z, j);
    }
    for (int c0 = 0; c0 <= m_p; c0 += Shape::channels)
      transpose(
          c0, [&](int turn) { return is_ignored[turn] ? 0.0f : V(m_t0 + token(turn), c0 + m_lane); },
          [&](int column, float x) { put(m_task.U, m_task.stride_k, column, x); });
  }

  __device__ __forceinline__ void store_G_and_H() const {
    const int n_q = m_task.dy.tokens;
    const S* dy = m_task.dy.of(m_z);
    Row rows[Shape::turns];
    float dy_y[Shape::turns] = {};
    for (int turn = 0; turn < Shape::turns; ++turn) rows[turn] = row(m_t0 + token(turn));
    const int own = m_t0 + m_lane;  // the token that this thread writes
    const bool moves = m_task.H && own < n_q && m_task.sums.is_recomputed(first_row() + own);
    __syncthreads();  // all threads have read the flags
    if (m_warp == 0) mark(own);
    const auto put_gradient = [&](int column, float x) {
      put(m_task.G, m_task.stride_q, column, moves ? 0.0f : x);
      if (m_task.H) put(m_task.H, m_task.stride_q, column, moves ? x : 0.0f);
    };
    for (int c0 = 0; c0 <= m_p; c0 += Shape::channels)
      transpose(
          c0,
          [&](int turn) {
            const auto [D, has_gradients] = rows[turn];
            const int c = c0 + m_lane, i = m_t0 + token(turn);
            if (!has_gradients || c >= m_p) return 0.0f;
            const float of_dy = to_float(dy[i * m_task.dy.token_stride + c * m_task.dy.channel_stride]);
            dy_y[turn] = fmaf(of_dy, m_task.sums.quotient(m_z, first_row() + i, c, D), dy_y[turn]);
            return of_dy / D;
          },
          [&](int column, float x) {
            if (column < m_p) put_gradient(column, x);
          });
    __syncthreads();
    for (int turn = 0; turn < Shape::turns; ++turn) {
      const float sum = over_warp(dy_y[turn], Sum());
      if (m_lane == 0) tile()[token(turn)] = rows[turn].has_gradients ? -sum / rows[turn].D : 0.0f;
    }
    __syncthreads();
    if (m_warp == 0) put_gradient(m_p, tile()[m_lane]);
  }

 private:
  using Shape = GradientColumnsShape;
  struct Row {
    float D;
    bool has_gradients;
  };

  __device__ __forceinline__ static float* tile() { return shared_memory<float>(); }  // (channels,tokens)
  // the token of the tile that this warp reads in a turn
  __device__ __forceinline__ int token(int turn) const { return turn * Shape::warps + m_warp; }
  __device__ __forceinline__ std::ptrdiff_t first_row() const {
    return static_cast<std::ptrdiff_t>(m_z) * m_task.dy.tokens;
  }
  __device__ __forceinline__ Row row(int i) const {
    const float D = i < m_task.dy.tokens ? m_task.sums.denominator(first_row() + i) : 0.0f;
    const bool is_recomputed = D == D && m_task.kinds && !m_task.failing_rows.rows && i < m_task.dy.tokens &&
                               m_task.kinds[first_row() + i] != RowKind::field;
    return {D, D != D || (denominator_keeps_precision(D, m_task.positive) && !is_recomputed)};
  }
  // updates the flag and the kind of query i; adds it to failing_rows if it attends to a key but has no gradients
  __device__ __forceinline__ void mark(int i) const {
    if (i >= m_task.dy.tokens) return;
    const std::ptrdiff_t at = first_row() + i;
    const bool has_gradients = row(i).has_gradients;
    if (m_task.H && m_task.sums.is_recomputed(at) && !has_gradients) m_task.recomputed[at] = false;
    if (!m_task.failing_rows.rows) return;
    m_task.kinds[at] = RowKind::field;
    if (!has_gradients && m_task.attention_mask.attends_any(m_z, i)) m_task.failing_rows.append(m_z, i);
  }
  __device__ __forceinline__ void put(float* to, int stride, int column, float x) const {
    if (m_t0 + m_lane < stride)
      to[(static_cast<std::ptrdiff_t>(m_z) * (m_p + 1) + column) * stride + m_t0 + m_lane] = x;
  }
  // transposes the columns c0 .. c0 + 31 of the tile, of those 0 .. p. A warp reads one token in each turn: from(turn)
  // is the entry of token(turn) in column c0 + m_lane. Then it writes one column at a time: to(column, x) gets the
  // entry x of the tile's token m_lane in that column
  template <class From, class To>
  __device__ __forceinline__ void transpose(int c0, From&& from, To&& to) const {
    __syncthreads();
#pragma unroll
    for (int turn = 0; turn < Shape::turns; ++turn) tile()[m_lane * Shape::stride + token(turn)] = from(turn);
    __syncthreads();
    for (int c = m_warp; c < Shape::channels; c += Shape::warps)
      if (c0 + c <= m_p) to(c0 + c, tile()[c * Shape::stride + m_lane]);
  }

  const GradientColumnsTask<S>& m_task;
  int m_z, m_t0, m_p, m_lane, m_warp;
};

/// blockIdx.x: tile of tokens, blockIdx.y: 0 for G and H of queries, 1 for U of keys, blockIdx.z: z.
template <Storage S>
__global__ void __launch_bounds__(GradientColumnsShape::threads) gradient_columns_kernel(GradientColumnsTask<S> task) {
  start_kernel();
  const GradientColumnsTile<S> tile(task);
  const int t0 = static_cast<int>(blockIdx.x) * GradientColumnsShape::tokens;
  if (blockIdx.y == 1 && t0 < task.stride_k) tile.store_U();
  if (blockIdx.y == 0 && t0 < task.stride_q) tile.store_G_and_H();
}

template <Storage S>
void queue_gradient_columns(const GradientColumnsTask<S>& task, cudaStream_t stream) {
  using Shape = GradientColumnsShape;
  const int most = task.stride_q > task.stride_k ? task.stride_q : task.stride_k;
  if (most == 0 || task.z == 0) return;
  launch("gradients: columns", gradient_columns_kernel<S>,
         dim3{blocks_of<Shape::tokens>(most), 2, static_cast<unsigned>(task.z)}, dim3{Shape::threads, 1, 1},
         sizeof(float) * Shape::channels * Shape::stride, stream, task);
}

/// Computes x: N plus the contributions of exact pairs, summed over the matrices z of a group in their order.
template <Storage S>
struct StoreTask {
  Sums sums;              // with rows [z, n]
  const float* terms;     // [z, n, p]: of exact pairs; null: none
  DeviceMatrixView<S> x;  // [.., n, p], one matrix for each group
  int group;              // how many consecutive z are summed
};

/// blockIdx.x and threadIdx.y: token, blockIdx.y: matrix of x, threadIdx.x: channel.
template <Storage S>
__global__ void __launch_bounds__(256) store_kernel(StoreTask<S> task) {
  start_kernel();
  const int n = static_cast<int>(task.x.tokens), matrix = static_cast<int>(blockIdx.y);
  const int i = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  if (i >= n) return;
  S* x = row_of(task.x, matrix, i);
  for (int column = static_cast<int>(threadIdx.x); column < task.sums.p; column += static_cast<int>(blockDim.x)) {
    float sum = 0;
    for (int z = matrix * task.group; z < (matrix + 1) * task.group; ++z) {
      const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(z) * n + i;
      sum += task.sums.numerator(row, column) + (task.terms ? task.terms[row * task.sums.p + column] : 0.0f);
    }
    store(x + column, sum);
  }
}

template <Storage S>
void queue_store(const StoreTask<S>& task, cudaStream_t stream) {
  constexpr int channels = 32, tokens = 8;
  if (task.x.size() == 0) return;
  launch("gradients: values", store_kernel<S>,
         dim3{blocks_of<tokens>(task.x.tokens), static_cast<unsigned>(task.x.batch * task.x.heads), 1},
         dim3{channels, tokens, 1}, 0, stream, task);
}

}  // namespace nprf::cuda
