// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/core/row_quotient.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/device/value_columns.cuh"
#include "nprf/cuda/position/attention_mask.cuh"
#include "nprf/cuda/toeplitz/product.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"

namespace nprf::cuda {

/// The columns that take the place of features in the products of the backward pass, by channel:
///
///     G [z, p + 1, stride]   dL/d[N D] of y = N / D:  G_c = dy_c / D,  G_p = -sum_c dy_c N_c / D^2
///     H [z, p + 1, stride]   if requested, G of recomputed rows; G is zero there
///     U [z, p + 1, stride]   [V 1]
///
/// They are zero for queries whose D is zero, underflows or is infinite; for keys that are padding; for keys with
/// non-finite values that no query attends to; and beyond the last token. If the features are exponential, queries of
/// the first kind that attend to a key are marked in `log_domain`. attention/recompute_log_domain_backward.cuh computes
/// their gradients.
template <Storage S>
struct GradientColumnsTask {
  Operand<S> dy;     // (n_q,p)
  CheckedSums sums;  // of the forward product
  bool positive;     // whether the features are
  Columns<S> V;      // (n_k,p + 1)
  int z, stride_q, stride_k;
  float *G, *H, *U;      // H may be null
  bool* recomputed;      // the flags in `sums`, if H is not null; cleared for rows whose H is zero
  bool* log_domain;      // [z, n_q]: rows whose gradients are computed in the log domain; null: none
  int* log_domain_rows;  // [z]: how many; 0 before the launch
  AttentionMask attention_mask;
};

/// Blocks (tokens, queries or keys, z).
template <Storage S>
__global__ void __launch_bounds__(256) gradient_columns_kernel(GradientColumnsTask<S> task) {
  const int t = static_cast<int>(blockIdx.x * 256 + threadIdx.x), z = static_cast<int>(blockIdx.z);
  const int p = task.dy.channels, n_q = task.dy.tokens;
  const auto put = [&](float* to, int stride, int column, float value) {
    to[(static_cast<std::ptrdiff_t>(z) * (p + 1) + column) * stride + t] = value;
  };
  if (blockIdx.y == 1) {
    const ColumnsOf<S> V = task.V.of(z);
    if (t >= task.stride_k) return;
    bool finite = true;
    for (int c = 0; c < p; ++c) finite &= fabsf(V(t, c)) <= largest_float;
    const bool ignored = !finite && !task.attention_mask.is_attended(z, t);  // must not affect any gradient
    for (int c = 0; c <= p; ++c) put(task.U, task.stride_k, c, ignored ? 0.0f : V(t, c));
    return;
  }
  if (t >= task.stride_q) return;
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(z) * n_q + t;
  const float D = t < n_q ? task.sums.denominator(row) : 0.0f;
  const bool has_gradients = D != D || denominator_keeps_precision(D, task.positive);
  const bool recomputed_row = task.H && t < n_q && task.sums.is_recomputed(row);
  const auto put_gradient = [&](int column, float value) {
    put(task.G, task.stride_q, column, recomputed_row ? 0.0f : value);
    if (task.H) put(task.H, task.stride_q, column, recomputed_row ? value : 0.0f);
  };
  if (recomputed_row && !has_gradients) task.recomputed[row] = false;
  if (task.log_domain && t < n_q) {
    const bool log_domain = !has_gradients && task.attention_mask.attends_any(z, t);
    task.log_domain[row] = log_domain;
    if (log_domain) atomicAdd(task.log_domain_rows + z, 1);
  }
  float dy_y = 0;
  for (int c = 0; c < p; ++c) {
    float g = 0;
    if (has_gradients) {
      const float dy = to_float(task.dy.of(z)[t * task.dy.token_stride + c * task.dy.channel_stride]);
      g = dy / D;
      dy_y = fmaf(dy, task.sums.quotient(z, row, c, D), dy_y);
    }
    put_gradient(c, g);
  }
  put_gradient(p, has_gradients ? -dy_y / D : 0.0f);
}

template <Storage S>
void queue_gradient_columns(const GradientColumnsTask<S>& task, cudaStream_t stream) {
  constexpr int threads = 256;
  const int most = task.stride_q > task.stride_k ? task.stride_q : task.stride_k;
  if (most == 0 || task.z == 0) return;
  launch("gradients: columns", gradient_columns_kernel<S>,
         dim3{blocks_of<threads>(most), 2, static_cast<unsigned>(task.z)}, dim3{threads, 1, 1}, 0, stream, task);
}

/// x = N, plus terms of rows that features alone do not compute, summed over the matrices z of a group, in their order.
template <Storage S>
struct StoreTask {
  Sums sums;              // of rows [z, n]
  const float* terms;     // [z, n, p]; null: none
  const int* rows;        // [z]: how many such rows, where terms are valid only if there are any; null: terms are valid
  DeviceMatrixView<S> x;  // [.., n, p], one matrix for each group
  int group;              // z next to each other
};

/// One thread per scalar.
template <Storage S>
__global__ void __launch_bounds__(256) store_kernel(StoreTask<S> task) {
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(blockIdx.x) * 256 + threadIdx.x;
  const int p = task.sums.p, column = static_cast<int>(at % p);
  const std::ptrdiff_t n = task.x.tokens, i = at / p % n;
  const int matrix = static_cast<int>(at / p / n), first = matrix * task.group;
  if (first * n >= task.sums.rows) return;
  float sum = 0;
  for (int z = first; z < first + task.group; ++z) {
    const std::ptrdiff_t row = z * n + i;
    const bool has_term = task.terms && (!task.rows || task.rows[z] > 0);
    sum += task.sums.numerator(row, column) + (has_term ? task.terms[row * p + column] : 0.0f);
  }
  store(row_of(task.x, matrix, i) + column, sum);
}

template <Storage S>
void queue_store(const StoreTask<S>& task, cudaStream_t stream) {
  constexpr int threads = 256;
  if (task.x.size() == 0) return;
  launch("gradients: values", store_kernel<S>, dim3{blocks_of<threads>(task.x.size()), 1, 1}, dim3{threads, 1, 1}, 0,
         stream, task);
}

}  // namespace nprf::cuda
