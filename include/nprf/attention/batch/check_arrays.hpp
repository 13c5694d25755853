// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <utility>

#include "nprf/attention/heads_view.hpp"
#include "nprf/attention/options.hpp"
#include "nprf/attention/segments.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

namespace detail {

/// What an axis adds to the distance from a scalar of one view to a scalar of another: `stride` times each integer from
/// `least` to `most`.
struct DistanceAxis {
  Index stride, least, most;
};

/// Whether `from` plus one distance from each axis can be in [low, high]. The strides are positive and decrease from
/// axis to axis. Also returns true once it has tried max_steps sums.
inline bool reaches(std::span<const DistanceAxis> axes, Index from, Index low, Index high, Index& max_steps) {
  if (axes.empty()) return low <= from && from <= high;
  const auto [stride, least, most] = axes.front();
  Index below = 0, above = 0;  // the sums of the other axes
  for (const DistanceAxis& x : axes.subspan(1)) below += x.least * x.stride, above += x.most * x.stride;
  const auto floor_of_quotient = [by = stride](Index x) { return x / by - (x % by < 0 ? 1 : 0); };
  const Index last = std::min(most, floor_of_quotient(high - below - from));
  for (Index i = std::max(least, -floor_of_quotient(from + above - low)); i <= last; ++i)
    if (--max_steps < 0 || reaches(axes.subspan(1), from + i * stride, low, high, max_steps)) return true;
  return false;
}

/// Whether two views share memory. It is exact for views with the same strides, such as parts of one array. Views whose
/// strides differ so that it would take more than 10,000 steps count as sharing memory.
template <class T, class S>
bool may_overlap(const HeadsView<T>& x, const HeadsView<S>& y) {
  if (x.size() == 0 || y.size() == 0) return false;
  std::array<DistanceAxis, 6> axes;  // from a scalar of x to one of y, in bytes
  std::size_t count = 0;
  const auto add = [&](Index stride, Index least, Index most) {
    if (stride == 0 || least == most) return;
    std::size_t at = 0;
    while (at < count && axes[at].stride > stride) ++at;
    if (at == count || axes[at].stride < stride) {  // a new axis, before those of shorter strides
      for (std::size_t i = count++; i > at; --i) axes[i] = axes[i - 1];
      axes[at] = {stride, 0, 0};
    }
    axes[at].least += least, axes[at].most += most;
  };
  const auto axes_of = [](const auto& of) {  // sizes and strides
    const HeadStrides by = of.all_strides();
    constexpr Index bytes = sizeof(*of.data);
    return std::array{std::pair(of.tokens, bytes * by.token), std::pair(of.heads, bytes * by.head),
                      std::pair(of.batch, bytes * by.batch)};
  };
  for (const auto& [size, stride] : axes_of(x)) add(stride, 1 - size, 0);
  for (const auto& [size, stride] : axes_of(y)) add(stride, 0, size - 1);
  const std::span found(axes.data(), count);
  const auto begin = [](const auto& of) { return static_cast<Index>(reinterpret_cast<std::uintptr_t>(of.data)); };
  Index max_steps = 10'000;
  constexpr Index of_x = sizeof(T), of_y = sizeof(S);
  return reaches(found, begin(y) - begin(x), 1 - of_y * y.channels, of_x * x.channels - 1, max_steps);
}

}  // namespace detail

/// Throws InvalidArgument if heads_of_model is not 1 (one feature map and one position) and differs from `heads`, the
/// number of heads of queries; or if `heads` is not a multiple of heads_k, the number of heads of keys.
inline void check_head_counts(Index heads, Index heads_k, Index heads_of_model) {
  require(heads_of_model == 1 || heads == heads_of_model, "queries: expected ", heads_of_model,
          " heads (the number of feature maps or positions), got ", heads);
  require(heads == 0 ? heads_k == 0 : heads_k > 0 && heads % heads_k == 0, "keys: expected a number of heads that ",
          heads, " (of queries) is a multiple of, got ", heads_k);
}

/// Throws InvalidArgument unless all of this holds: the view has this shape; its size in bytes does not overflow; no
/// stride is negative, and the stride of tokens is at least `channels`; its data are not null, or its size is zero.
template <class T>
void check_heads(const HeadsView<T>& x, const char* name, Index batch, Index heads, Index tokens, Index channels) {
  require(x.batch == batch && x.heads == heads && x.tokens == tokens && x.channels == channels, name, ": expected ",
          batch, " x ", heads, " x ", tokens, " x ", channels, " (batch, heads, tokens, channels), got ", x.batch,
          " x ", x.heads, " x ", x.tokens, " x ", x.channels);
  require(batch >= 0 && heads >= 0 && tokens >= 0 && channels >= 0, name, ": expected no negative size, got ", batch,
          " x ", heads, " x ", tokens, " x ", channels);
  // overflow is checked by products: divisions would take longer than a step of a decoder
  bool overflows = false;
  const auto product = [&](Index a, Index c) {
    Index result;
    overflows |= __builtin_mul_overflow(a, c, &result);
    return result;
  };
  Index size = sizeof(T);
  for (const Index extent : {batch, heads, tokens, channels})
    size = product(size, std::max<Index>(extent, 1));  // the other sizes must not overflow even if one is zero
  require(!overflows, name, ": expected sizes whose product does not overflow, got ", batch, " x ", heads, " x ",
          tokens, " x ", channels);
  const HeadStrides by = x.all_strides();
  require(by.token >= channels && by.head >= 0 && by.batch >= 0, name, ": expected strides of at least ", channels,
          ", 0 and 0 (token, head, batch), got ", by.token, ", ", by.head, " and ", by.batch);
  Index last = channels;
  for (const auto& [count, stride] : {std::pair{tokens, by.token}, {heads, by.head}, {batch, by.batch}})
    if (count > 1) overflows |= __builtin_add_overflow(last, product(count - 1, stride), &last);
  product(last, sizeof(T));
  require(!overflows, name, ": expected strides whose array does not overflow, got ", by.token, ", ", by.head, " and ",
          by.batch);
  require(x.data != nullptr || x.size() == 0, name, ": expected data, got a null pointer");
}

