// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>

#include "nprf/config.hpp"

/// Sums whose rounding errors are kept, for the CPU and for GPUs. The errors are exact, so a caller that adds them to a
/// later term or sums them separately gets a total whose error does not grow with the number of terms.
namespace nprf {

/// Returns the rounded sum of a and b, and sets `error` to the exact a + b minus the rounded sum, for a and b of any
/// magnitudes (Knuth 1969). 6 additions. T may be any floating-point type. If the sum overflows, the error is not
/// finite.
template <class T>
NPRF_HOST_DEVICE inline T two_sum(T a, T b, T& error) {
  const T sum = a + b, added = sum - a;
  error = (a - (sum - added)) + (b - added);
  return sum;
}

/// As two_sum(), for |a| >= |b| or a = 0 (Dekker 1971). 3 additions. With smaller |a| the error may be rounded itself.
/// Kahan's sum (Kahan 1965) uses this for a running sum a, which is rarely smaller than the next term b.
template <class T>
NPRF_HOST_DEVICE inline T fast_two_sum(T a, T b, T& error) {
  const T sum = a + b;
  error = b - (sum - a);
  return sum;
}

/// A factor whole + part, by which a compensated sum is multiplied before the next term is added.
template <class T>
struct Decay {
  T whole, part;
};

/// exp(x) as whole + part, for x <= 0. Near 1 it is 1 + (exp(x) - 1): the error of a factor that is rounded to one
/// number near 1 would grow with the number of terms. A small factor is 0 + exp(x): 1 + (exp(x) - 1) would cancel.
template <class T>
NPRF_HOST_DEVICE inline Decay<T> decay_of(double x) {
  const T whole = x <= -0.5 ? T(0) : T(1);
  return {whole, static_cast<T>(x > -0.5 ? std::expm1(x) : std::exp(x))};
}

}  // namespace nprf
