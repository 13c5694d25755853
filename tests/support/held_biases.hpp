// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/types.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf::test {

/// Any biases (RowBiases), with all keys in one range.
struct HeldBiases {
  toeplitz::RowRange keys(Index, Index) const { return {0, b.cols()}; }
  void set(Index i, Index j0, Index count, double* to) const {
    for (Index j = 0; j < count; ++j) to[j] = b(i, j0 + j);
  }

  Matrix<double> b;  // (n_q,n_k)
};

}  // namespace nprf::test
