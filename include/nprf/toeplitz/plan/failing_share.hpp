// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <span>

#include "nprf/core/row_quotient.hpp"
#include "nprf/toeplitz/fft/convolution_error.hpp"

namespace nprf::toeplitz {

/// The fraction of rows that would fail the error bound of FFTs of length N, and be recomputed, if all n_k keys had
/// equal features and values. The planners for CPUs and for GPUs use it to decide whether an FFT is worth its time.
/// row_sums are the sums of the weights that each row attends to. Rows with sum 0 attend to no key and never fail.
///
/// With equal keys the numerators and the denominator of a row have the same error, eps times the error of the
/// convolution of the weights with ones, and the denominator is the row's sum. The result is a prediction: features
/// that differ much, such as those of keys of large norm, make more rows fail. O(rows).
inline double failing_share(std::span<const double> row_sums, const NormSums& weights, double n_k, double N, double eps,
                            double tolerance) {
  if (row_sums.empty()) return 0;
  const Norms ones{n_k, std::sqrt(n_k), 1};
  const double error = eps * convolution_error(weights.norms(), ones, fft_error_per_value(N));
  double failing = 0;
  for (const double sum : row_sums)
    failing += sum > 0 && !passes_error_bound(quotient_error(error, error, sum, 1.0, 1.0), tolerance);
  return failing / static_cast<double>(row_sums.size());
}

}  // namespace nprf::toeplitz
