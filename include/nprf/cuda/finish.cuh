// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/launch.cuh"
#include "nprf/cuda/operand.cuh"
#include "nprf/cuda/product.cuh"

namespace nprf::cuda {

/// What a call did; it lies on the device, and may be copied when its stream has come so far.
struct Counts {
  int empty_rows;       // their denominator is zero, since they see no key or all features underflow; they are zero
  int indefinite_rows;  // their denominator is negative or NaN
};

/// y = N / D.
template <Storage S>
struct FinishTask {
  Sums sums;
  DeviceMatrixView<S> y;  // [.., n_q, p]
  Counts* counts;
};

/// A thread for each scalar of y, or for each row where there are no columns.
template <Storage S>
__global__ void __launch_bounds__(256) finish_kernel(FinishTask<S> task) {
  const int p = task.sums.p;
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::ptrdiff_t row = at / max(p, 1), n_q = task.y.tokens;
  const int column = static_cast<int>(at % max(p, 1));
  if (row >= task.sums.rows) return;
  const float denominator = task.sums.denominator(row);
  const bool empty = denominator == 0;
  if (column == 0) {
    if (empty) atomicAdd(&task.counts->empty_rows, 1);
    if (!empty && !(denominator > 0)) atomicAdd(&task.counts->indefinite_rows, 1);
  }
  if (column >= p) return;
  store(row_of(task.y, row / n_q, row % n_q) + column, empty ? 0.0f : task.sums.numerator(row, column) / denominator);
}

template <Storage S>
void queue_finish(const FinishTask<S>& task, cudaStream_t stream) {
  constexpr int threads = 256;
  check(cudaMemsetAsync(task.counts, 0, sizeof(Counts), stream), "clearing counts");
  const std::ptrdiff_t scalars = task.sums.rows * (task.sums.p > 0 ? task.sums.p : 1);
  if (scalars == 0) return;
  launch("finish", finish_kernel<S>, dim3{blocks_of<threads>(scalars), 1, 1}, dim3{threads, 1, 1}, 0, stream, task);
}

}  // namespace nprf::cuda
