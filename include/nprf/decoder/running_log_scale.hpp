// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>
#include <numbers>

#include "nprf/config.hpp"
#include "nprf/core/compensated_sum.hpp"

namespace nprf {

/// The logarithm of the unit of running sums, relative to the bias of the last token in them (running_sums.hpp).
/// Formulas of scalars, the same for the CPU and for GPUs. The logarithm is stored as a sum of two numbers, so that the
/// errors of many changes do not add up.
struct RunningLogScale {
  static constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

  double value = minus_infinity, rest = 0;

  NPRF_HOST_DEVICE bool is_empty() const { return value == minus_infinity; }
  NPRF_HOST_DEVICE double sum() const { return value + rest; }
  /// log_scale - sum(), with the precision of the difference.
  NPRF_HOST_DEVICE double relative(double log_scale) const { return (log_scale - value) - rest; }

  NPRF_HOST_DEVICE void shift(double by, double of_rest) {
    if (is_empty()) return;
    double error;
    value = two_sum(value, by, error);
    rest += error + of_rest;
  }

  /// Raises sum() to at least `to`, which must be larger than sum(). Returns the exponent of the power of two by which
  /// the running sums must be divided: a multiple of 16, so that further increases do not rescale soon; or 0 if there
  /// are no sums yet.
  NPRF_HOST_DEVICE double raise(double to) {
    if (is_empty()) {
      value = to;
      return 0;
    }
    constexpr double ln2 = std::numbers::ln2, rest_of_ln2 = 0x1.abc9e3b39803fp-56;
    const double exponent = 16 * std::ceil((to - sum()) / (16 * ln2)), by = exponent * ln2;
    shift(by, std::fma(exponent, ln2, -by) + exponent * rest_of_ln2);
    return exponent;
  }
};

}  // namespace nprf
