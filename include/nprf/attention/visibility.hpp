// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>

#include "nprf/core/lag_bias.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/workspace.hpp"

namespace nprf {

/// Whether a query sees any key: one at a lag of a range whose bias is not -infinity. O(n_q + n_k) to build, in the
/// workspace; O(log n_k) a question, and where keys leave slots empty up to the first that is seen.
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
    LagRange run{m_lags.first, m_lags.first - 1};
    for (Index lag = m_lags.first; lag <= m_lags.last; ++lag) {
      run = visible(lag) ? LagRange{run.first, lag} : LagRange{lag + 1, lag};
      if (run.size() > m_longest.size()) m_longest = run;
    }
  }

  /// For a query at `position` on the keys' axis.
  bool sees_any(Index position, const Slots& keys) const { return first_seen(position, keys) >= 0; }

  /// The first key that it sees; -1 if there is none.
  Index first_seen(Index position, const Slots& keys) const {
    Index j = keys.below(position + m_lags.first);
    if (keys.at) {
      while (j < keys.count && keys[j] - position <= m_lags.last && !visible(keys[j] - position)) ++j;
    } else if (j < keys.count && keys[j] - position <= m_lags.last) {
      // the next lag at which the number of those before it grows
      const Index* from = m_before + (keys[j] - position - m_lags.first);
      j += std::upper_bound(from, m_before + m_lags.size() + 1, *from) - from - 1;
    }
    return j < keys.count && keys[j] - position <= m_lags.last ? j : -1;
  }

  /// The longest run of lags that are all seen, differences of slots.
  LagRange longest_run() const { return m_longest; }

 private:
  Index before(Index lag) const { return m_before[lag - m_lags.first]; }
  bool visible(Index lag) const { return before(lag + 1) > before(lag); }

  LagRange m_lags, m_longest;
  const Index* m_before;
};

}  // namespace nprf
