// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/block_causal/error_bound.hpp"

#include <algorithm>
#include <cmath>

#include "nprf/toeplitz/product.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"

// how large it is beside errors is fft/error_bound.test.cpp's, of all engines at once
namespace nprf::test::toeplitz_block_causal_error_bound {

TEMPLATE_TEST_CASE("block_causal: the error bound of a row depends on earlier keys only", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 700, past = 400;
  Workspace workspace;
  const Team team(workspace);
  LagWeights<T> c = random_weights<T>(n, n, 4);
  c.values.tail(n - 1).setZero();
  const Matrix<T> A = normal<T>(n, 3, 1), U = normal<T>(n, 2, 3);
  Matrix<T> B = normal<T>(n, 3, 2);
  Vector<T> sizes = U.cwiseAbs().rowwise().maxCoeff();
  const toeplitz::Product<T> product(Engine::block_causal, c.view(), {n, n, 3, 2}, team);
  const auto bounds = [&] {
    Matrix<double> both(2, n);
    const MatrixView<T> a = A, b = B, u = U;
    product.row_error_bounds({a, b, u, Slots{n}, Slots{n}}, sizes.data(), {&both(0, 0), &both(1, 0)}, team);
    return both;
  };
  const Matrix<double> before = bounds();
  B.bottomRows(n - past).setConstant(T(1e18));
  sizes.tail(n - past).setConstant(T(1e30));
  const Matrix<double> after = bounds();
  CHECK((before.leftCols(past).array() == after.leftCols(past).array()).all());
  CHECK((before.rightCols(100).array() < after.rightCols(100).array()).all());
}

TEST_CASE("block_causal: the error bound includes key log-scales relative to the largest that a row attends to",
          "[toeplitz]") {
  const Index n = 1300;
  Workspace workspace;
  const Team team(workspace);
  LagWeights<double> c = random_weights<double>(n, n, 4);
  c.values.tail(n - 1).setZero();
  const Matrix<double> A = normal<double>(n, 3, 1), B = normal<double>(n, 3, 2), U = normal<double>(n, 2, 3);
  const Vector<double> sizes = U.cwiseAbs().rowwise().maxCoeff();
  const toeplitz::Product<double> product(Engine::block_causal, c.view(), {n, n, 3, 2}, team);
  const auto bounds = [&](const Matrix<double>& keys, const double* exponents) {
    Matrix<double> both(2, n);
    const MatrixView<double> a = A, b = keys, u = U;
    product.row_error_bounds({a, b, u, Slots{n}, Slots{n}, exponents}, sizes.data(), {&both(0, 0), &both(1, 0)}, team);
    return both;
  };
  Vector<double> rising = Vector<double>::LinSpaced(n, -15, 15), walk = normal_vector<double>(n, 9);
  for (Index j = 1; j < n; ++j) walk[j] += walk[j - 1];
  for (const Vector<double>& e : {rising, Vector<double>(rising.reverse()), walk}) {
    const Matrix<double> scaled = e.array().exp().matrix().asDiagonal() * B;
    Matrix<double> expected = bounds(scaled, nullptr);
    double largest = e[0];
    for (Index i = 0; i < n; ++i) {
      largest = std::max(largest, e[i]);
      expected.col(i) *= std::exp(-largest);
    }
    CHECK(worst_ratio(bounds(B, e.data()), expected, 1e-9 * expected) <= 1);
  }
}

}  // namespace nprf::test::toeplitz_block_causal_error_bound
