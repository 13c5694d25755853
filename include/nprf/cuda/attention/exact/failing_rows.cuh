// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/core/row_quotient.hpp"
#include "nprf/cuda/attention/exact/near_sums.cuh"
#include "nprf/cuda/attention/exact/pairs.cuh"
#include "nprf/cuda/device/call_counters.cuh"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/position/attention_mask.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"

namespace nprf::cuda {

/// The norms |A_i| of the rows of features, by channel [z, 1, norms_stride], zero beyond the last row.
template <class Feature>
struct FeatureNormsTask {
  FeatureRows<Feature> A;
  int n, norms_stride;
  float* norms;
};

/// blockIdx.x: rows, blockIdx.y: z.
template <class Feature>
__global__ void __launch_bounds__(256) feature_norms_kernel(FeatureNormsTask<Feature> task) {
  start_kernel();
  const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x), z = static_cast<int>(blockIdx.y);
  if (i >= task.norms_stride) return;
  float square = 0;
  for (int f = 0; i < task.n && f < task.A.r; ++f) {
    const float x = to_float(task.A.at(z, task.n, i, f));
    square = fmaf(x, x, square);
  }
  task.norms[static_cast<std::ptrdiff_t>(z) * task.norms_stride + i] = sqrtf(square);
}

template <class Feature>
void queue_feature_norms(const FeatureNormsTask<Feature>& task, int z, cudaStream_t stream) {
  if (task.norms_stride == 0 || z == 0) return;
  launch("norms of features", feature_norms_kernel<Feature>,
         dim3{blocks_of<256>(task.norms_stride), static_cast<unsigned>(z), 1}, dim3{256, 1, 1}, 0, stream, task);
}

/// With a near field, sinks, or features that are a series: lists the rows that exact softmax replaces. These are the
/// rows that fail the FFT error bound, those whose denominator does not keep its precision or is not positive, and
/// those whose terms cancel (terms_cancel). If such a row attends to no key, it is not listed: its denominator becomes
/// zero.
struct FailingRowsTask {
  Sums sums;
  bool positive;            // whether no feature is negative
  const bool* fails_bound;  // [z, n_q]; null: no FFT
  Sums terms;               // terms.D is sum_j |A_i| c_ij |B_j|, for features of both signs; if null, it is D itself
  const float* near_D;      // [z, n_q]: the near part of D
  AttentionMask attention_mask;
  RowList rows;
  double* log_scales;  // [z, n_q]: +infinity for rows that attend to no key
  RowKind* kinds;      // [z, n_q]: RowKind::field

  __device__ __forceinline__ bool fails(std::ptrdiff_t row, float D) const {
    if ((fails_bound && fails_bound[row]) || !denominator_keeps_precision(D, positive)) return true;
    return terms_cancel(D, terms.D ? fabsf(terms.denominator(row)) + near_D[row] : D);
  }
};

/// One thread per row.
template <int threads>
__global__ void __launch_bounds__(threads) failing_rows_kernel(FailingRowsTask task) {
  start_kernel();
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(blockIdx.x) * threads + threadIdx.x;
  if (row >= task.sums.rows) return;
  task.kinds[row] = RowKind::field;
  const float D = task.sums.denominator(row);
  if (D != D || !task.fails(row, D)) return;
  const int n_q = task.rows.n, z = static_cast<int>(row / n_q), i = static_cast<int>(row % n_q);
  if (task.attention_mask.attends_any(z, i)) {
    task.rows.append(z, i);
    return;
  }
  for (int part = 0; part < task.sums.parts; ++part) task.sums.D[part * task.sums.rows + row] = 0;
  task.log_scales[row] = -minus_infinity;
}

inline void queue_failing_rows(const FailingRowsTask& task, cudaStream_t stream) {
  if (task.sums.rows == 0) return;
  launch("failing rows", failing_rows_kernel<256>, dim3{blocks_of<256>(task.sums.rows), 1, 1}, dim3{256, 1, 1}, 0,
         stream, task);
}

}  // namespace nprf::cuda
