// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/device/value_columns.cuh"
#include "nprf/cuda/position/visibility.cuh"
#include "nprf/cuda/toeplitz/product.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"

namespace nprf::cuda {

/// The columns that products of gradients have instead of features, by channel:
///
///     G [z, p + 1, stride]   dL/d[N D] of y = N / D:  G_c = dy_c / D,  G_p = -sum_c dy_c N_c / D^2
///     H [z, p + 1, stride]   the same of rows that were repaired, where it is asked for: G is zero there
///     U [z, p + 1, stride]   [V 1]
///
/// zero for queries whose D is zero, underflows or is infinite, for keys that are padding or whose values are no
/// numbers and not seen, and beyond the tokens. Where features tell logarithms those queries that see a key are marked,
/// and have their gradients by attention/recompute_log_domain_backward.cuh.
template <Storage S>
struct GradientColumnsTask {
  Operand<S> dy;     // (n_q,p)
  CheckedSums sums;  // of the forward product
  bool positive;     // features
  Columns<S> V;      // (n_k,p + 1)
  int z, stride_q, stride_k;
  float *G, *H, *U;  // H may be null
  bool* recomputed;  // sums.again, where H is not null: stays true of rows that H is not zero of
  bool* lost;        // [z, n_q], or null: those that see a key
  int* lost_rows;    // [z]: how many, 0 before
  Visibility seen;
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
    const bool hidden = !finite && !task.seen.is_attended(z, t);  // touches nothing
    for (int c = 0; c <= p; ++c) put(task.U, task.stride_k, c, hidden ? 0.0f : V(t, c));
    return;
  }
  if (t >= task.stride_q) return;
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(z) * n_q + t;
  const float D = t < n_q ? task.sums.denominator(row) : 0.0f;
  const bool has_gradients = D != D || has_full_precision(D, task.positive);
  const bool apart = task.H && t < n_q && task.sums.is_recomputed(row);
  const auto put_gradient = [&](int column, float value) {
    put(task.G, task.stride_q, column, apart ? 0.0f : value);
    if (task.H) put(task.H, task.stride_q, column, apart ? value : 0.0f);
  };
  if (apart && !has_gradients) task.recomputed[row] = false;
  if (task.lost && t < n_q) {
    const bool lost = !has_gradients && task.seen.attends_any(z, t);
    task.lost[row] = lost;
    if (lost) atomicAdd(task.lost_rows + z, 1);
  }
  float along = 0;
  for (int c = 0; c < p; ++c) {
    float g = 0;
    if (has_gradients) {
      const float dy = to_float(task.dy.of(z)[t * task.dy.token_stride + c * task.dy.channel_stride]);
      g = dy / D;
      along = fmaf(dy, task.sums.quotient(z, row, c, D), along);
    }
    put_gradient(c, g);
  }
  put_gradient(p, has_gradients ? -along / D : 0.0f);
}

template <Storage S>
void queue_gradient_columns(const GradientColumnsTask<S>& task, cudaStream_t stream) {
  constexpr int threads = 256;
  const int most = task.stride_q > task.stride_k ? task.stride_q : task.stride_k;
  if (most == 0 || task.z == 0) return;
  launch("gradients: columns", gradient_columns_kernel<S>,
         dim3{blocks_of<threads>(most), 2, static_cast<unsigned>(task.z)}, dim3{threads, 1, 1}, 0, stream, task);
}

/// x = N, and more of matrices that have lost rows.
template <Storage S>
struct StoreTask {
  Sums sums;
  const int* lost;        // [z]: how many; null: none
  const float* more;      // [z, n, p], where there are any
  DeviceMatrixView<S> x;  // [.., n, p]
};

/// A thread for each scalar.
template <Storage S>
__global__ void __launch_bounds__(256) store_kernel(StoreTask<S> task) {
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(blockIdx.x) * 256 + threadIdx.x;
  const std::ptrdiff_t row = at / task.sums.p, n = task.x.tokens;
  const int column = static_cast<int>(at % task.sums.p);
  if (row >= task.sums.rows) return;
  const float more = task.lost && task.lost[row / n] > 0 ? task.more[at] : 0.0f;
  store(row_of(task.x, row / n, row % n) + column, task.sums.numerator(row, column) + more);
}

template <Storage S>
void queue_store(const StoreTask<S>& task, cudaStream_t stream) {
  constexpr int threads = 256;
  if (task.x.size() == 0) return;
  launch("gradients: values", store_kernel<S>, dim3{blocks_of<threads>(task.x.size()), 1, 1}, dim3{threads, 1, 1}, 0,
         stream, task);
}

}  // namespace nprf::cuda
