// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/attention/fallback/non_finite.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// x (n,d), or a copy in the team's workspace in which rows that are not finite are zero: scores of such a row would
/// be NaN even where it has the weight 0. O(n d).
template <Real T>
MatrixView<T> finite_rows(const MatrixView<T>& x, const Team& team) {
  Index i = 0;
  while (i < x.rows() && is_finite_row(x.row(i))) ++i;
  if (i == x.rows()) return x;
  auto finite = team.workspace().template matrix<T>(x.rows(), x.cols());
  finite = x;
  for (; i < x.rows(); ++i)
    if (!is_finite_row(x.row(i))) finite.row(i).setZero();
  return finite;
}

}  // namespace nprf
