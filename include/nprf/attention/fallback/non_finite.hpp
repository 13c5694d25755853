// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

#include "nprf/attention/scaling/value_scaling.hpp"
#include "nprf/attention/weights/prepared_position.hpp"
#include "nprf/attention/weights/row_biases.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// Treats non-finite keys and values. An FFT would propagate a NaN to all rows, and a tile to rows that do not attend
/// to it. So non-finite keys and values are replaced by zeros before the product, and propagated afterwards to the rows
/// that attend to them. O(n_k r + (n_q + n_k) d_v), times log n if the attended lags are many runs (LagSet).
template <Real T>
class NonFinite {
 public:
  /// Sets the non-finite rows of B (n_k,r) to zero, and the log-scales of these keys to -infinity. `key_log_scales`
  /// (n_k) may be null.
  NonFinite(const PreparedPosition<T>& position, const Placement& keys, MatrixRef<T> B, double* key_log_scales,
            const Team& team)
      : m_position(position), m_keys(keys) {
    Workspace& workspace = team.workspace();
    const std::span<const Index> non_finite = indices_unless(B.rows(), team, [&](Index j) {
      return is_finite(row_of(B, j)) && !(key_log_scales && !(key_log_scales[j] < infinity));
    });
    if (non_finite.empty()) return;
    for (const Index j : non_finite) {
      std::ranges::fill(writable_row(B, j), T(0));
      if (key_log_scales) key_log_scales[j] = -infinity;
    }
    auto attends = workspace.template matrix<double>(position.queries().count(), 1);
    const auto mark = [&](Index j, double* x) { x[0] = std::ranges::binary_search(non_finite, j) ? 1 : 0; };
    position.attendance().attending_queries(keys, mark, attends, workspace);
    m_attends = attends.data();
  }

  /// Whether query i attends to a non-finite key, so that its row is NaN.
  bool attends_to_non_finite_key(Index i) const { return m_attends && m_attends[i] > 0; }

  /// v (n_k,d_v), or a copy in which non-finite values are replaced by zeros. Sets maxima (n_k) to the largest
  /// magnitude of each row of the result.
  MatrixView<T> finite_values(const MatrixView<T>& v, T* maxima, const Team& team) {
    bool* is_finite = team.workspace().template take<bool>(v.rows());
    team.run_tiles(v.rows(), [&](Index j0, Index rows, Workspace&) {
      for (Index j = j0; j < j0 + rows; ++j) {
        const RowMax<T> max = row_max(row_of(v, j).data(), v.cols());
        maxima[j] = max.largest, is_finite[j] = max.is_finite;
      }
    });
    m_values = indices_unless(v.rows(), team, [=](Index j) { return is_finite[j]; });
    if (m_values.empty()) return v;
    auto finite = team.workspace().template matrix<T>(v.rows(), v.cols());
    team.run_tiles(v.rows(), [&](Index j0, Index rows, Workspace&) {
      for (Index j = j0; j < j0 + rows; ++j)
        std::ranges::transform(row_of(v, j), writable_row(finite, j).begin(),
                               [](T x) { return std::isfinite(x) ? x : T(0); });
    });
    return finite;
  }

  /// An entry of y (n_q,d_v) becomes NaN if its query attends to non-finite values in the same column of v. But if the
  /// features are positive and all of these values are the same infinity, it becomes this infinity.
  void propagate(const MatrixView<T>& v, bool all_positive, MatrixRef<T> y, const Team& team) const {
    if (!m_values.empty())
      team.run((y.cols() + columns - 1) / columns, [&](Index task, Workspace& scratch) {
        const Index p0 = task * columns, cols = std::min(columns, y.cols() - p0);
        for (const T kind : {nan, T(infinity), -T(infinity)}) add(v, all_positive, kind, p0, cols, y, scratch);
      });
  }

 private:
  static constexpr double infinity = std::numeric_limits<double>::infinity();
  static constexpr T nan = std::numeric_limits<T>::quiet_NaN();

  // the rows < n for which is_finite(j) does not hold
  template <class IsFinite>
  static std::span<const Index> indices_unless(Index n, const Team& team, IsFinite&& is_finite) {
    Index* rows = team.workspace().template take<Index>(n);
    Index count = 0;
    for (Index j = 0; j < n; ++j)
      if (!is_finite(j)) rows[count++] = j;
    return {rows, static_cast<std::size_t>(count)};
  }

