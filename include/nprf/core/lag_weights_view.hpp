// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/lag_bias_view.hpp"
#include "nprf/core/lag_range.hpp"

namespace nprf {

/// The tails of a table of weights c of the lags first..last: at each end, the number of weights that continue a
/// geometric sequence outwards, and the logarithm of its ratio. With e = first + before and f = last - after:
///     c[e - k] = c[e] exp(k slope_before)  for k = 1..before,    c[f + k] = c[f] exp(k slope_after)  for k = 1..after
struct Tails {
  Index before = 0, after = 0;
  double slope_before = 0, slope_after = 0;
};

/// A view of the weights c[lag] of a Toeplitz matrix C[i,j] = c[j-i]. A lag outside the table has weight 0.
template <Real T>
struct LagWeightsView {
  Index first = 0;            // lag of values[0]
  const T* values = nullptr;  // c[first], c[first + 1], ...
  Index size = 0;
  Tails tails = {};  // before + after < size, unless both are 0

  Index last() const { return first + size - 1; }

  T operator[](Index lag) const { return lag < first || lag > last() ? T(0) : values[lag - first]; }

  /// The smallest range of lags that contains all non-zero weights.
  LagRange support() const {
    LagRange range{first, last()};
    while (range.size() > 0 && (*this)[range.first] == T(0)) ++range.first;
    while (range.size() > 0 && (*this)[range.last] == T(0)) --range.last;
    return range;
  }

  /// The lags between the tails.
  LagRange middle() const { return {first + tails.before, last() - tails.after}; }

  /// The same weights. Each tail of slope 0 is extended inwards as far as the weights are equal.
  LagWeightsView with_equal_ends() const {
    LagWeightsView c = *this;
    Tails& t = c.tails;
    if (t.slope_before == 0)
      while (t.before + t.after + 1 < size && values[t.before + 1] == values[t.before]) ++t.before;
    if (t.slope_after == 0)
      while (t.before + t.after + 1 < size && values[size - 2 - t.after] == values[size - 1 - t.after]) ++t.after;
    return c;
  }
};

/// The tails of the weights of a range of lags: the lags beyond the table of the bias, where the bias is linear. A bias
/// that rises outwards gives no tail: the recurrence would start from an innermost weight that may have underflowed.
template <Real T>
Tails tails(const LagBiasView<T>& bias, LagRange range) {
  if (range.size() == 0) return {};
  const auto tail = [](T slope, Index lags, Index most) { return slope > 0 ? 0 : std::clamp<Index>(lags, 0, most); };
  const Index before = tail(bias.slope_before, bias.first - range.first, range.size() - 1);
  const Index after = tail(bias.slope_after, range.last - bias.last(), range.size() - 1 - before);
  return {before, after, before > 0 ? bias.slope_before : 0.0, after > 0 ? bias.slope_after : 0.0};
}

}  // namespace nprf
