// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/factors.hpp"

#include "nprf/core/workspace.hpp"
#include "support/catch.hpp"

namespace nprf::test::toeplitz_ones {

namespace {

using toeplitz::Factors;

// Y = (A B^T) U, of integers, so that all sums are exact
struct Loop {
  template <class Y>
  void contract(const Factors<float>& x, Y&& y, const Team&) const {
    y = x.A * (x.B.transpose() * x.U);
  }
};

Matrix<float> integers(Index rows, Index cols, int seed) {
  return Matrix<float>::NullaryExpr(
      rows, cols, [seed](Index i, Index k) { return static_cast<float>((3 * i + 5 * k + seed) % 7); });
}

}  // namespace

TEST_CASE("products with a column of ones give numerators and denominators", "[toeplitz]") {
  for (const Index n_k : {1, 70, 300}) {
    const Index n_q = 200, p = 3;
    const Matrix<float> A = integers(n_q, 4, 1), B = integers(n_k, 4, 2), U = integers(n_k, p, 3);
    const auto x = Factors<float>::without_gaps(A, B, U);
    const Vector<float> expected_sums = A * B.colwise().sum().transpose();
    Workspace workspace;
    const Team team(workspace);

    const Matrix<float> all = toeplitz::with_ones<float>(U, team);
    CHECK(all.leftCols(p) == U);
    CHECK((all.col(p).array() == 1).all());

    Vector<float> sums = Vector<float>::Zero(n_q);
    toeplitz::contract_ones(Loop(), x, team, sums.data());
    CHECK(sums == expected_sums);

    // into columns of a larger matrix
    Matrix<float> wide = Matrix<float>::Constant(n_q, p + 2, -1);
    MatrixRef<float> Y = wide.middleCols(1, p);
    sums.setZero();
    toeplitz::contract_with_ones(Loop(), x, Y, team, sums.data());
    CHECK(sums == expected_sums);
    CHECK(wide.middleCols(1, p) == A * (B.transpose() * U));
    CHECK((wide.col(0).array() == -1).all());
    CHECK((wide.col(p + 1).array() == -1).all());
  }
}

}  // namespace nprf::test::toeplitz_ones
