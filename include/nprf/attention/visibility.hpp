// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>

#include "nprf/core/lag_bias.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/workspace.hpp"

namespace nprf {

/// Whether a query sees any key: one at a lag of a range whose bias is not -infinity. O(n_q + n_k) to build, in the
/// workspace; O(1) a question where keys fill their slots, else O(log n_k) and up to the first key that is seen.
class Visibility {
 public:
  /// `lags` are of distances j - i - offset.
  template <Real T>
  Visibility(const LagBias<T>& bias, LagRange lags, Workspace& workspace) : m_lags(lags) {
    Index* before = workspace.take<Index>(lags.size() + 1);  // visible lags before each lag of the range
    before[0] = 0;
    for (Index k = 0; k < lags.size(); ++k)
      before[k + 1] = before[k] + (bias[lags.first + k] > -std::numeric_limits<double>::infinity() ? 1 : 0);
    m_before = before;
    while (m_lags.size() > 0 && !visible(m_lags.first)) ++m_lags.first, ++m_before;
    while (m_lags.size() > 0 && !visible(m_lags.last)) --m_lags.last;
  }

  /// For a query at `position` on the keys' axis.
  bool sees_any(Index position, const Slots& keys) const {
    const Index first = keys.below(position + m_lags.first), end = keys.below(position + m_lags.last + 1);
    if (end <= first || m_lags.size() == 0) return false;
    if (!keys.at) return before(keys[end - 1] - position + 1) > before(keys[first] - position);
    for (Index j = first; j < end; ++j)
      if (visible(keys[j] - position)) return true;
    return false;
  }

 private:
  Index before(Index lag) const { return m_before[lag - m_lags.first]; }
  bool visible(Index lag) const { return before(lag + 1) > before(lag); }

  LagRange m_lags;
  const Index* m_before;
};

}  // namespace nprf
