// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

#include "nprf/attention/scaling/value_scaling.hpp"
#include "nprf/attention/weights/prepared_position.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// Whether all entries of a row are finite.
template <class Row>
bool is_finite_row(const Row& x) {
  return (x.array() - x.array()).sum() == 0;
}

/// Non-finite keys and values. An FFT would propagate a NaN to all rows, and a tile to rows that do not attend to it.
/// So they are replaced by zeros before the product, and propagated afterwards to the rows that attend to them. O(n_k r
/// + (n_q + n_k) d_v), times log n if the attended lags are many runs (weights/lag_set.hpp).
template <Real T>
class NonFinite {
 public:
  /// Sets the non-finite rows of B (n_k,r) to zero, and their log-scales (n_k) to -infinity; these may be null.
  NonFinite(const PreparedPosition<T>& position, const Placement& keys, MatrixRef<T> B, double* key_log_scales,
            const Team& team)
      : m_position(position), m_keys(keys) {
    Workspace& workspace = team.workspace();
    const std::span<const Index> non_finite = indices_unless(B.rows(), team, [&](Index j) {
      return is_finite_row(B.row(j)) && !(key_log_scales && !(key_log_scales[j] < infinity));
    });
    if (non_finite.empty()) return;
    for (const Index j : non_finite) {
      B.row(j).setZero();
      if (key_log_scales) key_log_scales[j] = -infinity;
    }
    auto attends = workspace.template matrix<double>(position.queries().count(), 1);
    const auto mark = [&](Index j, auto&& x) { x[0] = std::ranges::binary_search(non_finite, j) ? 1 : 0; };
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
        const RowMax<T> max = row_max(v.row(j).data(), v.cols());
        maxima[j] = max.largest, is_finite[j] = max.is_finite;
      }
    });
    m_values = indices_unless(v.rows(), team, [=](Index j) { return is_finite[j]; });
    if (m_values.empty()) return v;
    auto finite = team.workspace().template matrix<T>(v.rows(), v.cols());
    team.run_tiles(v.rows(), [&](Index j0, Index rows, Workspace&) {
      finite.middleRows(j0, rows) = v.middleRows(j0, rows).unaryExpr([](T x) { return std::isfinite(x) ? x : T(0); });
    });
    return finite;
  }

  /// An entry of y (n_q,d_v) whose query attends to a non-finite value becomes NaN; or, if the weights are positive,
  /// that infinity, or NaN for infinities of both signs.
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

  // adds `kind` where a query attends to a value of this kind: infinities of one sign, or all values that give NaN
  void add(const MatrixView<T>& v, bool all_positive, T kind, Index p0, Index cols, MatrixRef<T>& y,
           Workspace& scratch) const {
    const auto is_of_kind = [=](T x) {
      return all_positive && std::isinf(x) ? x == kind : std::isnan(kind) && !std::isfinite(x);
    };
    const auto columns_of = [&](Index j) { return v.row(j).segment(p0, cols); };
    if (std::none_of(m_values.begin(), m_values.end(),
                     [&](Index j) { return columns_of(j).unaryExpr(is_of_kind).any(); }))
      return;
    const Workspace::Scope scope(scratch);
    auto attends = scratch.template matrix<double>(y.rows(), cols);
    const auto mark = [&](Index j, auto&& x) {
      for (Index p = 0; p < cols; ++p) x[p] = is_of_kind(v(j, p0 + p)) ? 1 : 0;
    };
    m_position.attendance().attending_queries(m_keys, mark, attends, scratch);
    for (Index i = 0; i < y.rows(); ++i)
      for (Index p = 0; p < cols; ++p)
        if (attends(i, p) > 0) y(i, p0 + p) += kind;
  }

  static constexpr Index columns = 8;  // at a time

  const PreparedPosition<T>& m_position;
  const Placement& m_keys;
  const double* m_attends = nullptr;  // (n_q)  1: to a non-finite key; null: there is none
  std::span<const Index> m_values;    // the keys whose values are not all finite
};

}  // namespace nprf