  // adds `kind` to the entries of y whose query attends to a value of this kind: infinities of one sign if `kind` is
  // that infinity, or all values that give NaN if it is NaN
  void add(const MatrixView<T>& v, bool all_positive, T kind, Index p0, Index cols, MatrixRef<T>& y,
           Workspace& scratch) const {
    const auto is_of_kind = [=](T x) {
      return all_positive && std::isinf(x) ? x == kind : std::isnan(kind) && !std::isfinite(x);
    };
    const auto has_kind = [&](Index j) {
      const T* x = row_of(v, j).data() + p0;
      return std::any_of(x, x + cols, is_of_kind);
    };
    if (std::ranges::none_of(m_values, has_kind)) return;
    const Workspace::Scope scope(scratch);
    auto attends = scratch.template matrix<double>(y.rows(), cols);
    const auto mark = [&](Index j, double* x) {
      for (Index p = 0; p < cols; ++p) x[p] = is_of_kind(v(j, p0 + p)) ? 1 : 0;
    };
    m_position.attendance().attending_queries(m_keys, mark, attends, scratch);
    for (Index i = 0; i < y.rows(); ++i)
      for (Index p = 0; p < cols; ++p)
        if (attends(i, p) > 0) y(i, p0 + p) += kind;
  }

  static constexpr Index columns = 8;  // of y at a time

  const PreparedPosition<T>& m_position;
  const Placement& m_keys;
  const double* m_attends = nullptr;  // (n_q)  1: the query attends to a non-finite key; null: there is no such key
  std::span<const Index> m_values;    // the keys whose values are not all finite
};

/// Non-finite rows of G = [dL/dN dL/dD]: those of queries that are non-finite themselves, have a non-finite dy, or
/// attend to a non-finite key or value. Their non-finite entries are replaced by zeros before the gradients of the
/// product, and propagated afterwards: the gradients of the query, of the keys that it attends to, of the lags to these
/// keys, and of the keys' values in the non-finite columns become NaN. O((n_q + n_k) d_v log n) at most.
template <Real T>
class NonFiniteGradients {
 public:
  /// Sets the non-finite entries of G (n_q,d_v+1) to zero. is_finite(i) is whether row i has no such entry.
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

  /// Sets the affected entries of dq (n_q,d+rank), dk (n_k,d), dU (n_k,d_v+1) and db to NaN.
  void propagate(MatrixRef<T> dq, MatrixRef<T> dk, MatrixMap<T> dU, const BiasGradient& db, const Team& team) const {
    if (m_rows.empty()) return;
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    for (const Index i : m_rows) std::ranges::fill(writable_row(dq, i), nan);
    auto attended = workspace.template matrix<double>(dk.rows(), 1);
    m_position.attendance().attended_keys(
        m_keys, [&](Index i, double* x) { x[0] = index_of(i) >= 0 ? 1 : 0; }, attended, workspace);
    for (Index j = 0; j < dk.rows(); ++j)
      if (attended(j, 0) > 0) std::ranges::fill(writable_row(dk, j), nan);
    for (Index p0 = 0; p0 + 1 < m_cols; p0 += columns) propagate_columns(p0, dU, workspace);
    if (!db.lags.empty() || !db.lag_vectors.empty()) propagate_to_lags(db, workspace);
    propagate_to_border(db.border);
  }

 private:
  static constexpr T nan = std::numeric_limits<T>::quiet_NaN();
  static constexpr Index columns = 8;  // of dU at a time

  void propagate_columns(Index p0, MatrixMap<T>& dU, Workspace& workspace) const {
    const Workspace::Scope scope(workspace);
    auto attended = workspace.template matrix<double>(dU.rows(), std::min(columns, m_cols - 1 - p0));
    const auto mark = [&](Index i, double* x) {
      if (const Index at = index_of(i); at >= 0)
        for (Index p = 0; p < attended.cols(); ++p) x[p] = m_is_non_finite[at * m_cols + p0 + p] ? 1 : 0;
    };
    m_position.attendance().attended_keys(m_keys, mark, attended, workspace);
    for (Index j = 0; j < dU.rows(); ++j)
      for (Index p = 0; p < attended.cols(); ++p)
        if (attended(j, p) > 0) dU(j, p0 + p) = nan;
  }

  void propagate_to_lags(const BiasGradient& db, Workspace& workspace) const {
    const LagRange lags = m_position.problem().lags, of_vectors = m_position.lags_of_vectors();
    auto attended = workspace.template matrix<double>(lags.size(), 1);
    m_position.attendance().attended_lags(
        m_keys, [&](Index i) { return index_of(i) >= 0; }, attended, workspace);
    for (Index lag = lags.first; lag <= lags.last; ++lag) {
      const auto at = static_cast<std::size_t>(lag - lags.first);
      if (attended(lag - lags.first, 0) == 0) continue;
      if (!db.lags.empty()) db.lags[at] = static_cast<double>(nan);
      if (lag < of_vectors.first || lag > of_vectors.last) continue;
      const auto stride = static_cast<std::size_t>(of_vectors.size());
      for (auto e = static_cast<std::size_t>(lag - of_vectors.first); e < db.lag_vectors.size(); e += stride)
        db.lag_vectors[e] = static_cast<double>(nan);
    }
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
