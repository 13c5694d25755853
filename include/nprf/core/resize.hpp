// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/types.hpp"

namespace nprf {

/// x.resize(rows, cols), after which x is empty where memory runs out. Eigen's own would leave x with memory that it
/// has given back already, and gives back again at its end.
template <class X>
void resize(Eigen::PlainObjectBase<X>& x, Index rows, Index cols = 1) {
  if (x.size() != rows * cols) x.resize(0, x.cols());
  x.resize(rows, cols);
}

/// x = y, likewise.
template <class X, class Y>
void assign(Eigen::PlainObjectBase<X>& x, const Y& y) {
  resize(x, y.rows(), y.cols());
  x = y;
}

}  // namespace nprf
