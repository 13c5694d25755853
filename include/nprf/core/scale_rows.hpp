// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// xs_i = scale_i x_i for the rows of x (n,d), into the caller's xs (n,d), by a team. scale (n) must have one factor
/// for each row. O(n d).
template <Real T>
void scale_rows(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> xs, const Team& team) {
  team.run_tiles(x.rows(), [&](Index i0, Index rows, Workspace&) {
    for (Index i = i0; i < i0 + rows; ++i) set_scaled(writable_row(xs, i), scale.data()[i], row_of(x, i));
  });
}

}  // namespace nprf
