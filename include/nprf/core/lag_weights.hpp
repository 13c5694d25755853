// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>

#include "nprf/core/lag_bias.hpp"

namespace nprf {

/// The weights c[lag] of a Toeplitz matrix C[i,j] = c[j-i], read where they lie; a lag outside the table has weight 0.
template <Real T>
struct LagWeightsView {
  Index first = 0;            // lag of values[0]
  const T* values = nullptr;  // c[first], c[first + 1], ...
  Index size = 0;

  Index last() const { return first + size - 1; }

  T operator[](Index lag) const { return lag < first || lag > last() ? T(0) : values[lag - first]; }

  /// The smallest range outside of which every weight is zero.
  LagRange support() const {
    LagRange range{first, last()};
    while (range.size() > 0 && (*this)[range.first] == T(0)) ++range.first;
    while (range.size() > 0 && (*this)[range.last] == T(0)) --range.last;
    return range;
  }
};

/// The same, held.
template <Real T>
struct LagWeights {
  Index first = 0;
  Vector<T> values;

  LagWeightsView<T> view() const { return {first, values.data(), values.size()}; }
  Index last() const { return view().last(); }
  T operator[](Index lag) const { return view()[lag]; }
  LagRange support() const { return view().support(); }

  /// c over a range of lags, zeros included.
  Vector<T> window(LagRange range) const {
    Vector<T> c(range.size());
    for (Index k = 0; k < c.size(); ++k) c[k] = (*this)[range.first + k];
    return c;
  }
};

/// c = exp(b - largest) over a range of lags, into the caller's storage (range.size()); all zeros where largest is
/// -infinity.
template <Real T>
void exp_weights(const LagBias<T>& bias, LagRange range, double largest, T* c) {
  const bool none = largest == -std::numeric_limits<double>::infinity();
  for (Index k = 0; k < range.size(); ++k)
    c[k] = none ? T(0) : static_cast<T>(std::exp(bias[range.first + k] - largest));
}

/// c = exp(b - max b): the largest weight is 1, and all b = -infinity gives all zeros.
template <Real T>
LagWeights<T> exp_weights(const LagBias<T>& bias, LagRange range) {
  LagWeights<T> c{range.first, Vector<T>(range.size())};
  exp_weights(bias, range, bias.max(range), c.values.data());
  return c;
}

}  // namespace nprf
