// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "nprf/core/row_quotient.hpp"
#include "nprf/cuda/device/call_counters.cuh"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/reductions.cuh"
#include "nprf/cuda/device/scales.cuh"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/error_bound/signal_norms.cuh"
#include "nprf/cuda/position/token_places.cuh"
#include "nprf/toeplitz/fft/convolution_error.hpp"
#include "nprf/toeplitz/plan/failing_share.hpp"

namespace nprf::cuda {

/// Finds the rows y = N / D that fail the FFT error bound: those whose error may exceed half of the tolerance, relative
/// to the largest |v| that the row attends to, and those whose denominator does not keep its precision. The bound is
/// quotient_error() (core/row_quotient.hpp) of the errors of N and of D:
///
///     error_i = eps sum_f |A_if| e_f
///
/// where e_f is the estimated error of the convolution of the weights with x_f = B_f o u
/// (toeplitz/fft/convolution_error.hpp). For N, u_j is the largest |v| of key j; for D, u_j = 1. Two columns of [V 1]
/// share a transform. For two columns of values the e_f of N covers both. If p is odd, the ones share a transform with
/// a column of values, and their errors are combined. If B or V of a matrix is not finite, all its rows fail. The
/// largest |v| of a row is taken only over the longest run of lags whose weights are nonzero, or which are near, so it
/// may be too small, but never too large. O((n_q + n_k / 256) r).
struct RowBoundTask {
  Operand<float> A;                  // (n_q,r)
  const float *N, *D;                // [z, n_q, p] [z, n_q], of values divided by power_of_two_scale(signals.largest)
  const float *N_border, *D_border;  // the parts of N and D that are not computed by FFT; null: none
  const WeightNorms* weights;        // [position]
  int positions, first_lag;          // first_lag: the first lag that `weights` has
  TokenPlaces places;                // rows of tokens outside of a grid are computed without an FFT
  SignalNorms signals;
  float* errors;  // [z, 2, r], scratch memory: e_f of N, and of D
  int length, p;  // length of the FFT, columns of V
  bool positive;  // whether the features are positive
  float tolerance;
  bool* recomputed;     // [z, n_q]: which rows fail
  RowList failed_rows;  // the same rows as a list
  Counts* counts;
};

/// The shape of feature_errors_kernel, which computes the errors e_f. blockIdx.x: group of 32 features, blockIdx.y: z,
/// threadIdx.x: feature of the group, and share of the chunks: of 8 shares, each has every 8th chunk.
struct FeatureErrorShape {
  static constexpr int features = 32, shares = 8;
};
template <int threads>
__global__ void __launch_bounds__(threads) feature_errors_kernel(RowBoundTask task) {
  start_kernel();
  using Shape = FeatureErrorShape;
  static_assert(threads == Shape::features * Shape::shares);
  auto* sums = shared_memory<toeplitz::NormSums>();  // (shares, 2, features): for u = 1, and for the u of values
  const int lane = static_cast<int>(threadIdx.x) % Shape::features,
            share = static_cast<int>(threadIdx.x) / Shape::features;
  const int z = static_cast<int>(blockIdx.y), f = static_cast<int>(blockIdx.x) * Shape::features + lane;
  const int r = task.A.channels;
  const double scale = static_cast<double>(power_of_two_scale(task.signals.largest[z]).value);
  for (const int with_values : {0, 1})
    sums[(2 * share + with_values) * Shape::features + lane] =
        f < r ? task.signals.of(z, f, with_values, scale, share, Shape::shares) : toeplitz::NormSums{};
  __syncthreads();
  if (share > 0 || f >= r) return;
  const WeightNorms& weights = task.weights[task.positions > 1 ? z % task.A.heads : 0];
  const toeplitz::Norms c = weights.sums.norms();
  const double error_per_value = toeplitz::fft_error_per_value(task.length);
  const auto error = [&](int with_values) {
    toeplitz::NormSums all;
    for (int k = 0; k < Shape::shares; ++k) all.add(sums[(2 * k + with_values) * Shape::features + lane]);
    return toeplitz::convolution_error(c, all.norms(), error_per_value);
  };
  const double values = error(1), ones = error(0), both = toeplitz::shared_transform_error(values, ones);
  const bool shared = task.p % 2 == 1;
  float* errors = task.errors + static_cast<std::ptrdiff_t>(z) * 2 * r + f;
  errors[0] = static_cast<float>(shared && values > 0 ? both : values);
  errors[r] = static_cast<float>(shared ? both : ones);
}

/// blockIdx.x and threadIdx.x: row, blockIdx.y: z.
template <int threads>
__global__ void __launch_bounds__(threads) row_bound_kernel(RowBoundTask task) {
  start_kernel();
  const int z = static_cast<int>(blockIdx.y), i = static_cast<int>(blockIdx.x * threads + threadIdx.x);
  const int r = task.A.channels, n_q = task.A.tokens, largest = task.signals.largest[z];
  const WeightNorms& weights = task.weights[task.positions > 1 ? z % task.A.heads : 0];
  const float scale = power_of_two_scale(largest).value;
  const float *value_errors = task.errors + static_cast<std::ptrdiff_t>(z) * 2 * r, *one_errors = value_errors + r;

  bool fails = false;
  float bound = 0;
  if (i < n_q) {
    float values = 0, ones = 0;
    const float* A = task.A.of(z) + i * task.A.token_stride;
#pragma unroll 8
    for (int f = 0; f < r; ++f) {
      const float a = fabsf(A[f * task.A.channel_stride]);
      values = fmaf(a, value_errors[f], values);
      ones = fmaf(a, one_errors[f], ones);
    }
    const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(z) * n_q + i;
    const bool by_fft = task.places.slot_of(i) >= 0;
    const int first_slot = max(0, task.places.slot_of(i)) + task.first_lag + weights.longest_run_first;
    const int first = max(0, task.places.first_from(first_slot)),
              end = min(task.signals.n_k, task.places.first_from(first_slot + weights.longest_run));
    const float D = task.D[row] + (task.D_border ? task.D_border[row] : 0.0f),
                v_max = task.signals.largest_value(z, first, end) / scale;
    float largest_N = 0;
    if (!task.positive)
      for (int k = 0; k < task.p; ++k) {
        const float N = task.N[row * task.p + k] + (task.N_border ? task.N_border[row * task.p + k] : 0.0f);
        largest_N = fmaxf(largest_N, fabsf(N));
      }
    constexpr float eps = 0x1p-23f;
    bound = quotient_error(eps * values, eps * ones, fabsf(D), v_max, relative_size(largest_N, fabsf(D), v_max));
    if (!(bound >= 0)) bound = largest_float;  // a NaN
    if (!by_fft) bound = 0;
    fails = by_fft && (largest >= infinite_magnitude || !denominator_keeps_precision(D, task.positive) ||
                       !passes_error_bound(bound, task.tolerance));
    task.recomputed[row] = fails;
    if (fails) task.failed_rows.append(z, i);
  }
  bound = over_warp(fails ? 0.0f : bound, Largest());
  if (threadIdx.x % 32 == 0 && bound > 0)
    atomicMax(reinterpret_cast<int*>(&task.counts->fft_error_bound), magnitude(bound));
}

inline void queue_row_bounds(const RowBoundTask& task, int z, cudaStream_t stream) {
  constexpr int threads = 256;
  if (z == 0 || task.A.tokens == 0) return;
  using Shape = FeatureErrorShape;
  launch("errors of features", feature_errors_kernel<threads>,
         dim3{blocks_of<Shape::features>(task.A.channels), static_cast<unsigned>(z), 1}, dim3{threads, 1, 1},
         2 * threads * sizeof(toeplitz::NormSums), stream, task);
  launch("row error bounds", row_bound_kernel<threads>,
         dim3{blocks_of<threads>(task.A.tokens), static_cast<unsigned>(z), 1}, dim3{threads, 1, 1}, 0, stream, task);
}

/// The predicted fraction of rows that fail the error bound of an FFT of length `length`
/// (toeplitz/plan/failing_share.hpp), for the weights c of the lags -(n_q - 1) .. n_k - 1.
inline double failing_share(const std::vector<double>& c, int n_q, int n_k, int length, double tolerance) {
  toeplitz::NormSums weights;
  std::vector<double> before(1, 0);       // cumulative sums of c
  std::vector<int> nonzero_before(1, 0);  // cumulative numbers of nonzero weights
  for (const double x : c) {
    weights.add(x);
    before.push_back(before.back() + x);
    nonzero_before.push_back(nonzero_before.back() + (x > 0));
  }
  std::vector<double> row_sums;
  for (int i = 0; i < n_q; ++i) {
    const auto first = static_cast<std::size_t>(n_q - 1 - i), end = first + static_cast<std::size_t>(n_k);
    const bool attends_any = nonzero_before[end] > nonzero_before[first];
    // a small sum may round to zero in the difference of cumulative sums, but must not count as zero
    row_sums.push_back(attends_any ? std::max(before[end] - before[first], std::numeric_limits<double>::min()) : 0);
  }
  constexpr double eps = std::numeric_limits<float>::epsilon();
  return toeplitz::failing_share(row_sums, weights, n_k, length, eps, tolerance);
}

}  // namespace nprf::cuda
