// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/lag_bias.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"

namespace nprf {

/// largest (n_q) becomes at least the largest of the sizes (n_k), one a key, that each query sees: it sees the keys at
/// a range of lags, differences of slots. O(n_q + n_k), and log n_k a query where keys leave slots empty.
template <Real T>
void largest_seen(const T* sizes, const Slots& queries, const Slots& keys, LagRange lags, T* largest,
                  Workspace& workspace) {
  const Workspace::Scope scope(workspace);
  // keys that no later one of the window exceeds: their sizes fall, and the first is the largest of all
  Index* falling = workspace.take<Index>(keys.count);
  Index front = 0, back = 0, end = 0;
  for (Index i = 0; i < queries.count; ++i) {
    for (const Index until = keys.below(queries[i] + lags.last + 1); end < until; ++end) {
      while (back > front && sizes[falling[back - 1]] <= sizes[end]) --back;
      falling[back++] = end;
    }
    const Index begin = keys.below(queries[i] + lags.first);
    while (front < back && falling[front] < begin) ++front;
    if (front < back) largest[i] = std::max(largest[i], sizes[falling[front]]);
  }
}

}  // namespace nprf
