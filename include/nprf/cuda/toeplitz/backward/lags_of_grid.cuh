// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/reductions.cuh"
#include "nprf/cuda/position/token_places.cuh"
#include "nprf/cuda/toeplitz/backward/lag_factors.cuh"
#include "nprf/cuda/toeplitz/backward/lags_tiled.cuh"
#include "nprf/cuda/toeplitz/backward/selected_queries.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"

namespace nprf::cuda {

/// Computes the gradients dL/db of the biases of a grid, of its lags and of its border, where Y = ((A B^T) o C) U,
/// c = exp(b) and G = dL/dY. For each entry
///
///     db[entry] = c[entry] sum (A_i.B_j) (G_i.U_j)    over the pairs (i, j) of the entry.
///
/// O(n^2 (r + p)) for n tokens.
///
/// If some queries are selected (selected.selected is not null), dL/dY is G + H: H has the rows of the selected
/// queries, G those of all others, and their other rows are zero. For an entry of a lag the sum is then over the
/// selected queries alone, since LagCorrelations adds the others. For an entry of the border it is over all queries.
/// This is O(n (r + p)) for each token without a slot and for each selected query, and O(n^2) comparisons for each
/// matrix z that has a selected query.
struct GridLagGradientTask : LagFactors {
  Operand<float> H;  // (n,p + 1)
  SelectedQueries selected;
  DeviceWeights c;
  int z, positions;
  float* db;  // [position, entries]
};

/// blockIdx.x: entry, blockIdx.y: position.
template <int threads>
__global__ void __launch_bounds__(threads) grid_lag_gradients_kernel(GridLagGradientTask task) {
  start_kernel();
  const int entry = static_cast<int>(blockIdx.x), position = static_cast<int>(blockIdx.y);
  const PairsOfEntry pairs{task.c.places, task.c.first, task.c.size, entry};
  const auto dot = [](int count, const float* x, std::ptrdiff_t x_stride, const float* y, std::ptrdiff_t y_stride) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum = fmaf(x[k * x_stride], y[k * y_stride], sum);
    return sum;
  };
  const float c = entry < task.c.size ? task.c(position, task.c.first + entry)
                                      : task.c.border[position * task.c.stride + entry - task.c.size];
  float sum = 0;
  for (int z = position; c != 0 && z < task.z; z += task.positions) {
    if (entry < task.c.size && !task.selected.any_in_matrix(z)) continue;
    const float *A = task.A.of(z), *B = task.B.of(z), *U = task.U.of(z), *G = task.G.of(z);
    const float* H = task.selected.selected ? task.H.of(z) : nullptr;
    const bool* selected = task.selected.selected;
    if (selected) selected += static_cast<std::ptrdiff_t>(z) * task.A.tokens;
    for (int k = static_cast<int>(threadIdx.x); k < pairs.count(); k += threads) {
      const auto [i, j] = pairs[k];
      if (i < 0 || (selected && !selected[i] && entry < task.c.size)) continue;
      // a reference to H or G would make the compiler copy the parameters to local memory
      const bool is_selected = selected && selected[i];
      const float* g = is_selected ? H + i * task.H.token_stride : G + i * task.G.token_stride;
      const std::ptrdiff_t g_stride = is_selected ? task.H.channel_stride : task.G.channel_stride;
      const float score = dot(task.A.channels, A + i * task.A.token_stride, task.A.channel_stride,
                              B + j * task.B.token_stride, task.B.channel_stride);
      const float g_u = dot(task.U.channels, g, g_stride, U + j * task.U.token_stride, task.U.channel_stride);
      sum = fmaf(score, g_u, sum);
    }
  }
  sum = over_block<threads>(shared_memory<float>(), sum, Sum());
  if (threadIdx.x == 0) task.db[static_cast<std::ptrdiff_t>(position) * gridDim.x + entry] = c * sum;
}

inline void queue_grid_lag_gradients(const GridLagGradientTask& task, cudaStream_t stream) {
  constexpr int threads = 128;
  launch(
      "gradients: lags of a grid", grid_lag_gradients_kernel<threads>,
      dim3{static_cast<unsigned>(task.c.size + task.c.places.border_size()), static_cast<unsigned>(task.positions), 1},
      dim3{threads, 1, 1}, threads * sizeof(float), stream, task);
}

}  // namespace nprf::cuda