/// As check_heads(), for a view that is written: its tokens must not overlap either.
template <class T>
void check_output(const HeadsView<T>& x, const char* name, Index batch, Index heads, Index tokens, Index channels) {
  check_heads(x, name, batch, heads, tokens, channels);
  if (x.size() == 0) return;
  const HeadStrides by = x.all_strides();
  std::pair<Index, Index> axes[] = {{by.token, tokens}, {by.head, heads}, {by.batch, batch}};
  std::sort(std::begin(axes), std::end(axes));
  Index span = channels;
  for (const auto& [stride, count] : axes) {
    if (count <= 1) continue;
    require(stride >= span, name, ": expected strides that keep tokens apart, got ", by.token, ", ", by.head, " and ",
            by.batch, " (token, head, batch)");
    span += (count - 1) * stride;
  }
}

/// Throws InvalidArgument unless these are the arrays of a call of an attention whose feature maps have input_dim, and
/// whose vectors of lags have that rank: q [b,h,n_q,d+rank] k [b,h_k,n_k,d] v [b,h_k,n_k,d_v] y [b,h,n_q,d_v], where y
/// shares no memory with the others. heads_of_model: as for check_head_counts().
template <Real T>
void check_attention_arrays(const HeadsView<const T>& q, const HeadsView<const T>& k, const HeadsView<const T>& v,
                            const HeadsView<T>& y, Index input_dim, Index rank, Index heads_of_model) {
  check_heads(q, "queries", q.batch, q.heads, q.tokens, q.channels);
  check_query_channels(q.channels, input_dim, rank);
  check_head_counts(q.heads, k.heads, heads_of_model);
  check_heads(k, "keys", q.batch, k.heads, k.tokens, input_dim);
  check_heads(v, "values", q.batch, k.heads, k.tokens, v.channels);
  check_output(y, "y", q.batch, q.heads, q.tokens, v.channels);
  require(!detail::may_overlap(y, q) && !detail::may_overlap(y, k) && !detail::may_overlap(y, v),
          "y: expected an array that shares no memory with queries, keys and values, got one that does");
}

/// Throws InvalidArgument unless these are the arrays of the gradients of such a call: dy [b,h,n_q,d_v]
/// dq [b,h,n_q,d+rank] dk [b,h_k,n_k,d] dv [b,h_k,n_k,d_v], where no array shares memory with another.
template <Real T>
void check_gradient_arrays(const AttentionShape& shape, Index rank, Index batch, Index heads, Index heads_k,
                           const HeadsView<const T>& dy, const HeadsView<T>& dq, const HeadsView<T>& dk,
                           const HeadsView<T>& dv) {
  const auto [n_q, n_k, d, d_v] = shape;
  check_heads(dy, "dy", batch, heads, n_q, d_v);
  check_output(dq, "dq", batch, heads, n_q, d + rank);
  check_output(dk, "dk", batch, heads_k, n_k, d);
  check_output(dv, "dv", batch, heads_k, n_k, d_v);
  const auto is_apart = [&](const HeadsView<T>& x, const auto&... others) {
    return (!detail::may_overlap(x, dy) && ... && !detail::may_overlap(x, others));
  };
  require(is_apart(dq, dk, dv) && is_apart(dk, dv) && is_apart(dv),
          "dq, dk, dv: expected arrays that share no memory with each other and with dy, got some that do");
}

namespace detail {

/// The first non-finite row of x among the first `rows` rows, without those whose mask is false; -1 if there is none.
/// An empty mask is all true.
template <class X>
Index first_non_finite(const X& x, std::span<const bool> mask, Index rows) {
  for (Index i = 0; i < rows; ++i)
    if ((mask.empty() || mask[static_cast<std::size_t>(i)]) && !is_finite(row_of(x, i))) return i;
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
  const Index i = first_row(first);
  const std::span<const T> x = row_of(parts[part].x(b, h), i);
  std::size_t c = 0;
  while (std::isfinite(x[c])) ++c;
  const std::string where =
      batch * heads == 1 ? "" : "batch " + std::to_string(b) + ", head " + std::to_string(h) + ", ";
  throw InvalidArgument(detail::sentence(parts[part].name, ": expected finite numbers (check_finite), got ", x[c],
                                         " in ", where, "row ", i, ", column ", c));
}

}  // namespace nprf
