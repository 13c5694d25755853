// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>

#include "nprf/core/error.hpp"
#include "nprf/core/lags.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// The bias b[lag] of every lag: a table, continued by a straight line beyond each end.
///
/// A clipped table has slopes 0. ALiBi with slope s has one scalar and slopes -s. b = -infinity means weight 0.
template <Real T>
struct LagBias {
  Index first = 0;                       // lag of table[0]
  Vector<T> table = Vector<T>::Zero(1);  // at least one scalar
  T slope_before = 0;                    // b[first - k] = table[0]   + k slope_before
  T slope_after = 0;                     // b[last  + k] = table[end] + k slope_after

  /// The functions below are those of the view (lags.hpp).
  LagBiasView<T> view() const { return {first, table.data(), table.size(), slope_before, slope_after}; }

  Index last() const { return first + table.size() - 1; }
  double operator[](Index lag) const { return view()[lag]; }
  double difference(Index lag, Index from) const { return view().difference(lag, from); }
  void fill(LagRange range, double* b) const { view().fill(range, b); }
  void fill_differences(LagRange range, Index from, double* d) const { view().fill_differences(range, from, d); }
  Index largest(LagRange range) const { return view().largest(range); }
  double max(LagRange range) const { return view().max(range); }
};

/// Throws InvalidArgument if the table is empty or holds a NaN or +infinity, or if a slope is NaN or beyond +-1e30.
template <Real T>
void check_bias(const LagBias<T>& bias) {
  require(bias.table.size() >= 1, "bias.table: expected at least one scalar, got none");
  for (Index l = 0; l < bias.table.size(); ++l)
    require(bias.table[l] < std::numeric_limits<T>::infinity(), "bias.table[", l,
            "]: expected a finite number or -infinity, got ", bias.table[l]);
  const T slopes[] = {bias.slope_before, bias.slope_after};
  for (const T slope : slopes)
    require(std::abs(slope) <= T(1e30), "bias slope: expected a number between -1e30 and 1e30, got ", slope);
}

}  // namespace nprf
