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

/// How many levels stand for all sizes.
inline constexpr Index num_levels = 8;

/// levels (num_levels) of sizes (count): the least that is not 0, the largest, and some in between, such that a part of
/// 1/16, 1/4, 1/2, 3/4, 15/16 and 255/256 of those that are not 0 is less; 0 if there is none. O(count).
template <Real T>
void size_levels(const T* sizes, Index count, T* levels, Workspace& workspace) {
  const Workspace::Scope scope(workspace);
  T* some = workspace.take<T>(count);
  const Index number = std::copy_if(sizes, sizes + count, some, [](T size) { return size > 0; }) - some;
  std::fill_n(levels, num_levels, T(0));
  if (number == 0) return;
  constexpr double less[num_levels] = {0, 1. / 16, 1. / 4, 1. / 2, 3. / 4, 15. / 16, 255. / 256, 1};
  for (Index k = 0; k < num_levels; ++k) {
    const Index at = std::min(number - 1, static_cast<Index>(less[k] * static_cast<double>(number)));
    std::nth_element(some, some + at, some + number);
    levels[k] = some[at];
  }
}

}  // namespace nprf
