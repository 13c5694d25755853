// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/core/row_quotient.hpp"
#include "nprf/cuda/device/call_counters.cuh"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/position/attention_mask.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"

namespace nprf::cuda {

/// Computes y = N / D.
template <Storage S>
struct NormalizeTask {
  CheckedSums sums;
  bool positive;            // whether the features are
  DeviceMatrixView<S> y;    // [.., n_q, p]
  RowList log_domain_rows;  // rows without full precision, to be recomputed in the log domain; null `rows`: none
  AttentionMask attention_mask;
  Counts* counts;
};

/// Counts a row with the denominator D, or lists it to be recomputed in the log domain.
template <Storage S>
__device__ void classify_row(const NormalizeTask<S>& task, int z, int i, std::ptrdiff_t row, float D) {
  if (D != D) return;
  const bool has_precision = denominator_keeps_precision(D, task.positive);
  if (!has_precision && !task.attention_mask.attends_any(z, i)) {
    atomicAdd(&task.counts->empty_rows, 1);
    return;
  }
  if (!has_precision && task.log_domain_rows.rows) {
    task.log_domain_rows.append(z, i);
    return;
  }
  if (has_precision && D > 0 && !task.sums.is_recomputed(row)) return;
  bool is_finite = true;
  for (int c = 0; c < task.sums.sums.p; ++c) is_finite &= fabsf(task.sums.numerator(row, c)) <= largest_float;
  if (!is_finite) return;
  if (D <= 0) atomicAdd(&task.counts->indefinite_rows, 1);
  if (!has_precision) atomicAdd(&task.counts->imprecise_rows, 1);
  if (task.sums.is_recomputed(row)) atomicAdd(&task.counts->repaired_rows, 1);
}

/// One thread per scalar of y, or one per row if y has no columns.
template <Storage S>
__global__ void __launch_bounds__(256) normalize_kernel(NormalizeTask<S> task) {
  const int p = task.sums.sums.p;
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::ptrdiff_t row = at / max(p, 1), n_q = task.y.tokens;
  const int column = static_cast<int>(at % max(p, 1)), z = static_cast<int>(row / n_q), i = static_cast<int>(row % n_q);
  if (row >= task.sums.sums.rows) return;
  const float denominator = task.sums.denominator(row);
  if (column == 0) classify_row(task, z, i, row, denominator);
  if (column >= p) return;
  store(row_of(task.y, z, i) + column, denominator == 0 ? 0.0f : task.sums.quotient(z, row, column, denominator));
}

template <Storage S>
void queue_normalize(const NormalizeTask<S>& task, cudaStream_t stream) {
  constexpr int threads = 256;
  const auto& [N, D, parts, p, rows] = task.sums.sums;
  const std::ptrdiff_t scalars = rows * (p > 0 ? p : 1);
  if (scalars == 0) return;
  launch("normalising rows", normalize_kernel<S>, dim3{blocks_of<threads>(scalars), 1, 1}, dim3{threads, 1, 1}, 0,
         stream, task);
}

}  // namespace nprf::cuda
