// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>

#include "nprf/attention/fallback/non_finite.hpp"
#include "nprf/attention/heads_view.hpp"
#include "nprf/attention/options.hpp"
#include "nprf/attention/segments.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

namespace detail {

/// The first non-finite row of x among the first `rows` rows whose mask is true, -1 if there is none. An empty mask is
/// all true.
template <class X>
Index first_non_finite(const X& x, std::span<const bool> mask, Index rows) {
  for (Index i = 0; i < rows; ++i)
    if ((mask.empty() || mask[static_cast<std::size_t>(i)]) && !is_finite_row(x.row(i))) return i;
  return -1;
}

}  // namespace detail

/// Throws InvalidArgument if an entry of queries, keys or values that is not padding is non-finite. The message names
/// the first one, in the order of sequences, heads, and queries, keys, values. O(n (d + d_v)) for each head.
template <Real T>
void require_finite(const HeadsView<const T>& q, const HeadsView<const T>& k, const HeadsView<const T>& v,
                    const CallOptions& call, const Team& team, Lengths lengths = Lengths::of_keys) {
  const Index batch = q.batch, heads = q.heads;
  struct Part {
    const char* name;
    const HeadsView<const T>& x;
  };
  const Part parts[] = {{"queries", q}, {"keys", k}, {"values", v}};
  struct Task {
    Index part, h, b;
  };
  const auto place = [&](Index task) { return Task{task % 3, task / 3 % heads, task / 3 / heads}; };
  const auto first_row = [&](Index task) {
    const auto [part, h, b] = place(task);
    if (h >= parts[part].x.heads) return Index{-1};  // keys and values have fewer heads than queries
    const auto x = parts[part].x(b, h);
    if (part == 0 && lengths == Lengths::of_keys) return detail::first_non_finite(x, {}, x.rows());
    const Index length = call.lengths.empty() ? x.rows() : call.lengths[static_cast<std::size_t>(b)];
    std::span<const bool> mask = call.key_mask;
    if (!mask.empty()) mask = mask.subspan(static_cast<std::size_t>(b * x.rows()), static_cast<std::size_t>(x.rows()));
    return detail::first_non_finite(x, mask, length);
  };

  const Index tasks = 3 * batch * heads;
  std::atomic<Index> first = tasks;
  team.run(tasks, [&](Index task, Workspace&) {
    if (task > first || first_row(task) < 0) return;
    for (Index current = first; task < current && !first.compare_exchange_weak(current, task);) continue;
  });
  if (first == tasks) return;
  const auto [part, h, b] = place(first);
  const auto x = parts[part].x(b, h);
  const Index i = first_row(first);
  Index c = 0;
  while (std::isfinite(x(i, c))) ++c;
  const std::string where =
      batch * heads == 1 ? "" : "batch " + std::to_string(b) + ", head " + std::to_string(h) + ", ";
  throw InvalidArgument(detail::sentence(parts[part].name, ": expected finite numbers (check_finite), got ", x(i, c),
                                         " in ", where, "row ", i, ", column ", c));
}

}  // namespace nprf
