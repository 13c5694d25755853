// SPDX-License-Identifier: MIT
#include "nprf/feature_map/quadratic_row.hpp"

#include <cmath>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::feature_map_quadratic_row {

TEST_CASE("a quadratic row is 1, the coordinates, and their products in order", "[feature_map]") {
  QuadraticTerms<double> terms{3, 2, Vector<double>::Zero(2), {}};
  terms.mean_square << 0.5, 2;
  CHECK(terms.output_dim() == 7);
  const Vector<double> z = (Vector<double>(4) << 3, -2, 0.25, 8).finished();
  Vector<double> phi(7);
  CHECK(QuadraticRow<double>(terms).features(z.data(), 4, phi.data()) == 0);
  const double root = std::sqrt(2.0);
  const Vector<double> expected =
      (Vector<double>(7) << 1, 3, -2, 0.25, (9 - 0.5) / root, -6, (4 - 2) / root).finished();
  CHECK((phi - expected).cwiseAbs().maxCoeff() <= 4 * epsilon<double> * 9);
}

TEST_CASE("the logarithm of a quadratic row's factor is half of the weighted square of all coordinates",
          "[feature_map]") {
  QuadraticTerms<double> terms{1, 0, {}, (Vector<double>(3) << 0.5, -1, 2).finished()};
  const Vector<double> z = (Vector<double>(3) << 2, 3, 0.5).finished();
  Vector<double> phi(2);
  CHECK(QuadraticRow<double>(terms).features(z.data(), 3, phi.data()) == (2.0 - 9.0 + 0.5) / 2);
}

TEST_CASE("without first order a quadratic row is a constant", "[feature_map]") {
  const QuadraticTerms<float> terms{0, 0, {}, {}};
  CHECK(terms.output_dim() == 1);
  const float z = 5;
  float phi = 0, dz = 7;
  const QuadraticRow<float> row(terms);
  CHECK(row.features(&z, 1, &phi) == 0);
  CHECK(phi == 1);
  const float dphi = 3;
  row.backward(&z, 1, &dphi, 3, &dz);
  CHECK(dz == 0);
}

}  // namespace nprf::test::feature_map_quadratic_row
