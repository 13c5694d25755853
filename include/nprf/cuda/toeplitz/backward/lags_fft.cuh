// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>

#include "nprf/cuda/device/cufft.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/scales.cuh"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/device/value_columns.cuh"
#include "nprf/cuda/fft/complex.cuh"
#include "nprf/cuda/toeplitz/backward/lag_factors.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"
#include "nprf/cuda/toeplitz/fft/slab_kernels.cuh"
#include "nprf/fft/length.hpp"

namespace nprf::cuda {

/// sum += conj(w) u at each frequency, over the signals (pair, feature) of each position, in a fixed order. w and u are
/// the transforms of A_f G_k and of B_f U_k (LagCorrelations).
struct CorrelationTask {
  const float2 *w, *u;  // [pair, feature, length]
  int length, pairs_of_z, all_pairs, first_pair, pairs, features, positions;
  const int* largest;  // [z]: magnitudes. If infinite, all rows of z are recomputed, so that G is zero and z is skipped
  float2* sum;         // [position, length]
};

/// blockIdx.x and threadIdx.x: frequency, blockIdx.y: position.
template <int threads>
__global__ void __launch_bounds__(threads) correlation_kernel(CorrelationTask task) {
  start_kernel();
  const int k = static_cast<int>(blockIdx.x * threads + threadIdx.x), position = static_cast<int>(blockIdx.y);
  if (k >= task.length) return;
  float2& at = task.sum[static_cast<std::ptrdiff_t>(position) * task.length + k];
  float2 sum = at;
  const int end = min(task.pairs, task.all_pairs - task.first_pair);
  for (int pair = 0; pair < end; ++pair) {
    const int z = (task.first_pair + pair) / task.pairs_of_z;
    if (z % task.positions != position || task.largest[z] >= infinite_magnitude) continue;
    for (int f = 0; f < task.features; ++f) {
      const std::ptrdiff_t signal = static_cast<std::ptrdiff_t>(pair) * task.features + f;
      sum = sum + multiply_conjugate(task.u[signal * task.length + k], task.w[signal * task.length + k]);
    }
  }
  at = sum;
}

/// db[lag] += c[lag] correlation[lag mod length] / length.
struct CorrelatedLagsTask {
  const float2* correlation;  // [position, length]
  DeviceWeights c;
  int length, stride;
  float* db;  // db[position * stride + lag - c.first]
};

/// blockIdx.x and threadIdx.x: lag, blockIdx.y: position.
template <int threads>
__global__ void __launch_bounds__(threads) correlated_lags_kernel(CorrelatedLagsTask task) {
  start_kernel();
  const int at = static_cast<int>(blockIdx.x * threads + threadIdx.x), position = static_cast<int>(blockIdx.y);
  if (at >= task.c.size) return;
  const int lag = task.c.first + at;
  const float c = task.c(position, lag), scale = 1.0f / static_cast<float>(task.length);
  const std::ptrdiff_t k = lag < 0 ? task.length + lag : lag;
  if (c != 0)
    task.db[static_cast<std::ptrdiff_t>(position) * task.stride + at] +=
        c * (scale * task.correlation[static_cast<std::ptrdiff_t>(position) * task.length + k].x);
}

/// Computes the gradient dL/db of the bias of each lag by cuFFT, where Y = ((A B^T) o C) U, c = exp(b) and G = dL/dY.
/// It is a sum of correlations, one for each feature f and column k, accumulated as spectra:
///
///     db[lag] += c[lag] sum_{f,k} sum_i (A_f G_k)_i (B_f U_k)_{i + lag}.
///
/// O(r (p + 1) n log n) time. Memory: two slabs and cuFFT's workspace.
class LagCorrelations {
 public:
  LagCorrelations() = default;
  /// For z matrices of p + 1 columns and r features. `most_bytes` limits the two slabs together; each slab holds at
  /// least one transform.
  LagCorrelations(int n_q, int n_k, int r, int p, int z, const ToeplitzWeights& weights, std::size_t most_bytes)
      : m_length(nprf::fft::smooth_length(weights.c.places.is_grid() ? 2 * weights.c.places.end - 1 : n_q + n_k - 1)),
        m_pairs(column_pairs(p)),
        m_z(z),
        m_positions(weights.positions),
        m_c(weights.c),
        m_slab(SlabShape::of(m_length, r, static_cast<std::ptrdiff_t>(z) * m_pairs, most_bytes / 2)),
        m_columns(m_length, m_slab.signals()),
        m_sums(m_length, weights.positions) {}

  struct Arrays {
    float2 *w, *u, *sum;
    std::byte* cufft;
  };
  Arrays take(Scratch& scratch) const {
    float2 *w = scratch.take<float2>(m_slab.signals(), m_length), *u = scratch.take<float2>(m_slab.signals(), m_length);
    float2* sum = scratch.take<float2>(m_positions, m_length);
    return {w, u, sum, scratch.take<std::byte>(std::max(m_columns.workspace_bytes(), m_sums.workspace_bytes()))};
  }

  /// Adds the gradients of the lags to db [position, entries]. The entries of the lags come first; those of a grid's
  /// border are left as they are. `largest` [z] is SignalNorms::largest.
  void queue(const LagFactors& factors, const int* largest, float* db, const Arrays& arrays,
             cudaStream_t stream) const {
    const auto& [A, B, G, U] = factors;
    const std::size_t sums = static_cast<std::size_t>(m_positions) * static_cast<std::size_t>(m_length);
    const int all_pairs = m_z * m_pairs, r = A.channels;
    const unsigned positions = static_cast<unsigned>(m_positions);
    const dim3 block{threads, 1, 1};
    if (m_c.size == 0) return;
    const std::scoped_lock lock(*m_mutex);
    queue_fill("clearing sums", arrays.sum, 0, sums * sizeof(float2), stream);
    for (int pair = 0; pair < all_pairs; pair += m_slab.pairs)
      for (int f = 0; f < r; f += m_slab.features) {
        const auto transform = [&](const Operand<float>& x, const Operand<float>& y, float2* slab) {
          const SpreadTask<float> task{x, {y, nullptr, nullptr, 0}, m_length, m_pairs,   all_pairs, pair,
                                       f, m_slab.features,          slab,     m_c.places};
          queue_spread("gradients: products", task, m_slab.pairs, stream);
          m_columns.run(slab, CUFFT_FORWARD, arrays.cufft, stream);
        };
        transform(A, G, arrays.w);
        transform(B, U, arrays.u);
        launch("gradients: correlation", correlation_kernel<threads>, dim3{blocks_of<threads>(m_length), positions, 1},
               block, 0, stream,
               CorrelationTask{arrays.w, arrays.u, m_length, m_pairs, all_pairs, pair, m_slab.pairs, m_slab.features,
                               m_positions, largest, arrays.sum});
      }
    m_sums.run(arrays.sum, CUFFT_INVERSE, arrays.cufft, stream);
    launch("gradients: lags", correlated_lags_kernel<threads>, dim3{blocks_of<threads>(m_c.size), positions, 1}, block,
           0, stream, CorrelatedLagsTask{arrays.sum, m_c, m_length, m_c.size + m_c.places.border_size(), db});
  }

 private:
  static constexpr int threads = 256;

  int m_length = 1, m_pairs = 1, m_z = 0, m_positions = 1;
  DeviceWeights m_c{};
  SlabShape m_slab{};
  CufftPlan m_columns, m_sums;
  std::unique_ptr<std::mutex> m_mutex = std::make_unique<std::mutex>();  // cuFFT's plans store workspace and stream
};

}  // namespace nprf::cuda
