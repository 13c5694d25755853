// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "nprf/core/lag_bias.hpp"

namespace nprf {

/// How many keys each query sees: those at lags of the reachable range whose bias is not -infinity. O(n_q + n_k).
class Visibility {
 public:
  template <Real T>
  Visibility(const LagBias<T>& bias, Index n_k, Index offset, LagRange reachable)
      : m_n_k(n_k), m_offset(offset), m_reachable(reachable), m_before(static_cast<std::size_t>(reachable.size()) + 1) {
    for (Index k = 0; k < reachable.size(); ++k) {
      const bool visible = bias[reachable.first + k] > -std::numeric_limits<double>::infinity();
      m_before[static_cast<std::size_t>(k) + 1] = m_before[static_cast<std::size_t>(k)] + (visible ? 1 : 0);
    }
  }

  /// The number of keys that query i sees.
  Index keys(Index i) const {
    const Index first = std::max(-(i + m_offset), m_reachable.first);
    const Index last = std::min(m_n_k - 1 - (i + m_offset), m_reachable.last);
    return last < first ? 0 : before(last + 1) - before(first);
  }

 private:
  Index before(Index lag) const { return m_before[static_cast<std::size_t>(lag - m_reachable.first)]; }

  Index m_n_k, m_offset;
  LagRange m_reachable;
  std::vector<Index> m_before;  // visible lags before each lag of the range
};

}  // namespace nprf
