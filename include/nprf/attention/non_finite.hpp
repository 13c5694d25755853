// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

#include "nprf/attention/head_weights.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// Whether no entry of a row is a NaN or an infinity.
template <class Row>
bool is_finite_row(const Row& x) {
  return (x.array() - x.array()).sum() == 0;
}

/// Throws InvalidArgument if one of x's first rows that the mask leaves holds a NaN or an infinity; an empty mask
/// leaves all.
template <Real T>
void require_finite(const char* name, const MatrixView<T>& x, std::span<const bool> mask, Index rows) {
  for (Index i = 0; i < rows; ++i) {
    if (!mask.empty() && !mask[static_cast<std::size_t>(i)]) continue;
    if (is_finite_row(x.row(i))) continue;
    for (Index c = 0; c < x.cols(); ++c)
      require(std::isfinite(x(i, c)), name, ": expected finite numbers (check_finite), got ", x(i, c), " in row ", i,
              ", column ", c);
  }
}

/// Keys and values that are not finite. A transform would spread a NaN over all rows, and a tile over rows that do not
/// see it: so they are taken out before the product, and after it put into the rows that see them. O(n_k (r + d_v)),
/// and O(n_q) for each such key.
template <Real T>
class NonFinite {
 public:
  /// Takes out the keys among rows of B (n_k,r), which become zero, and their exponents (n_k), which may be null, and
  /// -infinity. Its lists lie in the team's workspace.
  NonFinite(MatrixRef<T> B, double* exponents, const Team& team)
      : m_keys(list(B.rows(), team,
                    [&](Index j) { return is_finite_row(B.row(j)) && !(exponents && !(exponents[j] < infinity)); })) {
    for (const Index j : m_keys) {
      B.row(j).setZero();
      if (exponents) exponents[j] = -infinity;
    }
  }

  /// v (n_k,d_v), or a copy in which zeros stand for values that are not finite.
  MatrixView<T> values(const MatrixView<T>& v, const Team& team) {
    m_values = list(v.rows(), team, [&](Index j) { return is_finite_row(v.row(j)); });
    if (m_values.empty()) return v;
    auto finite = team.workspace().template matrix<T>(v.rows(), v.cols());
    team.run_tiles(v.rows(), [&](Index j0, Index rows, Workspace&) {
      finite.middleRows(j0, rows) = v.middleRows(j0, rows).unaryExpr([](T x) { return std::isfinite(x) ? x : T(0); });
    });
    return finite;
  }

  /// Rows of y (n_q,d_v) that see such a key become NaN, and so do entries that see such a value, or its infinity where
  /// weights are positive.
  void spread(const HeadWeights<T>& weights, const Placement& keys, const MatrixView<T>& v, bool all_positive,
              MatrixRef<T> y, const Team& team) const {
    if (m_keys.empty() && m_values.empty()) return;
    team.run_tiles(y.rows(), [&](Index i0, Index rows, Workspace&) {
      for (Index i = i0; i < i0 + rows; ++i) {
        const auto sees = [&](Index j) { return weights.bias(i, keys.number(j)) > -infinity; };
        for (const Index j : m_values)
          if (sees(j))
            for (Index p = 0; p < y.cols(); ++p)
              if (!std::isfinite(v(j, p))) y(i, p) += all_positive ? v(j, p) : nan;
        if (std::any_of(m_keys.begin(), m_keys.end(), sees)) y.row(i).setConstant(nan);
      }
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

  std::span<const Index> m_keys, m_values;
};

}  // namespace nprf
