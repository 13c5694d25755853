// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include "nprf/core/row_quotient.hpp"
#include "nprf/cuda/device/call_counters.cuh"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/scales.cuh"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/position/attention_mask.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"

namespace nprf::cuda {

/// Computes y = N / D.
template <Storage S>
struct NormalizeTask {
  CheckedSums sums;
  bool positive;          // whether no feature is negative
  DeviceMatrixView<S> y;  // [.., n_q, p]
  RowList
      failing_rows;  // rows without full precision, to be recomputed (exact/recomputed_rows.cuh); null: there are none
  AttentionMask attention_mask;
  Counts* counts;
};

/// Counts a row with the denominator D, or lists it to be recomputed.
template <Storage S>
__device__ void classify_row(const NormalizeTask<S>& task, int z, int i, std::ptrdiff_t row, float D) {
  if (D != D) return;
  const bool has_precision = denominator_keeps_precision(D, task.positive);
  if (!has_precision && !task.attention_mask.attends_any(z, i)) {
    atomicAdd(&task.counts->empty_rows, 1);
    return;
  }
  if (!has_precision && task.failing_rows.rows) {
    task.failing_rows.append(z, i);
    return;
  }
  if (has_precision && D > 0 && !task.sums.is_recomputed(row)) return;
  bool is_finite = true;
  for (int c = 0; c < task.sums.sums.p; ++c) is_finite &= fabsf(task.sums.numerator(row, c)) <= largest_float;
  if (!is_finite) return;
  if (D <= 0) atomicAdd(&task.counts->indefinite_rows, 1);
  if (task.sums.is_recomputed(row)) atomicAdd(&task.counts->repaired_rows, 1);
}

/// A row's quotients are N * power * inverse, with one division for each row: power is a power of two near 1 / |D|, and
/// inverse = 1 / (D power), so that for a normal D neither product overflows or underflows unless the quotient does.
struct RowFactors {
  float power, inverse;  // power 0: D is 0, and so are the quotients

  static __device__ __forceinline__ RowFactors of(float D) {
    const float power = power_of_two_scale(magnitude(D)).inverse;
    return D == 0 ? RowFactors{0, 0} : RowFactors{power, 1 / (D * power)};
  }
};

/// A thread stores `width` consecutive entries of `turns` rows of y.
struct NormalizeShape {
  static constexpr int threads = 128, turns = 2;  // turns: rows of a thread
  template <Storage S>
  static constexpr int width = 16 / sizeof(S);
};

/// blockIdx.x: rows, blockIdx.y: columns, blockIdx.z: z. In a block threadIdx.x: columns, threadIdx.y: rows.
template <Storage S, int width>
__global__ void __launch_bounds__(NormalizeShape::threads) normalize_kernel(NormalizeTask<S> task) {
  start_kernel();
  auto* of_rows = shared_memory<RowFactors>();
  const int z = static_cast<int>(blockIdx.z), p = task.sums.sums.p, n_q = static_cast<int>(task.y.tokens);
  const int step = static_cast<int>(blockDim.y), pieces = static_cast<int>(blockDim.x);
  const int piece = static_cast<int>(threadIdx.x), t = static_cast<int>(threadIdx.y);
  const int first = static_cast<int>(blockIdx.x) * step * NormalizeShape::turns;
  const int rows = min(step * NormalizeShape::turns, n_q - first);
  const std::ptrdiff_t first_row = static_cast<std::ptrdiff_t>(z) * n_q + first;
  for (int k = t * pieces + piece; k < rows; k += step * pieces) {
    const float D = task.sums.denominator(first_row + k);
    of_rows[k] = RowFactors::of(D);
    if (blockIdx.y == 0) classify_row(task, z, first + k, first_row + k, D);
  }
  __syncthreads();
  const int column = (static_cast<int>(blockIdx.y) * pieces + piece) * width;
  if (column >= p) return;
  const float scale = task.sums.scale(z);
  S* y = row_of(task.y, z, first) + column;
  for (int k = t; k < rows; k += step) {
    const auto [power, inverse] = of_rows[k];
    const float factor = scale * inverse;
    float entries[width] = {};
    if (power != 0) task.sums.add_numerators(first_row + k, column, entries);
#pragma unroll
    for (int c = 0; c < width; ++c) entries[c] = entries[c] * power * factor;
    store_all(y + k * task.y.token_stride, entries);
  }
}

template <Storage S>
void queue_normalize(const NormalizeTask<S>& task, cudaStream_t stream) {
  constexpr int width = NormalizeShape::width<S>;
  const int p = task.sums.sums.p;
  if (task.sums.sums.rows == 0) return;
  const bool is_wide = p > 0 && p % width == 0 && is_aligned_by(task.y, 16);
  const int pieces = std::max(1, is_wide ? p / width : p), columns = std::min(pieces, NormalizeShape::threads),
            step = NormalizeShape::threads / columns, rows = step * NormalizeShape::turns;
  const auto blocks = [](std::ptrdiff_t n, int size) { return static_cast<unsigned>((n + size - 1) / size); };
  launch("normalising rows", is_wide ? normalize_kernel<S, width> : normalize_kernel<S, 1>,
         dim3{blocks(task.y.tokens, rows), blocks(pieces, columns), blocks(task.y.batch * task.y.heads, 1)},
         dim3{static_cast<unsigned>(columns), static_cast<unsigned>(step), 1},
         sizeof(RowFactors) * static_cast<unsigned>(rows), stream, task);
}

}  // namespace nprf::cuda
