// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// xs_i = scale_i x_i for the rows of x (n,d), into the caller's xs (n,d), by a team. scale (n) is not empty unless x
/// is. O(n d).
template <Real T>
void scale_rows(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> xs, const Team& team) {
  team.run_tiles(x.rows(), [&](Index i0, Index rows, Workspace&) {
    xs.middleRows(i0, rows) =
        Eigen::Map<const Vector<T>>(scale.data() + i0, rows).asDiagonal() * x.middleRows(i0, rows);  // (rows,d)
  });
}

/// row *= 2^exponent (d), whatever the exponent, in steps of one sign: between them nothing overflows or loses digits
/// that the last does not. O(d) a step, of which there is more than one only where 2^exponent is no number of T.
template <Real T, class Row>
void scale_by_power_of_two(int exponent, Row&& row) {
  constexpr int most = std::numeric_limits<T>::max_exponent - 2;
  for (int step; (step = std::clamp(exponent, -most, most)) != 0; exponent -= step) row *= std::ldexp(T(1), step);
}

}  // namespace nprf
