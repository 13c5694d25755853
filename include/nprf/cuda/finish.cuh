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

/// y = N / D, each of them the sum of its parts, added up in their order.
template <Storage S>
struct FinishTask {
  Sums sums;
  int z, n_q, p, heads;
  DeviceMatrixView<S> y;
  Counts* counts;
};

/// A thread for each scalar of y, or for each row where there are no columns.
template <Storage S>
__global__ void __launch_bounds__(256) finish_kernel(FinishTask<S> task) {
  const int p = task.p;
  const std::ptrdiff_t rows = static_cast<std::ptrdiff_t>(task.z) * task.n_q;
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::ptrdiff_t row = at / max(p, 1);
  const int column = static_cast<int>(at % max(p, 1));
  if (row >= rows) return;
  float denominator = 0, numerator = 0;
  for (int part = 0; part < task.sums.parts; ++part) denominator += task.sums.D[part * rows + row];
  const bool empty = denominator == 0;
  if (column == 0) {
    if (empty) atomicAdd(&task.counts->empty_rows, 1);
    if (!empty && !(denominator > 0)) atomicAdd(&task.counts->indefinite_rows, 1);
  }
  if (column >= p) return;
  for (int part = 0; part < task.sums.parts; ++part) numerator += task.sums.N[(part * rows + row) * p + column];
  const int z = static_cast<int>(row / task.n_q);
  const std::ptrdiff_t i = row % task.n_q;
  store(task.y.data + z / task.heads * task.y.batch_stride + z % task.heads * task.y.head_stride +
            i * task.y.token_stride + column,
        empty ? 0.0f : numerator / denominator);
}

template <Storage S>
void queue_finish(const FinishTask<S>& task, cudaStream_t stream) {
  constexpr int threads = 256;
  check(cudaMemsetAsync(task.counts, 0, sizeof(Counts), stream), "clearing counts");
  const std::ptrdiff_t scalars = static_cast<std::ptrdiff_t>(task.z) * task.n_q * (task.p > 0 ? task.p : 1);
  if (scalars == 0) return;
  launch("finish", finish_kernel<S>, dim3{static_cast<unsigned>((scalars + threads - 1) / threads), 1, 1},
         dim3{threads, 1, 1}, 0, stream, task);
}

}  // namespace nprf::cuda
