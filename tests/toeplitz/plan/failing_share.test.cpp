// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/plan/failing_share.hpp"

#include <array>
#include <cmath>
#include <limits>

#include "support/catch.hpp"

namespace nprf::test::toeplitz_plan_failing_share {

using toeplitz::NormSums;

namespace {

constexpr double eps = 0x1p-23, tolerance = 1e-4;

NormSums ones(int count) {
  NormSums norms;
  for (int k = 0; k < count; ++k) norms.add(1);
  return norms;
}

}  // namespace

TEST_CASE("rows fail from the sum at which the error of their quotient exceeds half of the tolerance", "[toeplitz]") {
  const double n_k = 500, N = 1024;
  const NormSums weights = ones(999);
  const double error = toeplitz::convolution_error(weights.norms(), {n_k, std::sqrt(n_k), 1}, std::sqrt(10.0 / N));
  const double limit = 5 * eps * error / tolerance;  // where 5/4 * 2 eps error / sum = tolerance / 2
  const std::array<double, 4> sums{0.99 * limit, 1.01 * limit, 1, 500};
  REQUIRE(limit > 1.1);
  CHECK(toeplitz::failing_share(sums, weights, n_k, N, eps, tolerance) == 0.5);
  CHECK(toeplitz::failing_share(sums, weights, n_k, N, eps / 2, tolerance / 2) == 0.5);
  CHECK(toeplitz::failing_share(sums, weights, n_k, N, eps, 100 * tolerance) == 0);
  CHECK(toeplitz::failing_share(sums, weights, n_k, N, eps, 1e-9) == 1);
}

TEST_CASE("with an infinite tolerance no row fails, and rows that attend to no key never do", "[toeplitz]") {
  const std::array<double, 3> sums{std::numeric_limits<double>::min(), 0, 500};
  CHECK(toeplitz::failing_share(sums, ones(999), 500, 1024, eps, std::numeric_limits<double>::infinity()) == 0);
  CHECK(std::abs(toeplitz::failing_share(sums, ones(999), 500, 1024, eps, tolerance) - 1.0 / 3) < 1e-15);
  CHECK(toeplitz::failing_share({}, ones(999), 500, 1024, eps, tolerance) == 0);
}

}  // namespace nprf::test::toeplitz_plan_failing_share
