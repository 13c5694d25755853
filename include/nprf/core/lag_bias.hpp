// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// The lags first..last, both included; empty when last < first.
struct LagRange {
  Index first = 0;
  Index last = -1;

  Index size() const { return std::max<Index>(last - first + 1, 0); }
};

/// The lags between n_q queries at positions offset, offset + 1, ... and n_k keys at positions 0, 1, ...
inline LagRange reachable_lags(Index n_q, Index n_k, Index offset, Direction direction) {
  if (n_q == 0 || n_k == 0) return {};
  const LagRange all{-(n_q - 1) - offset, n_k - 1 - offset};
  return {all.first, direction == Direction::causal ? std::min<Index>(all.last, 0) : all.last};
}

/// The bias b[lag] of every lag: a table, and beyond each of its ends a straight line.
///
/// Clipping has slope 0, ALiBi a table of one scalar and slopes -s; b = -infinity is weight 0.
template <Real T>
struct LagBias {
  Index first = 0;                       // lag of table[0]
  Vector<T> table = Vector<T>::Zero(1);  // at least one scalar
  T slope_before = 0;                    // b[first - k] = table[0]   + k slope_before
  T slope_after = 0;                     // b[last  + k] = table[end] + k slope_after

  Index last() const { return first + table.size() - 1; }

  /// b[lag], in double so that long straight lines keep their digits.
  double operator[](Index lag) const {
    if (lag < first) return table[0] + static_cast<double>(first - lag) * slope_before;
    if (lag > last()) return table[table.size() - 1] + static_cast<double>(lag - last()) * slope_after;
    return table[lag - first];
  }

  /// b[lag] - b[from], rounded relative to itself: not as the difference of two large numbers where both lie on one
  /// straight line. -infinity for a lag of weight 0; `from` must not be one.
  double difference(Index lag, Index from) const {
    constexpr double never = -std::numeric_limits<double>::infinity();
    if (lag < first && from < first) return table[0] > never ? static_cast<double>(from - lag) * slope_before : never;
    if (lag > last() && from > last())
      return table[table.size() - 1] > never ? static_cast<double>(lag - from) * slope_after : never;
    return (*this)[lag] - (*this)[from];
  }

  /// The lag of the largest b of a range, the first of several; range.first for an empty one.
  Index largest(LagRange range) const {
    Index best = range.first;
    if (range.size() == 0) return best;
    const auto consider = [&](Index lag) {
      if ((*this)[lag] > (*this)[best]) best = lag;
    };
    // beyond the table b is monotone, so that the range's own ends stand for its straight parts
    const Index from = std::max(range.first, first), to = std::min(range.last, last());
    for (Index lag = from; lag <= to; ++lag) consider(lag);
    consider(range.last);
    return best;
  }

  /// The largest b of a range; -infinity for an empty one.
  double max(LagRange range) const {
    return range.size() == 0 ? -std::numeric_limits<double>::infinity() : (*this)[largest(range)];
  }
};

/// Throws InvalidArgument unless the table has a scalar, all are finite or -infinity, and the slopes are numbers.
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
