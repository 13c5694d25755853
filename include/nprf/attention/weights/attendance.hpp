// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "nprf/attention/weights/lag_set.hpp"
#include "nprf/attention/weights/sliding_window_max.hpp"
#include "nprf/core/lag_problem.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"

namespace nprf {

/// Which queries of a LagProblem attend to which keys, for sets of queries and keys at once. `keys` are the keys that
/// are not masked.
template <Real T>
class Attendance {
 public:
  /// O(n_q + n_k).
  Attendance(const LagProblem<T>& problem, Workspace& workspace)
      : m_x(problem),
        m_lags(
            problem.reach, [&](Index lag) { return problem.attends(lag); }, workspace) {}

  /// out (n_q,p) becomes 1 where a query attends to a key that mark(j, x) marks, by ones in its row x (p) of zeros;
  /// else 0. O((n_q + n_k) p) and the cost of LagSet::connect(), and O(E n_k p) for E tokens without a slot.
  template <class Mark>
  void attending_queries(const Placement& keys, const Mark& mark, MatrixMap<double> out, Workspace& workspace) const {
    find(Side::queries, keys, mark, out, workspace);
  }
  /// out (n_k,p) becomes 1 where a key is attended to by a query that mark(i, x) marks, else 0; likewise.
  template <class Mark>
  void attended_keys(const Placement& keys, const Mark& mark, MatrixMap<double> out, Workspace& workspace) const {
    find(Side::keys, keys, mark, out, workspace);
  }

  /// Whether each query (n_q) attends to any of the keys; whether each of the keys (n_k) is attended to by any query.
  /// O(n) if the attended lags are one run, and log n a token if slots are empty; otherwise as above.
  void attending_queries(const Placement& keys, bool* out, Workspace& workspace) const {
    if (is_one_run(keys)) return any_in_run(m_x.queries.slots, keys.slots, m_lags.longest_run(), out);
    const Workspace::Scope scope(workspace);
    auto any = workspace.template matrix<double>(m_x.queries.count(), 1);
    attending_queries(
        keys, [](Index, auto&& x) { x.setOnes(); }, any, workspace);
    for (Index i = 0; i < any.rows(); ++i) out[i] = any(i, 0) > 0;
  }
  void attended_keys(const Placement& keys, bool* out, Workspace& workspace) const {
    if (is_one_run(keys)) {
      const LagRange run = m_lags.longest_run();
      return any_in_run(keys.slots, m_x.queries.slots, {-run.last, -run.first}, out);
    }
    const Workspace::Scope scope(workspace);
    auto any = workspace.template matrix<double>(keys.count(), 1);
    attended_keys(
        keys, [](Index, auto&& x) { x.setOnes(); }, any, workspace);
    for (Index j = 0; j < any.rows(); ++j) out[j] = any(j, 0) > 0;
  }

  /// out (lags.size(),1) becomes 1 for a lag at which a query with is_marked(i) attends to one of the keys, both with a
  /// slot; else 0. O((n_q + n_k) log n).
  template <class IsMarked>
  void attended_lags(const Placement& keys, const IsMarked& is_marked, MatrixMap<double> out,
                     Workspace& workspace) const {
    const Workspace::Scope scope(workspace);
    auto of_queries = workspace.template matrix<double>(m_x.query_slots, 1),
         of_keys = workspace.template matrix<double>(m_x.key_slots, 1);
    of_queries.setZero();
    of_keys.setZero();
    for (Index i = 0; i < m_x.queries.slots.count; ++i)
      if (is_marked(m_x.queries.outside + i)) of_queries(m_x.queries.slots[i], 0) = 1;
    for (Index j = 0; j < keys.slots.count; ++j) of_keys(keys.slots[j], 0) = 1;
    // lag l connects the slot s of a query with the slot t = s + l of a key: the slots of queries, shifted and with the
    // sign changed, are a set of lags from l to t
    const Index shift = m_x.query_slots - 1;
    const LagSet queries(
        {-shift, 0}, [&](Index lag) { return of_queries(lag + shift, 0) > 0; }, workspace);
    queries.connect({out.rows()}, of_keys, out, workspace);
    for (Index l = 0; l < out.rows(); ++l)
      if (!m_x.attends(l - shift)) out(l, 0) = 0;
  }

