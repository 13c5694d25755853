// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>

#include "nprf/core/index.hpp"
#include "nprf/core/lag_range.hpp"

namespace nprf {

/// A view of a LagBias (lag_bias.hpp), in the caller's storage. It needs no matrix library.
template <Real T>
struct LagBiasView {
  Index first = 0;           // lag of table[0]
  const T* table = nullptr;  // (size), at least one scalar
  Index size = 0;
  T slope_before = 0;  // b[first - k] = table[0]   + k slope_before
  T slope_after = 0;   // b[last  + k] = table[end] + k slope_after

  Index last() const { return first + size - 1; }

  /// b[lag], computed in double: the lines lose little precision even far from the table.
  double operator[](Index lag) const {
    if (lag < first) return table[0] + static_cast<double>(first - lag) * slope_before;
    if (lag > last()) return table[size - 1] + static_cast<double>(lag - last()) * slope_after;
    return table[lag - first];
  }

  /// b[lag] - b[from]. If both lags are on the same line, the difference is computed from the slope and not from two
  /// large numbers, so that its rounding error is relative to the difference. -infinity if b[lag] is -infinity; b[from]
  /// must not be -infinity.
  double difference(Index lag, Index from) const {
    constexpr double minus_infinity = -std::numeric_limits<double>::infinity();
    if (lag < first && from < first)
      return table[0] > minus_infinity ? static_cast<double>(from - lag) * slope_before : minus_infinity;
    if (lag > last() && from > last())
      return table[size - 1] > minus_infinity ? static_cast<double>(lag - from) * slope_after : minus_infinity;
    return (*this)[lag] - (*this)[from];
  }

  /// Sets b (range.size()) to the biases of a range of lags.
  void fill(LagRange range, double* b) const {
    for (Index lag = range.first; lag <= range.last; ++lag) b[lag - range.first] = (*this)[lag];
  }
  /// Sets d (range.size()) to difference(lag, from) for the lags of a range.
  void fill_differences(LagRange range, Index from, double* d) const {
    for (Index lag = range.first; lag <= range.last; ++lag) d[lag - range.first] = difference(lag, from);
  }

  /// The lag of a range that has the largest b, the first if there are several; range.first if the range is empty.
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

}  // namespace nprf
