// SPDX-License-Identifier: MIT
#include "nprf/feature_map/eigenvectors.hpp"

#include <Eigen/Eigenvalues>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::feature_map_eigenvectors {

namespace {

// the moments of n random rows of d scalars: of rank n, if n < d
Matrix<double> moments(Index n, Index d, std::uint64_t seed) {
  const Matrix<double> x = normal<double>(n, d, seed);
  return x.transpose() * x / static_cast<double>(n);
}

void check(const Matrix<double>& s) {
  const Index d = s.rows();
  const double size = static_cast<double>(d), unit = std::max(s.cwiseAbs().maxCoeff(), 1e-300);
  const auto [values, vectors] = eigenvectors(s);
  INFO("d " << d << ", unit " << unit);
  REQUIRE(vectors.allFinite());
  const Matrix<double> scaled = s / unit, in_units = values / unit;
  const double tolerance = 4 * size * epsilon<double> * std::max(scaled.norm(), 1.0);
  const Matrix<double> residual = vectors * scaled - in_units.col(0).asDiagonal() * vectors;
  CHECK(residual.rowwise().norm().maxCoeff() <= tolerance);
  CHECK((vectors * vectors.transpose() - Matrix<double>::Identity(d, d)).norm() <= 8 * size * epsilon<double>);
  for (Index l = 0; l < d; ++l) CHECK(values[l] >= (l > 0 ? values[l - 1] : 0));
  const Eigen::SelfAdjointEigenSolver<Matrix<double>> expected(scaled, Eigen::EigenvaluesOnly);
  CHECK((in_units - expected.eigenvalues()).cwiseAbs().maxCoeff() <= tolerance);
}

}  // namespace

TEST_CASE("eigenvalues and eigenvectors of moments of full rank", "[feature_map]") {
  for (const Index d : {1, 2, 3, 8, 33, 64}) check(moments(2 * d + 1, d, static_cast<std::uint64_t>(d)));
}

TEST_CASE("an eigenvalue of 0 may be repeated", "[feature_map]") {
  for (const Index n : {1, 3, 31}) check(moments(n, 32, static_cast<std::uint64_t>(n)));
  check(Matrix<double>::Zero(4, 4));
  check(Matrix<double>::Ones(7, 7));
}

TEST_CASE("an eigenvalue other than 0 may be repeated", "[feature_map]") {
  check(Matrix<double>::Identity(5, 5));
  check(Matrix<double>::Ones(6, 6) + 3 * Matrix<double>::Identity(6, 6));
  check(Vector<double>{{2, 1, 2, 0, 1}}.asDiagonal());
}

TEST_CASE("eigenvalues may be tiny, huge, or of very different magnitudes", "[feature_map]") {
  const Matrix<double> s = moments(20, 9, 5);
  for (const double unit : {1e-300, 1e-150, 1e150, 1e300}) check(unit * s);
  const Vector<double> scales{{1e-9, 1, 1e-3, 1e5, 1e-7, 1, 1e2, 1e-2, 1e-160}};
  check(scales.asDiagonal() * s * scales.asDiagonal());
}

TEST_CASE("eigenvectors of a diagonal matrix are the axes in the order of its entries", "[feature_map]") {
  const auto [values, vectors] = eigenvectors<double>(Vector<double>{{3, 1, 2}}.asDiagonal());
  CHECK((values - Vector<double>{{1, 2, 3}}).norm() <= 16 * epsilon<double>);
  CHECK((vectors.cwiseAbs() - Matrix<double>{{0, 1, 0}, {0, 0, 1}, {1, 0, 0}}).norm() <= 16 * epsilon<double>);
}

}  // namespace nprf::test::feature_map_eigenvectors
