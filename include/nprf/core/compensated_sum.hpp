// SPDX-License-Identifier: MIT
#pragma once

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

}  // namespace nprf