  /// largest (n_q): the largest of the sizes (n_k), one a key, that each query attends to; if the attended lags are
  /// several runs, a number above half of it. No entry depends on keys that its query does not attend to. O((n_q + n_k)
  /// log n), times the number of different powers of two of the sizes over eight if there are several runs; and O(E
  /// n_k).
  void largest_attended(const T* sizes, const Placement& keys, T* largest, Workspace& workspace) const {
    const Placement& queries = m_x.queries;
    for (Index i = 0; i < queries.outside; ++i) {
      largest[i] = 0;
      for (Index j = 0; j < keys.count(); ++j)
        if (m_x.attends(i, keys.token_index(j))) largest[i] = std::max(largest[i], sizes[j]);
    }
    T outside = 0;  // all queries with a slot attend to the same keys without one
    for (Index j = 0; j < keys.outside; ++j)
      if (m_x.attends(queries.outside, keys.token_index(j))) outside = std::max(outside, sizes[j]);
    T* in_slots = largest + queries.outside;
    std::fill_n(in_slots, queries.slots.count, outside);
    sliding_window_max(sizes + keys.outside, queries.slots, keys.slots, m_lags.longest_run(), in_slots, workspace);
    if (m_lags.runs() > 1) add_other_runs(sizes + keys.outside, keys.slots, in_slots, workspace);
  }

 private:
  enum class Side { queries, keys };

  // marks the tokens of one side that attend to, or are attended to by, a marked token of the other side
  template <class Mark>
  void find(Side side, const Placement& keys, const Mark& mark, MatrixMap<double>& out, Workspace& workspace) const {
    const Workspace::Scope scope(workspace);
    const bool of_queries = side == Side::queries;
    const Placement &rows = of_queries ? m_x.queries : keys, &marked = of_queries ? keys : m_x.queries;
    const Index p = out.cols(), marked_slots = of_queries ? m_x.key_slots : m_x.query_slots;
    const auto attends = [&](Index row, Index other) {
      return of_queries ? m_x.attends(row, keys.token_index(other)) : m_x.attends(other, keys.token_index(row));
    };
    auto X = workspace.template matrix<double>(marked_slots, p), x = workspace.template matrix<double>(1, p);
    auto in_slots = workspace.template matrix<double>(rows.slots.count, p);
    X.setZero();
    for (Index j = 0; j < marked.slots.count; ++j) mark(marked.outside + j, X.row(marked.slots[j]));
    if (of_queries)
      m_lags.connect(rows.slots, X, in_slots, workspace);
    else
      m_lags.connect_transposed(rows.slots, X, in_slots, workspace);
    out.topRows(rows.outside).setZero();
    out.bottomRows(in_slots.rows()) = in_slots;
    for (Index j = 0; j < marked.count() && rows.outside + marked.outside > 0; ++j) {
      x.setZero();
      mark(j, x.row(0));
      if (x.isZero(0)) continue;
      for (Index i = 0; i < (j < marked.outside ? rows.count() : rows.outside); ++i)
        if (attends(i, j)) out.row(i) = out.row(i).cwiseMax(x.row(0));
    }
  }

  // whether the attended lags are one run and all tokens have slots
  bool is_one_run(const Placement& keys) const { return m_lags.runs() == 1 && m_x.queries.outside + keys.outside == 0; }

  // whether any of the others is at one of these lags
  static void any_in_run(const Slots& slots, const Slots& others, LagRange lags, bool* any) {
    for (Index i = 0; i < slots.count; ++i)
      any[i] = others.below(slots[i] + lags.first) < others.below(slots[i] + lags.last + 1);
  }

  // raises each entry to the largest power of two of a size that its query attends to
  void add_other_runs(const T* sizes, const Slots& keys, T* largest, Workspace& workspace) const {
    const Workspace::Scope scope(workspace);
    const Slots& queries = m_x.queries.slots;
    constexpr Index columns = 8;  // powers of two at a time
    auto X = workspace.template matrix<double>(m_x.key_slots, columns),
         any = workspace.template matrix<double>(queries.count, columns);
    int* exponents = workspace.template take<int>(keys.count);
    bool* is_found = workspace.template take<bool>(queries.count);
    std::fill_n(is_found, queries.count, false);
    const Index number = exponents_of(sizes, keys.count, exponents);
    for (Index k0 = 0, found = 0; k0 < number && found < queries.count; k0 += columns) {
      const Index cols = std::min(columns, number - k0);
      X.setZero();
      for (Index j = 0; j < keys.count; ++j)
        if (sizes[j] > 0)
          for (Index k = 0; k < cols; ++k) X(keys[j], k) = std::ilogb(sizes[j]) == exponents[k0 + k] ? 1 : 0;
      m_lags.connect(queries, X, any, workspace);
      for (Index i = 0; i < queries.count; ++i)
        for (Index k = 0; k < cols && !is_found[i]; ++k) {
          if (!(any(i, k) > 0)) continue;
          is_found[i] = true;
          largest[i] = std::max(largest[i], std::ldexp(T(1), exponents[k0 + k]));
          ++found;
        }
    }
  }

  LagProblem<T> m_x;
  LagSet m_lags;
};

}  // namespace nprf
