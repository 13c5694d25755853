// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>

#include "nprf/core/lag_range.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"

namespace nprf {

/// largest (n_q) becomes at least the largest of the sizes (n_k), one a key, of the keys at a range of lags from each
/// query. A lag is a difference of slots. O(n_q + n_k), and log n_k a query if keys leave slots empty.
template <Real T>
void sliding_window_max(const T* sizes, const Slots& queries, const Slots& keys, LagRange lags, T* largest,
                        Workspace& workspace) {
  const Workspace::Scope scope(workspace);
  // the keys of the window that no later key of it exceeds: their sizes decrease, so the first is the largest
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

/// The exponents (base 2) of the non-zero sizes (count), each once, the largest first, into `exponents` (count).
/// Returns their number. O(count log count).
template <Real T>
Index exponents_of(const T* sizes, Index count, int* exponents) {
  Index number = 0;
  for (Index j = 0; j < count; ++j)
    if (sizes[j] > 0) exponents[number++] = std::ilogb(sizes[j]);
  std::sort(exponents, exponents + number, std::greater<>());
  return std::unique(exponents, exponents + number) - exponents;
}

}  // namespace nprf
