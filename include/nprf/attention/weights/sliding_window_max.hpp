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

/// Raises largest (n_q) to the maximum of the sizes (n_k) of the keys whose lag from the query is in a range. A lag is
/// a difference of slots. O(n_q + n_k), and log n_k for each query if slots are empty.
template <Real T>
void sliding_window_max(const T* sizes, const Slots& queries, const Slots& keys, LagRange lags, T* largest,
                        Workspace& workspace) {
  const Workspace::Scope scope(workspace);
  // the keys of the window that are larger than all later keys of it: the first is the maximum
  Index* candidates = workspace.take<Index>(keys.count);
  Index front = 0, back = 0, end = 0;
  for (Index i = 0; i < queries.count; ++i) {
    for (const Index until = keys.below(queries[i] + lags.last + 1); end < until; ++end) {
      while (back > front && sizes[candidates[back - 1]] <= sizes[end]) --back;
      candidates[back++] = end;
    }
    const Index begin = keys.below(queries[i] + lags.first);
    while (front < back && candidates[front] < begin) ++front;
    if (front < back) largest[i] = std::max(largest[i], sizes[candidates[front]]);
  }
}

/// Sets `exponents` (count) to the base-2 exponents of the non-zero sizes (count), each once, in decreasing order, and
/// returns their number. O(count log count).
template <Real T>
Index exponents_of(const T* sizes, Index count, int* exponents) {
  Index number = 0;
  for (Index j = 0; j < count; ++j)
    if (sizes[j] > 0) exponents[number++] = std::ilogb(sizes[j]);
  std::sort(exponents, exponents + number, std::greater<>());
  return std::unique(exponents, exponents + number) - exponents;
}

}  // namespace nprf
