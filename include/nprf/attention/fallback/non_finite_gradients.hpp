// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "nprf/attention/weights/prepared_position.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// Rows of G = [dL/dN dL/dD] that are not all finite, as those of queries that are not, or that see a key, a value or a
/// dy that is not. Such entries become zero before the product's gradients, and after those all that they touch becomes
/// NaN: the query itself, the keys that it sees, their values in these columns, and the lags at which it sees them.
/// O((n_q + n_k) d_v log n) at most.
template <Real T>
class NonFiniteGradients {
 public:
  /// Takes such entries out of G (n_q,d_v+1), of whose rows is_finite(i) says whether they have none. Its tables lie in
  /// the team's workspace.
  template <class IsFinite>
  NonFiniteGradients(const PreparedPosition<T>& weights, const Placement& keys, MatrixMap<T> G, IsFinite&& is_finite,
                     const Team& team)
      : m_weights(weights), m_keys(keys), m_cols(G.cols()) {
    Index count = 0;
    for (Index i = 0; i < G.rows(); ++i) count += !is_finite(i);
    if (count == 0) return;
    Index* rows = team.workspace().template take<Index>(count);
    m_lost = team.workspace().template take<bool>(count * m_cols);
    m_rows = {rows, static_cast<std::size_t>(count)};
    count = 0;
    for (Index i = 0; i < G.rows(); ++i) {
      if (is_finite(i)) continue;
      for (Index p = 0; p < m_cols; ++p) {
        bool& is_lost = m_lost[count * m_cols + p] = !std::isfinite(G(i, p));
        if (is_lost) G(i, p) = 0;
      }
      rows[count++] = i;
    }
  }

  /// Into dA (n_q,r), dB (n_k,r), dU (n_k,d_v+1), and db of the lags of PreparedPosition::gradient_lags(), or of none,
  /// and of the border (E,E+2).
  void spread(MatrixMap<T> dA, MatrixMap<T> dB, MatrixMap<T> dU, std::span<double> db_lags, std::span<double> db_border,
              const Team& team) const {
    if (m_rows.empty()) return;
    constexpr T nan = std::numeric_limits<T>::quiet_NaN();
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    for (const Index i : m_rows) dA.row(i).setConstant(nan);
    auto seen = workspace.template matrix<double>(dB.rows(), 1);
    m_weights.attendance().attended_keys(
        m_keys, [&](Index i, auto&& x) { x[0] = place(i) >= 0 ? 1 : 0; }, seen, workspace);
    for (Index j = 0; j < dB.rows(); ++j)
      if (seen(j, 0) > 0) dB.row(j).setConstant(nan);
    constexpr Index columns = 8;  // at a time
    for (Index p0 = 0; p0 + 1 < m_cols; p0 += columns) {
      const Workspace::Scope columns_scope(workspace);
      auto by_column = workspace.template matrix<double>(dU.rows(), std::min(columns, m_cols - 1 - p0));
      const auto mark = [&](Index i, auto&& x) {
        if (const Index at = place(i); at >= 0)
          for (Index p = 0; p < x.size(); ++p) x[p] = m_lost[at * m_cols + p0 + p] ? 1 : 0;
      };
      m_weights.attendance().attended_keys(m_keys, mark, by_column, workspace);
      for (Index j = 0; j < dU.rows(); ++j)
        for (Index p = 0; p < by_column.cols(); ++p)
          if (by_column(j, p) > 0) dU(j, p0 + p) = nan;
    }
    if (!db_lags.empty()) {
      auto hit = workspace.template matrix<double>(static_cast<Index>(db_lags.size()), 1);
      m_weights.attendance().attended_lags(
          m_keys, [&](Index i) { return place(i) >= 0; }, hit, workspace);
      for (Index l = 0; l < hit.rows(); ++l)
        if (hit(l, 0) > 0) db_lags[static_cast<std::size_t>(l)] = static_cast<double>(nan);
    }
    for (const Index i : m_rows)
      for (Index j = 0; j < (i < m_weights.queries().outside ? m_keys.count() : m_keys.outside); ++j)
        if (m_weights.problem().attends(i, m_keys.number(j)))
          db_border[static_cast<std::size_t>(m_weights.problem().border.index(i, m_keys.number(j)))] =
              static_cast<double>(nan);
  }

 private:
  // which of them row i is; -1: none
  Index place(Index i) const {
    const auto at = std::lower_bound(m_rows.begin(), m_rows.end(), i);
    return at != m_rows.end() && *at == i ? at - m_rows.begin() : -1;
  }

  const PreparedPosition<T>& m_weights;
  const Placement& m_keys;
  Index m_cols;
  std::span<const Index> m_rows;
  bool* m_lost = nullptr;  // (rows,d_v+1)  whether an entry of G was not finite
};

}  // namespace nprf
