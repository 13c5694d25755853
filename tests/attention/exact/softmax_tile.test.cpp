// SPDX-License-Identifier: MIT

#include "nprf/attention/exact/softmax_tile.hpp"

#include <cmath>
#include <limits>

#include "nprf/core/workspace.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/held_biases.hpp"
#include "support/random.hpp"

namespace nprf::test::attention_exact_softmax_tile {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("a softmax tile has the sums of a row relative to its largest exponent", "[attention]") {
  constexpr Index n_q = 40, n_k = 700, d = 7, d_v = 5;  // three runs of keys
  const Matrix<double> q = normal<double>(n_q, d, 1), k = normal<double>(n_k, d, 2), v = normal<double>(n_k, d_v, 3);
  HeldBiases biases{5 * normal<double>(n_q, n_k, 4)};
  for (Index j = 0; j < n_k; ++j) biases.b(3, j) = j < 300 ? -infinity : biases.b(3, j);  // no key in the first run
  biases.b.row(4).setConstant(-infinity);
  biases.b.row(5).array() += 1e4;  // exp(1e4) overflows
  biases.b(6, 650) = 900;          // the largest comes last
  Workspace scratch;
  Matrix<double> N(n_q, d_v);
  Vector<double> D(n_q), largest(n_q);
  SoftmaxTile<double, HeldBiases>(k, v, biases, scratch).contract(0, q, {N, D.data(), largest.data()});
  for (Index i = 0; i < n_q; ++i) {
    Vector<double> exponents = k * q.row(i).transpose() + biases.b.row(i).transpose();
    const double most = exponents.maxCoeff();
    if (i == 4) {
      CHECK(largest[i] == -infinity);
      CHECK((D[i] == 0 && N.row(i).isZero(0)));
      continue;
    }
    CHECK(std::abs(largest[i] - most) <= 32 * epsilon<double> * std::abs(most));
    const Vector<double> weights = (exponents.array() - most).exp();
    // weights have a relative error of eps times their exponents, at most 40 of those that count
    const double tolerance = 64 * epsilon<double> * (i == 5 ? 1e4 : 40);
    CHECK(std::abs(D[i] - weights.sum()) <= tolerance * weights.sum());
    CHECK((N.row(i) - weights.transpose() * v).norm() <= tolerance * weights.sum() * v.cwiseAbs().maxCoeff());
  }
}

TEST_CASE("a softmax tile propagates NaN to its row alone", "[attention]") {
  Matrix<double> q = normal<double>(9, 3, 5);
  const Matrix<double> k = normal<double>(20, 3, 6), v = normal<double>(20, 2, 7);
  q(4, 1) = std::numeric_limits<double>::quiet_NaN();
  const HeldBiases biases{normal<double>(9, 20, 8)};
  Workspace scratch;
  Matrix<double> N(9, 2);
  Vector<double> D(9), largest(9);
  SoftmaxTile<double, HeldBiases>(k, v, biases, scratch).contract(0, q, {N, D.data(), largest.data()});
  for (Index i = 0; i < 9; ++i) CHECK(std::isnan(D[i]) == (i == 4));
}

}  // namespace nprf::test::attention_exact_softmax_tile
