// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/counts.cuh"
#include "nprf/cuda/launch.cuh"
#include "nprf/cuda/operand.cuh"
#include "nprf/cuda/product.cuh"

namespace nprf::cuda {

/// Rows that were computed again, and what their parts behind the first one are.
struct Repaired {
  const bool* rows = nullptr;  // [z, n_q], or null: none
  Sums more{};

  __device__ __forceinline__ bool has(std::ptrdiff_t row) const { return rows && rows[row]; }
  __device__ __forceinline__ float numerator(const Sums& sums, std::ptrdiff_t row, int column) const {
    return sums.numerator(row, column) + (has(row) ? more.numerator(row, column) : 0.0f);
  }
  __device__ __forceinline__ float denominator(const Sums& sums, std::ptrdiff_t row) const {
    return sums.denominator(row) + (has(row) ? more.denominator(row) : 0.0f);
  }
};

/// y = N / D.
template <Storage S>
struct FinishTask {
  Sums sums;
  Repaired repaired;
  const int* largest;     // [z]: N is divided by the unit of this magnitude; null: by nothing
  bool positive;          // features
  DeviceMatrixView<S> y;  // [.., n_q, p]
  RowList lost;           // rows whose denominator is not sound, to be rescued; none if it has no memory
  Counts* counts;
};

/// A thread for each scalar of y, or for each row where there are no columns.
template <Storage S>
__global__ void __launch_bounds__(256) finish_kernel(FinishTask<S> task) {
  const int p = task.sums.p;
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::ptrdiff_t row = at / max(p, 1), n_q = task.y.tokens;
  const int column = static_cast<int>(at % max(p, 1)), z = static_cast<int>(row / n_q), i = static_cast<int>(row % n_q);
  if (row >= task.sums.rows) return;
  const float denominator = task.repaired.denominator(task.sums, row);
  const bool empty = denominator == 0;
  if (column == 0) {
    const bool number = denominator == denominator;
    if (task.lost.rows && number && !is_sound(denominator, task.positive))
      task.lost.append(z, i);
    else if (empty)
      atomicAdd(&task.counts->empty_rows, 1);
    else if (!is_sound(denominator, true))
      atomicAdd(&task.counts->indefinite_rows, 1);
    else if (task.repaired.has(row))
      atomicAdd(&task.counts->repaired_rows, 1);
  }
  if (column >= p) return;
  const float unit = task.largest ? unit_of(task.largest[z]).value : 1.0f;
  store(row_of(task.y, z, i) + column,
        empty ? 0.0f : unit * (task.repaired.numerator(task.sums, row, column) / denominator));
}

template <Storage S>
void queue_finish(const FinishTask<S>& task, cudaStream_t stream) {
  constexpr int threads = 256;
  const std::ptrdiff_t scalars = task.sums.rows * (task.sums.p > 0 ? task.sums.p : 1);
  if (scalars == 0) return;
  launch("finish", finish_kernel<S>, dim3{blocks_of<threads>(scalars), 1, 1}, dim3{threads, 1, 1}, 0, stream, task);
}

}  // namespace nprf::cuda
