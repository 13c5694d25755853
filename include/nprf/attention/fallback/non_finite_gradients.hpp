// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "nprf/attention/weights/pair_bias.hpp"
#include "nprf/attention/weights/prepared_position.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// Non-finite rows of G = [dL/dN dL/dD]: those of queries that are non-finite themselves, have a non-finite dy, or
/// attend to a non-finite key or value. Their non-finite entries are replaced by zeros before the gradients of the
/// product, and propagated afterwards: the gradients of the query, of the keys that it attends to, of the lags to these
/// keys, and of the keys' values in the non-finite columns become NaN. O((n_q + n_k) d_v log n) at most.
template <Real T>
class NonFiniteGradients {
 public:
  /// Sets the non-finite entries of G (n_q,d_v+1) to zero. is_finite(i) is whether row i has none.
  template <class IsFinite>
  NonFiniteGradients(const PreparedPosition<T>& position, const Placement& keys, MatrixMap<T> G, IsFinite&& is_finite,
                     const Team& team)
      : m_position(position), m_keys(keys), m_cols(G.cols()) {
    Index count = 0;
    for (Index i = 0; i < G.rows(); ++i) count += !is_finite(i);
    if (count == 0) return;
    Index* rows = team.workspace().template take<Index>(count);
    m_is_non_finite = team.workspace().template take<bool>(count * m_cols);
    m_rows = {rows, static_cast<std::size_t>(count)};
    count = 0;
    for (Index i = 0; i < G.rows(); ++i) {
      if (is_finite(i)) continue;
      for (Index p = 0; p < m_cols; ++p) {
        bool& is_non_finite = m_is_non_finite[count * m_cols + p] = !std::isfinite(G(i, p));
        if (is_non_finite) G(i, p) = 0;
      }
      rows[count++] = i;
    }
  }

  /// Sets the affected entries of dq (n_q,d), dk (n_k,d), dU (n_k,d_v+1) and db to NaN.
  void propagate(MatrixRef<T> dq, MatrixRef<T> dk, MatrixMap<T> dU, const BiasGradient& db, const Team& team) const {
    if (m_rows.empty()) return;
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    for (const Index i : m_rows) dq.row(i).setConstant(nan);
    auto attended = workspace.template matrix<double>(dk.rows(), 1);
    m_position.attendance().attended_keys(
        m_keys, [&](Index i, auto&& x) { x[0] = index_of(i) >= 0 ? 1 : 0; }, attended, workspace);
    for (Index j = 0; j < dk.rows(); ++j)
      if (attended(j, 0) > 0) dk.row(j).setConstant(nan);
    for (Index p0 = 0; p0 + 1 < m_cols; p0 += columns) propagate_columns(p0, dU, workspace);
    if (!db.lags.empty()) propagate_to_lags(db.lags, workspace);
    propagate_to_border(db.border);
  }

 private:
  static constexpr T nan = std::numeric_limits<T>::quiet_NaN();
  static constexpr Index columns = 8;  // of dU at a time

  void propagate_columns(Index p0, MatrixMap<T>& dU, Workspace& workspace) const {
    const Workspace::Scope scope(workspace);
    auto attended = workspace.template matrix<double>(dU.rows(), std::min(columns, m_cols - 1 - p0));
    const auto mark = [&](Index i, auto&& x) {
      if (const Index at = index_of(i); at >= 0)
        for (Index p = 0; p < x.size(); ++p) x[p] = m_is_non_finite[at * m_cols + p0 + p] ? 1 : 0;
    };
    m_position.attendance().attended_keys(m_keys, mark, attended, workspace);
    for (Index j = 0; j < dU.rows(); ++j)
      for (Index p = 0; p < attended.cols(); ++p)
        if (attended(j, p) > 0) dU(j, p0 + p) = nan;
  }

  void propagate_to_lags(std::span<double> db, Workspace& workspace) const {
    auto attended = workspace.template matrix<double>(static_cast<Index>(db.size()), 1);
    m_position.attendance().attended_lags(
        m_keys, [&](Index i) { return index_of(i) >= 0; }, attended, workspace);
    for (Index l = 0; l < attended.rows(); ++l)
      if (attended(l, 0) > 0) db[static_cast<std::size_t>(l)] = static_cast<double>(nan);
  }

  void propagate_to_border(std::span<double> db) const {
    const LagProblem<T>& problem = m_position.problem();
    for (const Index i : m_rows)
      for (Index j = 0; j < (i < m_position.queries().outside ? m_keys.count() : m_keys.outside); ++j)
        if (problem.attends(i, m_keys.token_index(j)))
          db[static_cast<std::size_t>(problem.border.index(i, m_keys.token_index(j)))] = static_cast<double>(nan);
  }

  // the index of query i in m_rows; -1: its row is finite
  Index index_of(Index i) const {
    const auto at = std::lower_bound(m_rows.begin(), m_rows.end(), i);
    return at != m_rows.end() && *at == i ? at - m_rows.begin() : -1;
  }

  const PreparedPosition<T>& m_position;
  const Placement& m_keys;
  Index m_cols;
  std::span<const Index> m_rows;
  bool* m_is_non_finite = nullptr;  // (rows,d_v+1)  which entries of G were non-finite
};

}  // namespace nprf
