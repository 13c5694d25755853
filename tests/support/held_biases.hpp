// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/types.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf::test {

/// A ScoreBiases (attention/exact/softmax_tile.hpp) of any biases, with all keys in one range.
struct HeldBiases {
  Matrix<double> b;  // (n_q,n_k)

  toeplitz::RowRange keys(Index, Index) const { return {0, b.cols()}; }
  void set(Index i, Index j0, Index count, double* to) const {
    for (Index j = 0; j < count; ++j) to[j] = b(i, j0 + j);
  }
};

}  // namespace nprf::test
