// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "nprf/cuda/device/call_counters.cuh"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/error_bound/signal_norms.cuh"
#include "nprf/cuda/error_bound/weight_norms.cuh"

namespace nprf::cuda {

/// What the noise of transforms of length N of a signal x, with weights c, is relative to:
///
///     sqrt(log2 N / N) (|c|_2 |x|_2 + |T(c) x|_2) + |T(c) x|_max / 2
///
///     |T(c) x|_2 <= min(|c|_1 |x|_2, |c|_2 |x|_1)    |T(c) x|_max <= min(|c|_1 |x|_max, |c|_2 |x|_2, |c|_max |x|_1)
///
/// as on the CPU (toeplitz/fft/error_bound.hpp), but for the last factor, which is what these transforms leave.
__host__ __device__ inline double noise_size(const WeightNorms& c, const Norms& x, int length) {
  const double N = length, spread = sqrt(log2(N) / N), c_two = sqrt(c.square), x_two = sqrt(x.square);
  const double of_square = c_two * x_two + fmin(c.one * x_two, c_two * x.one);
  return spread * of_square + fmin(fmin(c.one * x.max, c_two * x_two), c.max * x.one) / 2;
}

/// What a row was seen off by, relative to that, and a quarter more.
constexpr float most_of_noise = 1.25f * std::numeric_limits<float>::epsilon();

/// Which rows y = N / D the rounding of transforms may have put farther off than half a tolerance, relative to the
/// largest |v| that a row sees, or left without a sound denominator:
///
///     noise_i = eps sum_f |A_if| size_f             of numerators, and the same of D with u = 1
///     bound_i = 5/4 (noise(N_i) / v_max(i) + noise(D_i) max(1, |y_i| / v_max(i))) / |D_i|
///
/// Columns are transformed as pairs: two of values share their noise, which is that of a column with the largest |v| of
/// each key; the ones share it with a column of values if there is an odd number of them. Where B or V holds what is no
/// number all rows are such rows. v_max(i) is the largest at the longest run of lags with weights, or less. O(n_q r).
struct CertificateTask {
  Operand<float> A;            // (n_q,r)
  const float *N, *D;          // [z, n_q, p] [z, n_q], of values divided by the unit of `signals.largest`
  const WeightNorms* weights;  // [position], or one
  int positions, first_lag;    // the first lag that is seen
  SignalNorms signals;
  int length, p;  // of the transforms
  bool positive;  // features
  float tolerance;
  bool* recomputed;  // [z, n_q]: whether a row is such a row
  RowList drowned;   // all of them
  Counts* counts;
};

/// Blocks (rows, z).
template <int threads>
__global__ void __launch_bounds__(threads) certificate_kernel(CertificateTask task) {
  float *of_values = shared_memory<float>(), *of_ones = of_values + task.A.channels;  // (r): sizes
  const int z = static_cast<int>(blockIdx.y), i = static_cast<int>(blockIdx.x * threads + threadIdx.x);
  const int r = task.A.channels, n_q = task.A.tokens, largest = task.signals.largest[z];
  const WeightNorms& c = task.weights[task.positions > 1 ? z % task.A.heads : 0];
  const float unit = power_of_two_scale(largest).value;
  for (int f = static_cast<int>(threadIdx.x); f < r; f += threads) {
    const double values = noise_size(c, task.signals.of(z, f, true, static_cast<double>(unit)), task.length);
    const double ones = noise_size(c, task.signals.of(z, f, false, 1), task.length);
    const bool shared = task.p % 2 == 1;
    of_values[f] = static_cast<float>(shared && values > 0 ? hypot(values, ones) : values);
    of_ones[f] = static_cast<float>(shared ? hypot(values, ones) : ones);
  }
  __syncthreads();

  bool fails = false;
  float bound = 0;
  if (i < n_q) {
    float values = 0, ones = 0;
    const float* A = task.A.of(z) + i * task.A.token_stride;
    for (int f = 0; f < r; ++f) {
      const float a = fabsf(A[f * task.A.channel_stride]);
      values = fmaf(a, of_values[f], values);
      ones = fmaf(a, of_ones[f], ones);
    }
    const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(z) * n_q + i;
    const int first = max(0, i + task.first_lag + c.best_first),
              end = min(task.signals.n_k, i + task.first_lag + c.best_first + c.best);
    const float D = task.D[row], seen = task.signals.largest_of(z, first, end) / unit;
    float size = 1;
    if (!task.positive && seen > 0)
      for (int k = 0; k < task.p; ++k) size = fmaxf(size, fabsf(task.N[row * task.p + k] / (D * seen)));
    bound = most_of_noise * ((values > 0 ? values / seen : 0.0f) + ones * size) / fabsf(D);
    if (!(bound >= 0)) bound = largest_float;  // nothing is known
    fails = largest >= infinite_magnitude || !has_full_precision(D, task.positive) || !(bound <= task.tolerance / 2);
    task.recomputed[row] = fails;
    if (fails) task.drowned.append(z, i);
  }
  bound = over_warp(fails ? 0.0f : bound, [](float a, float b) { return fmaxf(a, b); });
  if (threadIdx.x % 32 == 0 && bound > 0)
    atomicMax(reinterpret_cast<int*>(&task.counts->error_bound), magnitude(bound));
}

inline void queue_certificate(const CertificateTask& task, int z, cudaStream_t stream) {
  constexpr int threads = 256;
  if (z == 0 || task.A.tokens == 0) return;
  launch("certificate", certificate_kernel<threads>,
         dim3{blocks_of<threads>(task.A.tokens), static_cast<unsigned>(z), 1}, dim3{threads, 1, 1},
         2 * sizeof(float) * static_cast<std::size_t>(task.A.channels), stream, task);
}

/// The share of rows that transforms of some length would drown if all keys were alike, for the weights of lags -(n_q -
/// 1) .. n_k - 1.
inline double drowned_share(const std::vector<double>& c, int n_q, int n_k, int length, double tolerance) {
  WeightNorms all{};
  std::vector<double> before(1, 0);  // the sum of the weights before each lag
  for (const double x : c) {
    all.one += x, all.square += x * x, all.max = std::max(all.max, x);
    before.push_back(before.back() + x);
  }
  const double keys = n_k, size = noise_size(all, {keys, keys, 1}, length);
  const double least = 2 * static_cast<double>(most_of_noise) * size / (tolerance / 2);  // of a row
  int drowned = 0;
  for (int i = 0; i < n_q; ++i) {
    const auto first = static_cast<std::size_t>(n_q - 1 - i);
    drowned += !(before[first + static_cast<std::size_t>(n_k)] - before[first] >= least);
  }
  return n_q > 0 ? static_cast<double>(drowned) / n_q : 0;
}

}  // namespace nprf::cuda
