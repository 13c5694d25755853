// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>

#include "nprf/config.hpp"

/// Sums whose rounding errors are kept, for the CPU and for GPUs. The errors are exact, so a caller that adds them to a
/// later term or sums them separately gets errors that do not grow with the number of terms.
namespace nprf {

/// Returns a + b rounded, and sets `error` to a + b minus that, for terms of any sizes (Knuth 1969). 6 additions. T may
/// be any floating-point type. If the sum overflows, the error is not finite.
template <class T>
NPRF_HOST_DEVICE inline T two_sum(T a, T b, T& error) {
  const T sum = a + b, added = sum - a;
  error = (a - (sum - added)) + (b - added);
  return sum;
}

/// The same if |a| >= |b| or a = 0 (Dekker 1971). 3 additions. With smaller |a| the error may be rounded itself;
/// Kahan's sum (Kahan 1965) uses it for a running sum a, which is rarely smaller than the next term b.
template <class T>
NPRF_HOST_DEVICE inline T fast_two_sum(T a, T b, T& error) {
  const T sum = a + b;
  error = b - (sum - a);
  return sum;
}

/// A factor by which a compensated sum is multiplied before the next term, as the sum of two numbers.
template <class T>
struct Decay {
  T whole, part;
};

/// exp(x) for x <= 0. Near 1 it is 1 + (exp(x) - 1): the rounding error of a number near 1 would grow with the number
/// of terms. A small factor is 0 + exp(x): 1 + (exp(x) - 1) would cancel.
template <class T>
NPRF_HOST_DEVICE inline Decay<T> decay_of(double x) {
  const T whole = x <= -0.5 ? T(0) : T(1);
  return {whole, static_cast<T>(x > -0.5 ? std::expm1(x) : std::exp(x))};
}

}  // namespace nprf
