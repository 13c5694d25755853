// SPDX-License-Identifier: MIT
#include "nprf/feature_map/balance.hpp"

#include <cmath>
#include <limits>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::feature_map_balance {

namespace {

Matrix<double> correlated(Index n, Index d, std::uint64_t seed) {
  const Matrix<double> mix = normal<double>(d, d, seed), mean = normal<double>(1, d, seed + 1);
  return (normal<double>(n, d, seed + 2) * mix).rowwise() + mean.row(0);
}

Matrix<double> covariance(const Matrix<double>& x) {
  const Matrix<double> centred = x.rowwise() - x.colwise().mean();
  return centred.transpose() * centred / static_cast<double>(x.rows());
}

}  // namespace

TEST_CASE("balanced queries and keys have the same diagonal covariance, the largest variance first", "[feature_map]") {
  for (const Index d : {1, 2, 5}) {
    const Index n = 200;
    const Matrix<double> q = correlated(n, d, 1), k = correlated(n + 50, d, 11);
    const auto [constants, variances] = balance<double>(q, k, 1e-9);
    const Matrix<double> z_q = (q.rowwise() - constants.query_mean.transpose()) * constants.query_axes.transpose(),
                         z_k = (k.rowwise() - constants.key_mean.transpose()) * constants.key_axes.transpose();
    const Matrix<double> expected = variances.asDiagonal();
    // the shrinkage changes the covariances by 1e-9 of their mean variance, and the axes by the condition times that
    const double tolerance = 1e-6 * variances[0];
    INFO("d " << d);
    CHECK((covariance(z_q) - expected).cwiseAbs().maxCoeff() <= tolerance);
    CHECK((covariance(z_k) - expected).cwiseAbs().maxCoeff() <= tolerance);
    CHECK(z_q.colwise().mean().cwiseAbs().maxCoeff() <= tolerance);
    CHECK(z_k.colwise().mean().cwiseAbs().maxCoeff() <= tolerance);
    for (Index l = 0; l + 1 < d; ++l) CHECK(variances[l] >= variances[l + 1]);
    const Matrix<double> one = constants.query_axes.transpose() * constants.key_axes;
    CHECK((one - Matrix<double>::Identity(d, d)).cwiseAbs().maxCoeff() <= 1e-10);
  }
}

TEMPLATE_TEST_CASE("balance works with fewer tokens than channels, and with equal tokens", "[feature_map]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Matrix<T> few = normal<T>(3, 8, 5), equal = Matrix<T>::Constant(4, 8, T(0.5));
  for (const Matrix<T>& q : {few, equal})
    for (const Matrix<T>& k : {few, equal}) {
      const auto [constants, variances] = balance<T>(q, k);
      CHECK(constants.query_axes.allFinite());
      CHECK(constants.key_axes.allFinite());
      const Matrix<double> one =
          constants.query_axes.template cast<double>().transpose() * constants.key_axes.template cast<double>();
      // rounded to T, of axes whose lengths differ by the fourth root of 1 / shrinkage
      CHECK((one - Matrix<double>::Identity(8, 8)).cwiseAbs().maxCoeff() <= 64 * 8 * epsilon<T>);
      CHECK(variances.minCoeff() > 0);
    }
}

TEST_CASE("balance rejects samples that it cannot use", "[feature_map]") {
  const Matrix<float> x = normal<float>(3, 4, 1), none(0, 4), wide = normal<float>(3, 5, 1);
  Matrix<float> broken = x;
  broken(1, 2) = std::numeric_limits<float>::quiet_NaN();
  check_invalid([&] { balance<float>(none, x); }, {"expected at least one row each", "got 0 and 3"});
  check_invalid([&] { balance<float>(x, wide); }, {"keys: expected 4 columns", "got 5"});
  check_invalid([&] { balance<float>(x, broken); }, {"expected finite scalars"});
  check_invalid([&] { balance<float>(x, x, 0); }, {"shrinkage: expected more than 0", "got 0"});
}

}  // namespace nprf::test::feature_map_balance
