// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>

#include "nprf/config.hpp"

/// The estimated rounding error of a convolution by FFTs, from norms of its factors. Formulas of scalars, the same for
/// the CPU and for GPUs.
namespace nprf::toeplitz {

/// |x|_1, |x|_2 and |x|_max of a signal or of weights.
struct Norms {
  double one, two, max;
};

/// A sum of squares below least_square has lost its digits; one above most_square has overflowed.
inline constexpr double least_square = 0x1p-960, most_square = std::numeric_limits<double>::max();

/// What the norms of x are computed from: |x|_1, the square of |x|_2, and |x|_max. Entries of x may be added in any
/// order.
struct NormSums {
  double one = 0, square = 0, max = 0;

  NPRF_HOST_DEVICE void add(double x) {
    const double size = std::abs(x);
    one += size;
    square += x * x;
    max = size > max ? size : max;
  }
  /// Adds the entries of another signal, all multiplied by a factor >= 0.
  NPRF_HOST_DEVICE void add(const NormSums& x, double factor = 1) {
    one += factor * x.one;
    square += factor * factor * x.square;
    max = factor * x.max > max ? factor * x.max : max;
  }

  /// The norms. If the sum of the squares is not between least_square and most_square, |x|_2 is replaced by its upper
  /// bound, the root of |x|_1 |x|_max.
  NPRF_HOST_DEVICE Norms norms() const {
    const bool has_digits = square >= least_square && square <= most_square;
    return {one, has_digits ? std::sqrt(square) : std::sqrt(one) * std::sqrt(max), max};
  }
};

/// sqrt(log2 N / N): the root mean square of the rounding errors of an FFT of length N, relative to |x|_2 and in units
/// of eps. Independent rounding errors grow with the root of the number of stages (Gentleman and Sande 1966), and each
/// spreads evenly over the N values.
NPRF_HOST_DEVICE inline double fft_error_per_value(double N) { return std::sqrt(std::log2(N) / N); }

/// The rounding error of one value of T(c) x, in units of eps, where T(c) is the Toeplitz matrix of the weights c and
/// T(c) x is computed by FFTs of length N:
///
///     sqrt(log2 N / N) (|c|_2 |x|_2 + |T(c) x|_2) + 3/2 |T(c) x|_max
///
///     |T(c) x|_2 <= min(|c|_1 |x|_2, |c|_2 |x|_1)    |T(c) x|_max <= min(|c|_1 |x|_max, |c|_2 |x|_2, |c|_max |x|_1)
///
/// The first term is for independent rounding errors, the second for those that are not: twiddle factors have the same
/// rounding error in all butterflies, and real and imaginary parts share rounding errors. Such errors add spurious
/// copies of T(c) x at other positions, of up to eps / 2 in each of the three transforms. It is an estimate,
/// with a margin that tests/accuracy.md has. `error_per_value` is fft_error_per_value(N).
NPRF_HOST_DEVICE inline double convolution_error(const Norms& c, const Norms& x, double error_per_value) {
  const auto smaller = [](double a, double b) { return b < a ? b : a; };
  const double spread = c.two * x.two + smaller(c.one * x.two, c.two * x.one);
  const double images = smaller(smaller(c.one * x.max, c.two * x.two), c.max * x.one);
  return error_per_value * spread + 1.5 * images;
}

/// The error of a column that shares a complex transform with a partner: one is the real part, the other the imaginary
/// part, and their rounding errors mix. `error` and `partner_error` are those in transforms of their own.
NPRF_HOST_DEVICE inline double shared_transform_error(double error, double partner_error) {
  return std::sqrt(error * error + partner_error * partner_error);
}

}  // namespace nprf::toeplitz
