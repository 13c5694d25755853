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
    if (keys.at) return first_seen(position, keys) >= 0;
    const Index first = keys.below(position + m_lags.first), end = keys.below(position + m_lags.last + 1);
    return end > first && before(keys[end - 1] - position + 1) > before(keys[first] - position);
  }

  /// The first key that it sees; -1 if there is none. O(1) or O(log n_k), and up to that key.
  Index first_seen(Index position, const Slots& keys) const {
    for (Index j = keys.below(position + m_lags.first); j < keys.count && keys[j] - position <= m_lags.last; ++j)
      if (visible(keys[j] - position)) return j;
    return -1;
  }

  /// The longest run of lags that are all seen, differences of slots.
  LagRange longest_run() const {
    LagRange longest, run{m_lags.first, m_lags.first - 1};
    for (Index lag = m_lags.first; lag <= m_lags.last; ++lag) {
      run = visible(lag) ? LagRange{run.first, lag} : LagRange{lag + 1, lag};
      if (run.size() > longest.size()) longest = run;
    }
    return longest;
  }

 private:
  Index before(Index lag) const { return m_before[lag - m_lags.first]; }
  bool visible(Index lag) const { return before(lag + 1) > before(lag); }

  LagRange m_lags;
  const Index* m_before;
};

}  // namespace nprf
