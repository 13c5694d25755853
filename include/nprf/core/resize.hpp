// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/types.hpp"

namespace nprf {

/// x.resize(rows, cols), but x is empty if the allocation throws. Eigen's own resize would leave x with a pointer to
/// freed memory, which the destructor of x frees a second time.
template <class X>
void resize(Eigen::PlainObjectBase<X>& x, Index rows, Index cols = 1) {
  if (x.size() != rows * cols) x.resize(0, x.cols());
  x.resize(rows, cols);
}

/// x = y, but x is empty if the allocation throws.
template <class X, class Y>
void assign(Eigen::PlainObjectBase<X>& x, const Y& y) {
  resize(x, y.rows(), y.cols());
  x = y;
}

}  // namespace nprf
