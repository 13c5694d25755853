// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>

#include "nprf/core/rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/normalize/normalization.hpp"

namespace nprf {

/// Rows x (n,d) and their normalisation factors. For a row of very small norm, the factor radius / norm overflows T. If
/// there are such rows, x is copied, and in the copy they are lifted: multiplied by the power of two `lift`. The
/// gradient with respect to a lifted row must be multiplied by `lift` too.
template <Real T>
class LiftedRows {
 public:
  static constexpr T lift = sizeof(T) == sizeof(float) ? T(0x1p100) : T(0x1p600);

  /// Sets scale (n) to Normalization::row_scale() of rows(). The object refers to x, or to a copy in the team's
  /// workspace. O(n d).
  LiftedRows(const Normalization& normalization, bool softmax_scale, const MatrixView<T>& x,
             Eigen::Ref<Vector<T>> scale, const Team& team)
      : m_rows(x.data(), x.rows(), x.cols(), Eigen::OuterStride<>(x.outerStride())) {
    normalization.row_scale<T>(x, softmax_scale, scale, team);
    const auto is_short = [&](Index i) { return scale[i] == std::numeric_limits<T>::max(); };
    Index count = 0;
    for (Index i = 0; i < x.rows(); ++i) count += is_short(i);
    if (count == 0) return;
    Index* indices = team.workspace().template take<Index>(count);
    m_indices = {indices, static_cast<std::size_t>(count)};
    auto lifted = team.workspace().template matrix<T>(x.rows(), x.cols());
    lifted = x;
    for (Index i = 0; i < x.rows(); ++i)
      if (is_short(i)) nprf::scale(writable_row(lifted, i), lift), *indices++ = i;
    new (&m_rows) Rows(lifted.data(), x.rows(), x.cols(), Eigen::OuterStride<>(x.cols()));
    normalization.row_scale<T>(lifted, softmax_scale, scale, team);
  }

  /// The rows of x, in which the rows of very small norm are lifted.
  MatrixView<T> rows() const { return m_rows; }
  /// The indices of the lifted rows, increasing.
  std::span<const Index> indices() const { return m_indices; }

 private:
  using Rows = Eigen::Map<const Matrix<T>, 0, Eigen::OuterStride<>>;

  Rows m_rows;
  std::span<const Index> m_indices;
};

}  // namespace nprf
