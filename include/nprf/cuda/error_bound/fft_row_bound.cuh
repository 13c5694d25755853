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
#include "nprf/cuda/position/token_places.cuh"

namespace nprf::cuda {

/// The rounding error of convolving a signal x with weights c by FFTs of length N, divided by eps:
///
///     sqrt(log2 N / N) (|c|_2 |x|_2 + |T(c) x|_2) + |T(c) x|_max / 2
///
///     |T(c) x|_2 <= min(|c|_1 |x|_2, |c|_2 |x|_1)    |T(c) x|_max <= min(|c|_1 |x|_max, |c|_2 |x|_2, |c|_max |x|_1)
///
/// The formula is that of the CPU (toeplitz/fft/error_bound.hpp), but for the factor 1/2, which was measured for these
/// FFTs.
__host__ __device__ inline double fft_error_scale(const WeightNorms& c, const Norms& x, int length) {
  const double N = length, root_factor = sqrt(log2(N) / N), c_two = sqrt(c.square), x_two = sqrt(x.square);
  const double norm_terms = c_two * x_two + fmin(c.one * x_two, c_two * x.one);
  return root_factor * norm_terms + fmin(fmin(c.one * x.max, c_two * x_two), c.max * x.one) / 2;
}

/// The rounding errors that were measured are at most eps fft_error_scale; this adds a quarter.
constexpr float fft_error_factor = 1.25f * std::numeric_limits<float>::epsilon();

/// Finds the rows y = N / D that fail the FFT error bound: those whose error may exceed half of the tolerance, relative
/// to the largest |v| that the row attends to, and those whose denominator does not have full precision:
///
///     error_i = eps sum_f |A_if| scale_f            of N, with u_j = max |V_j.|, and of D, with u_j = 1
///     bound_i = 5/4 (error(N_i) / v_max(i) + error(D_i) max(1, |y_i| / v_max(i))) / |D_i|
///
/// where scale_f = fft_error_scale for x_f = B_f o u. Two columns of [V 1] are transformed together, so that their
/// errors mix. The u of the values covers this for two columns of values. The ones share a transform with values if p
/// is odd. If B or V is not finite, all rows fail. v_max(i) is the maximum over the longest run of lags with nonzero
/// weights only, so it may be too small, but never too large. O(n_q r).
struct RowBoundTask {
  Operand<float> A;                  // (n_q,r)
  const float *N, *D;                // [z, n_q, p] [z, n_q], of values divided by power_of_two_scale(signals.largest)
  const float *N_border, *D_border;  // terms of N and D that are not computed by FFT; null: none
  const WeightNorms* weights;        // [position]
  int positions, first_lag;          // first_lag: the first lag that `weights` has
  TokenPlaces places;                // the rows of tokens outside of a grid are computed
                                     // without an FFT
  SignalNorms signals;
  int length, p;  // of the FFT
  bool positive;  // whether the features are
  float tolerance;
  bool* recomputed;     // [z, n_q]: which rows fail
  RowList failed_rows;  // the same rows as a list
  Counts* counts;
};

/// Blocks (rows, z).
template <int threads>
__global__ void __launch_bounds__(threads) row_bound_kernel(RowBoundTask task) {
  float *value_scales = shared_memory<float>(), *one_scales = value_scales + task.A.channels;  // (r): scale_f
  const int z = static_cast<int>(blockIdx.y), i = static_cast<int>(blockIdx.x * threads + threadIdx.x);
  const int r = task.A.channels, n_q = task.A.tokens, largest = task.signals.largest[z];
  const WeightNorms& c = task.weights[task.positions > 1 ? z % task.A.heads : 0];
  const float scale = power_of_two_scale(largest).value;
  for (int f = static_cast<int>(threadIdx.x); f < r; f += threads) {
    const double values = fft_error_scale(c, task.signals.of(z, f, true, static_cast<double>(scale)), task.length);
    const double ones = fft_error_scale(c, task.signals.of(z, f, false, 1), task.length);
    const bool shared = task.p % 2 == 1;
    value_scales[f] = static_cast<float>(shared && values > 0 ? hypot(values, ones) : values);
    one_scales[f] = static_cast<float>(shared ? hypot(values, ones) : ones);
  }
  __syncthreads();

  bool fails = false;
  float bound = 0;
  if (i < n_q) {
    float values = 0, ones = 0;
    const float* A = task.A.of(z) + i * task.A.token_stride;
    for (int f = 0; f < r; ++f) {
      const float a = fabsf(A[f * task.A.channel_stride]);
      values = fmaf(a, value_scales[f], values);
      ones = fmaf(a, one_scales[f], ones);
    }
    const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(z) * n_q + i;
    const bool by_fft = task.places.slot_of(i) >= 0;
    const int first_slot = max(0, task.places.slot_of(i)) + task.first_lag + c.longest_run_first;
    const int first = max(0, task.places.first_from(first_slot)),
              end = min(task.signals.n_k, task.places.first_from(first_slot + c.longest_run));
    const float D = task.D[row] + (task.D_border ? task.D_border[row] : 0.0f),
                v_max = task.signals.largest_value(z, first, end) / scale;
    float y_ratio = 1;
    const auto N = [&](int k) {
      return task.N[row * task.p + k] + (task.N_border ? task.N_border[row * task.p + k] : 0.0f);
    };
    if (!task.positive && v_max > 0)
      for (int k = 0; k < task.p; ++k) y_ratio = fmaxf(y_ratio, fabsf(N(k) / (D * v_max)));
    bound = fft_error_factor * ((values > 0 ? values / v_max : 0.0f) + ones * y_ratio) / fabsf(D);
    if (!(bound >= 0)) bound = largest_float;  // a NaN
    if (!by_fft) bound = 0;
    fails = by_fft &&
            (largest >= infinite_magnitude || !has_full_precision(D, task.positive) || !(bound <= task.tolerance / 2));
    task.recomputed[row] = fails;
    if (fails) task.failed_rows.append(z, i);
  }
  bound = over_warp(fails ? 0.0f : bound, [](float a, float b) { return fmaxf(a, b); });
  if (threadIdx.x % 32 == 0 && bound > 0)
    atomicMax(reinterpret_cast<int*>(&task.counts->fft_error_bound), magnitude(bound));
}

inline void queue_row_bounds(const RowBoundTask& task, int z, cudaStream_t stream) {
  constexpr int threads = 256;
  if (z == 0 || task.A.tokens == 0) return;
  launch("row error bounds", row_bound_kernel<threads>,
         dim3{blocks_of<threads>(task.A.tokens), static_cast<unsigned>(z), 1}, dim3{threads, 1, 1},
         2 * sizeof(float) * static_cast<std::size_t>(task.A.channels), stream, task);
}

/// The share of rows that would fail the error bound of an FFT of some length if all keys had equal features and
/// values, for the weights c of the lags -(n_q - 1) .. n_k - 1.
inline double failing_share(const std::vector<double>& c, int n_q, int n_k, int length, double tolerance) {
  WeightNorms all{};
  std::vector<double> before(1, 0);  // cumulative sums of c
  for (const double x : c) {
    all.one += x, all.square += x * x, all.max = std::max(all.max, x);
    before.push_back(before.back() + x);
  }
  const double keys = n_k, error_scale = fft_error_scale(all, {keys, keys, 1}, length);
  // smallest sum of weights with which a row passes
  const double least = 2 * static_cast<double>(fft_error_factor) * error_scale / (tolerance / 2);
  int failing = 0;
  for (int i = 0; i < n_q; ++i) {
    const auto first = static_cast<std::size_t>(n_q - 1 - i);
    failing += !(before[first + static_cast<std::size_t>(n_k)] - before[first] >= least);
  }
  return n_q > 0 ? static_cast<double>(failing) / n_q : 0;
}

}  // namespace nprf::cuda
