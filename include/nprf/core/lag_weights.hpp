// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>

#include "nprf/core/lag_bias.hpp"

namespace nprf {

/// The weights c[lag] of a Toeplitz matrix C[i,j] = c[j-i]; a lag outside the table has weight 0.
template <Real T>
struct LagWeights {
  Index first = 0;   // lag of values[0]
  Vector<T> values;  // c[first], c[first + 1], ...

  Index last() const { return first + values.size() - 1; }

  T operator[](Index lag) const { return lag < first || lag > last() ? T(0) : values[lag - first]; }

  /// c over a range of lags, zeros included.
  Vector<T> window(LagRange range) const {
    Vector<T> c(range.size());
    for (Index k = 0; k < c.size(); ++k) c[k] = (*this)[range.first + k];
    return c;
  }

  /// The smallest range outside of which every weight is zero.
  LagRange support() const {
    LagRange range{first, last()};
    while (range.size() > 0 && (*this)[range.first] == T(0)) ++range.first;
    while (range.size() > 0 && (*this)[range.last] == T(0)) --range.last;
    return range;
  }
};

/// c = exp(b - max b) over a range of lags: the largest weight is 1, and all b = -infinity gives all zeros.
template <Real T>
LagWeights<T> exp_weights(const LagBias<T>& bias, LagRange range) {
  const double largest = bias.max(range);
  LagWeights<T> c{range.first, Vector<T>::Zero(range.size())};
  if (largest == -std::numeric_limits<double>::infinity()) return c;
  for (Index k = 0; k < range.size(); ++k) c.values[k] = static_cast<T>(std::exp(bias[range.first + k] - largest));
  return c;
}

}  // namespace nprf
