// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/error.hpp"
#include "nprf/core/lag_range.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// The bias b[lag] of every lag: a table, continued by a straight line beyond each end.
///
/// A clipped table has slopes 0. ALiBi has a table of one scalar and slopes -s. b = -infinity means weight 0.
template <Real T>
struct LagBias {
  Index first = 0;                       // lag of table[0]
  Vector<T> table = Vector<T>::Zero(1);  // at least one scalar
  T slope_before = 0;                    // b[first - k] = table[0]   + k slope_before
  T slope_after = 0;                     // b[last  + k] = table[end] + k slope_after

  Index last() const { return first + table.size() - 1; }

  /// b[lag], computed in double: the lines lose little precision even far from the table.
  double operator[](Index lag) const {
    if (lag < first) return table[0] + static_cast<double>(first - lag) * slope_before;
    if (lag > last()) return table[table.size() - 1] + static_cast<double>(lag - last()) * slope_after;
    return table[lag - first];
  }

  /// b[lag] - b[from], with a rounding error relative to the result: if both lags are on the same line, it is not
  /// computed as the difference of two large numbers. -infinity if b[lag] is -infinity; b[from] must not be.
  double difference(Index lag, Index from) const {
    constexpr double minus_infinity = -std::numeric_limits<double>::infinity();
    if (lag < first && from < first)
      return table[0] > minus_infinity ? static_cast<double>(from - lag) * slope_before : minus_infinity;
    if (lag > last() && from > last())
      return table[table.size() - 1] > minus_infinity ? static_cast<double>(lag - from) * slope_after : minus_infinity;
    return (*this)[lag] - (*this)[from];
  }

  /// b of a range of lags, into b (range.size()).
  void fill(LagRange range, double* b) const {
    for (Index lag = range.first; lag <= range.last; ++lag) b[lag - range.first] = (*this)[lag];
  }
  /// difference(lag, from) for a range of lags, into d (range.size()).
  void fill_differences(LagRange range, Index from, double* d) const {
    for (Index lag = range.first; lag <= range.last; ++lag) d[lag - range.first] = difference(lag, from);
  }

  /// The first lag with the largest b of a range; range.first if the range is empty.
  Index largest(LagRange range) const {
    Index best = range.first;
    if (range.size() == 0) return best;
    const auto consider = [&](Index lag) {
      if ((*this)[lag] > (*this)[best]) best = lag;
    };
    // beyond the table b is monotone, so the ends of the range suffice there
    const Index from = std::max(range.first, first), to = std::min(range.last, last());
    for (Index lag = from; lag <= to; ++lag) consider(lag);
    consider(range.last);
    return best;
  }

  /// The largest b of a range; -infinity if the range is empty.
  double max(LagRange range) const {
    return range.size() == 0 ? -std::numeric_limits<double>::infinity() : (*this)[largest(range)];
  }
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
