// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>

#include "nprf/config.hpp"

/// When the quotient y = N / D of a row keeps its precision, how large its error may be, and which error is accepted.
/// Formulas of scalars, the same for the CPU and for GPUs. T is float or double. v_max is the largest |v| that the row
/// attends to.
namespace nprf {

/// Constants in variables, because device code may not call std::numeric_limits.
template <class T>
inline constexpr T smallest_normal_number = std::numeric_limits<T>::min();
template <class T>
inline constexpr T largest_number = std::numeric_limits<T>::max();
/// sqrt(smallest_normal_number).
template <class T>
inline constexpr T smallest_denominator = sizeof(T) == sizeof(float) ? T(0x1p-63) : T(0x1p-511);

/// Whether a denominator D is finite and so large that no significant term of it has underflowed: |D|, or D itself if
/// all features are positive, is at least the root of the smallest normal number. False for NaN.
template <class T>
NPRF_HOST_DEVICE inline bool denominator_keeps_precision(T D, bool all_positive) {
  const T size = std::abs(D);
  return (all_positive ? D : size) >= smallest_denominator<T> && size <= largest_number<T>;
}

/// Whether a row keeps its precision: denominator_keeps_precision(), and its numerators have not underflowed. These are
/// sums over `keys` keys, of at most |D| v_max.
template <class T>
NPRF_HOST_DEVICE inline bool row_keeps_precision(T D, T v_max, T keys, bool all_positive) {
  return denominator_keeps_precision(D, all_positive) &&
         (v_max == 0 || std::abs(D) * v_max >= keys * smallest_normal_number<T>);
}

/// Whether the terms of a row of a truncated series (is_series) cancel so far that the omitted terms of the series
/// matter: the denominator D is not positive, or less than a sixteenth of `magnitudes`, the sum of the magnitudes of
/// its terms.
template <class T>
NPRF_HOST_DEVICE inline bool terms_cancel(T D, T magnitudes) {
  return D <= 0 || magnitudes > 16 * D;
}

/// max(1, |y| / v_max) of a row, from its largest |N| and |D|: features of both signs can make |y| larger than any
/// value. 1 if the row attends to no value but zeros.
template <class T>
NPRF_HOST_DEVICE inline T relative_size(T largest_N, T abs_D, T v_max) {
  const T size = v_max == 0 ? T(1) : largest_N / (abs_D * v_max);
  return size > T(1) ? size : T(1);
}

/// The factor by which estimated rounding errors of FFTs are multiplied before they are compared with a tolerance.
/// Measured errors are below the estimate; the factor is a margin.
inline constexpr double error_margin = 1.25;

/// The bound of the error of y = N / D relative to v_max, from bounds of the errors of N and of D:
///
///     5/4 (error(N) / v_max + error(D) max(1, |y| / v_max)) / |D|
///
/// This is the first-order error of a quotient, times error_margin. `size` is relative_size(). NaN means that there is
/// no bound.
template <class T>
NPRF_HOST_DEVICE inline T quotient_error(T error_of_N, T error_of_D, T abs_D, T v_max, T size) {
  const T of_N = error_of_N == 0 ? T(0) : error_of_N / v_max;
  return static_cast<T>(error_margin) * (of_N + error_of_D * size) / abs_D;
}

/// The tolerance of a call that gives none: the accepted error of a row, relative to v_max.
template <class T>
inline constexpr double default_tolerance = sizeof(T) == sizeof(float) ? 1e-4 : 1e-10;

/// Whether a row or a gradient may keep an FFT's rounding error of at most `error`, or has to be recomputed. FFTs get
/// half of the tolerance; the other half is for the rounding errors of any engine. False for NaN.
template <class T>
NPRF_HOST_DEVICE constexpr bool passes_error_bound(T error, T tolerance) {
  return error <= tolerance / 2;
}

}  // namespace nprf
