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

/// Whether no entry of a row is a NaN or an infinity.
template <class Row>
bool is_finite_row(const Row& x) {
  return (x.array() - x.array()).sum() == 0;
}

/// Keys and values that are not finite. A transform would spread a NaN over all rows, and a tile over rows that do not
/// see it: so they are taken out before the product, and after it put into the rows that see them. O(n_k r + (n_q +
/// n_k) d_v), times log n if the attended lags are many runs (weights/lag_set.hpp).
template <Real T>
class NonFinite {
 public:
  /// Takes out the keys among rows of B (n_k,r), which become zero, and their exponents (n_k), which may be null, and
  /// -infinity. Its lists lie in the team's workspace.
  NonFinite(const PreparedPosition<T>& weights, const Placement& keys, MatrixRef<T> B, double* exponents,
            const Team& team)
      : m_weights(weights), m_keys(keys) {
    Workspace& workspace = team.workspace();
    const std::span<const Index> bad = list(
        B.rows(), team, [&](Index j) { return is_finite_row(B.row(j)) && !(exponents && !(exponents[j] < infinity)); });
    if (bad.empty()) return;
    for (const Index j : bad) {
      B.row(j).setZero();
      if (exponents) exponents[j] = -infinity;
    }
    auto sees = workspace.template matrix<double>(weights.queries().count(), 1);
    const auto mark = [&](Index j, auto&& x) { x[0] = std::binary_search(bad.begin(), bad.end(), j) ? 1 : 0; };
    weights.attendance().attending_queries(keys, mark, sees, workspace);
    m_touched = sees.data();
  }

  /// Whether query i sees such a key: then its row is NaN.
  bool touches(Index i) const { return m_touched && m_touched[i] > 0; }

  /// v (n_k,d_v), or a copy in which zeros stand for values that are not finite; sizes (n_k) become the largest of each
  /// row of it.
  MatrixView<T> values(const MatrixView<T>& v, T* sizes, const Team& team) {
    bool* is_finite = team.workspace().template take<bool>(v.rows());
    team.run_tiles(v.rows(), [&](Index j0, Index rows, Workspace&) {
      for (Index j = j0; j < j0 + rows; ++j) {
        const RowSize<T> size = row_size(v.row(j).data(), v.cols());
        sizes[j] = size.largest, is_finite[j] = size.is_finite;
      }
    });
    m_values = list(v.rows(), team, [=](Index j) { return is_finite[j]; });
    if (m_values.empty()) return v;
    auto finite = team.workspace().template matrix<T>(v.rows(), v.cols());
    team.run_tiles(v.rows(), [&](Index j0, Index rows, Workspace&) {
      finite.middleRows(j0, rows) = v.middleRows(j0, rows).unaryExpr([](T x) { return std::isfinite(x) ? x : T(0); });
    });
    return finite;
  }

  /// Entries of y (n_q,d_v) that see such a value become NaN, or its infinity where weights are positive; rows that
  /// such a key touches stay NaN.
  void spread(const MatrixView<T>& v, bool all_positive, MatrixRef<T> y, const Team& team) const {
    if (!m_values.empty())
      team.run((y.cols() + columns - 1) / columns, [&](Index task, Workspace& scratch) {
        const Index p0 = task * columns, cols = std::min(columns, y.cols() - p0);
        for (const T kind : {nan, T(infinity), -T(infinity)}) add(v, all_positive, kind, p0, cols, y, scratch);
      });
  }

 private:
  static constexpr double infinity = std::numeric_limits<double>::infinity();
  static constexpr T nan = std::numeric_limits<T>::quiet_NaN();

  // the rows < n that are not finite
  template <class IsFinite>
  static std::span<const Index> list(Index n, const Team& team, IsFinite&& is_finite) {
    Index* rows = team.workspace().template take<Index>(n);
    Index count = 0;
    for (Index j = 0; j < n; ++j)
      if (!is_finite(j)) rows[count++] = j;
    return {rows, static_cast<std::size_t>(count)};
  }

  // the values of one kind: infinities of a sign, or what makes a NaN
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
    auto sees = scratch.template matrix<double>(y.rows(), cols);
    const auto mark = [&](Index j, auto&& x) {
      for (Index p = 0; p < cols; ++p) x[p] = is_of_kind(v(j, p0 + p)) ? 1 : 0;
    };
    m_weights.attendance().attending_queries(m_keys, mark, sees, scratch);
    for (Index i = 0; i < y.rows(); ++i)
      for (Index p = 0; p < cols; ++p)
        if (sees(i, p) > 0) y(i, p0 + p) += kind;
  }

  static constexpr Index columns = 8;  // at a time

  const PreparedPosition<T>& m_weights;
  const Placement& m_keys;
  const double* m_touched = nullptr;  // (n_q)
  std::span<const Index> m_values;
};

}  // namespace nprf
