// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/lag_bias.hpp"
#include "nprf/core/lag_problem.hpp"
#include "nprf/core/lags.hpp"
#include "nprf/core/lower_lags.hpp"
#include "nprf/core/workspace.hpp"

namespace nprf {

/// The weights of a Toeplitz matrix as in a LagWeightsView, but with storage of its own.
template <Real T>
struct LagWeights {
  Index first = 0;
  Vector<T> values;
  Tails tails = {};
  double max_deviation = 0;  // as in LagWeightsView

  LagWeightsView<T> view() const { return {first, values.data(), values.size(), tails, max_deviation}; }
  Index last() const { return view().last(); }
  T operator[](Index lag) const { return view()[lag]; }
  LagRange support() const { return view().support(); }

  /// The weights of the lags of a range, with zeros for lags outside the table.
  Vector<T> window(LagRange range) const {
    Vector<T> c(range.size());
    for (Index k = 0; k < c.size(); ++k) c[k] = (*this)[range.first + k];
    return c;
  }
};

/// The weights c = exp(b - max b) of the lags of a range, computed as attention does (lower_lags.hpp): the largest
/// weight is 1. All weights are zero if all b are -infinity.
template <Real T>
LagWeights<T> exp_weights(const LagBias<T>& bias, LagRange range) {
  LagProblem<T> x;
  x.lags = x.reach = range;
  Workspace workspace;
  add_biases_and_weights<T>(x, bias.view(), nullptr, Pass::backward, workspace);
  return {range.first, VectorMap<T>(x.weight_values, range.size()), x.weights.tails};
}

}  // namespace nprf
