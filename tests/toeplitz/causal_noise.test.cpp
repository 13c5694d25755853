// SPDX-License-Identifier: MIT

// How large the noise is, beside errors, is row_noise.test.cpp's, of all engines at once.

#include "nprf/toeplitz/product.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"

namespace nprf::test::toeplitz_causal_noise {

TEMPLATE_TEST_CASE("block_causal: a row's noise is of what came before it", "[toeplitz]", NPRF_TEST_SCALARS) {
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
  const auto noise = [&] {
    Matrix<double> both(2, n);
    const MatrixView<T> a = A, b = B, u = U;
    product.noise({a, b, u, {n}, {n}}, sizes.data(), {&both(0, 0), &both(1, 0)}, team);
    return both;
  };
  const Matrix<double> before = noise();
  B.bottomRows(n - past).setConstant(T(1e18));
  sizes.tail(n - past).setConstant(T(1e30));
  const Matrix<double> after = noise();
  CHECK((before.leftCols(past).array() == after.leftCols(past).array()).all());
  CHECK((before.rightCols(100).array() < after.rightCols(100).array()).all());
}

}  // namespace nprf::test::toeplitz_causal_noise
