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
};

/// y = N / D, each of them the sum of its parts, added up in their order.
template <Storage S>
struct FinishTask {
  Sums sums;
  Repaired repaired;
  const int* largest;  // [z]: N is divided by the unit of this magnitude; null: by nothing
  bool positive;       // features
  int z, n_q, p, heads;
  DeviceMatrixView<S> y;
  RowList lost;  // rows whose denominator is not sound, to be rescued; none if it has no memory
  Counts* counts;
};

/// A thread for each scalar of y, or for each row where there are no columns.
template <Storage S>
__global__ void __launch_bounds__(256) finish_kernel(FinishTask<S> task) {
  const int p = task.p;
  const std::ptrdiff_t rows = static_cast<std::ptrdiff_t>(task.z) * task.n_q;
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::ptrdiff_t row = at / max(p, 1);
  const int column = static_cast<int>(at % max(p, 1)), z = static_cast<int>(row / task.n_q);
  const int i = static_cast<int>(row % task.n_q);
  if (row >= rows) return;
  const bool again = task.repaired.rows && task.repaired.rows[row];
  const Sums& more = task.repaired.more;
  float denominator = 0, numerator = 0;
  for (int part = 0; part < task.sums.parts; ++part) denominator += task.sums.D[part * rows + row];
  for (int part = 0; again && part < more.parts; ++part) denominator += more.D[part * rows + row];
  const bool empty = denominator == 0;
  if (column == 0) {
    const bool number = denominator == denominator;
    if (task.lost.rows && number && !is_sound(denominator, task.positive))
      task.lost.append(z, i);
    else if (empty)
      atomicAdd(&task.counts->empty_rows, 1);
    else if (!is_sound(denominator, true))
      atomicAdd(&task.counts->indefinite_rows, 1);
    else if (again)
      atomicAdd(&task.counts->repaired_rows, 1);
  }
  if (column >= p) return;
  for (int part = 0; part < task.sums.parts; ++part) numerator += task.sums.N[(part * rows + row) * p + column];
  for (int part = 0; again && part < more.parts; ++part) numerator += more.N[(part * rows + row) * p + column];
  const float unit = task.largest ? unit_of(task.largest[z]).value : 1.0f;
  store(task.y.data + z / task.heads * task.y.batch_stride + z % task.heads * task.y.head_stride +
            i * task.y.token_stride + column,
        empty ? 0.0f : unit * (numerator / denominator));
}

template <Storage S>
void queue_finish(const FinishTask<S>& task, cudaStream_t stream) {
  constexpr int threads = 256;
  const std::ptrdiff_t scalars = static_cast<std::ptrdiff_t>(task.z) * task.n_q * (task.p > 0 ? task.p : 1);
  if (scalars == 0) return;
  launch("finish", finish_kernel<S>, dim3{blocks_of<threads>(scalars), 1, 1}, dim3{threads, 1, 1}, 0, stream, task);
}

}  // namespace nprf::cuda
