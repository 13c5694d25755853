// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/lag_bias.hpp"
#include "nprf/core/lag_weights_view.hpp"

namespace nprf {

/// The weights of a LagWeightsView in storage of their own.
template <Real T>
struct LagWeights {
  Index first = 0;
  Vector<T> values;
  Tails tails = {};

  LagWeightsView<T> view() const { return {first, values.data(), values.size(), tails}; }
  Index last() const { return view().last(); }
  T operator[](Index lag) const { return view()[lag]; }
  LagRange support() const { return view().support(); }

  /// c over a range of lags, with zeros outside the table.
  Vector<T> window(LagRange range) const {
    Vector<T> c(range.size());
    for (Index k = 0; k < c.size(); ++k) c[k] = (*this)[range.first + k];
    return c;
  }
};

/// c = exp(b - largest) over a range of lags, into the caller's storage (range.size()). All weights are zero if
/// `largest` is -infinity.
template <Real T>
void exp_weights(const LagBias<T>& bias, LagRange range, double largest, T* c) {
  const Index from = bias.largest(range);
  constexpr double minus_infinity = -std::numeric_limits<double>::infinity();
  if (range.size() == 0 || bias[from] == minus_infinity || largest == minus_infinity) {
    std::fill_n(c, range.size(), T(0));
    return;
  }
  const double below = bias[from] - largest;
  for (Index k = 0; k < range.size(); ++k)
    c[k] = static_cast<T>(std::exp(bias.difference(range.first + k, from) + below));
}

/// c = exp(b - max b) over a range: the largest weight is 1. All weights are zero if all b are -infinity.
template <Real T>
LagWeights<T> exp_weights(const LagBias<T>& bias, LagRange range) {
  LagWeights<T> c{range.first, Vector<T>(range.size()), tails(bias.view(), range)};
  exp_weights(bias, range, bias.max(range), c.values.data());
  return c;
}

}  // namespace nprf
