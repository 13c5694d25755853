// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/smooth/polynomials.hpp"

#include <cmath>
#include <vector>

#include "nprf/core/types.hpp"
#include "support/catch.hpp"

namespace nprf::test::toeplitz_smooth_polynomials {

using toeplitz::ChunkPolynomials;

namespace {

constexpr Index terms = 8;

Matrix<double> values(Index points) {  // (points,terms)
  Matrix<double> P(points, terms);
  for (Index s = 0; s < points; ++s) ChunkPolynomials{static_cast<double>(points)}.values(s, terms, &P(s, 0));
  return P;
}

}  // namespace

TEST_CASE("the polynomials of a chunk are orthonormal, and the first k of them span the powers below k", "[toeplitz]") {
  for (const Index points : {8, 64, 512}) {
    const Matrix<double> P = values(points);
    CHECK((P.transpose() * P - Matrix<double>::Identity(terms, terms)).cwiseAbs().maxCoeff() < 1e-13);
    Vector<double> power = Vector<double>::Ones(points);
    for (Index k = 0; k < terms; ++k) {
      const Matrix<double> first = P.leftCols(k + 1);
      CHECK((first * (first.transpose() * power) - power).norm() < 1e-12 * power.norm());
      if (k > 0)
        CHECK((first.leftCols(k) * (first.leftCols(k).transpose() * power) - power).norm() > 1e-6 * power.norm());
      for (Index s = 0; s < points; ++s) power[s] *= static_cast<double>(s) / static_cast<double>(points);
    }
  }
}

TEST_CASE("the polynomials of a chunk are sums of those of its halves", "[toeplitz]") {
  for (const Index points : {8, 64, 4096}) {
    const Matrix<double> P = values(points), whole = values(2 * points);
    Matrix<double> W(terms, terms);
    for (const bool second : {false, true}) {
      ChunkPolynomials{static_cast<double>(points)}.halves(second, terms, W.data());
      CHECK((P * W - whole.middleRows(second ? points : 0, points)).cwiseAbs().maxCoeff() < 1e-13);
      CHECK(W.isUpperTriangular(0));
    }
  }
}

}  // namespace nprf::test::toeplitz_smooth_polynomials
