// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include "nprf/attention/exact/softmax_tile.hpp"
#include "nprf/core/types.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf::test {

/// Any biases, with all keys in one range.
struct HeldBiases final : ScoreBiases<double> {
  explicit HeldBiases(Matrix<double> biases) : b(std::move(biases)) {}

  toeplitz::RowRange keys(Index, Index) const override { return {0, b.cols()}; }
  void set(Index i, Index j0, Index count, double* to) const override {
    for (Index j = 0; j < count; ++j) to[j] = b(i, j0 + j);
  }
  double reference(Index) const override { return 0; }

  Matrix<double> b;  // (n_q,n_k)
};

}  // namespace nprf::test
