// SPDX-License-Identifier: MIT
#include "nprf/core/lag_bias.hpp"

#include "support/catch.hpp"

namespace nprf::test::core_lag_bias {

TEMPLATE_TEST_CASE("a bias without parameters is zero everywhere", "[core]", NPRF_TEST_SCALARS) {
  const LagBias<TestType> bias;
  CHECK(bias.last() == 0);
  for (const Index lag : {-1000000, -1, 0, 1, 1000000}) CHECK(bias[lag] == 0);
}

TEST_CASE("a bias of float is computed in double far beyond its table", "[core]") {
  const LagBias<float> bias{0, Vector<float>::Zero(1), -0.1f, -0.1f};
  const double slope = 0.1f;  // rounded to float only here
  for (const Index lag : {Index{16777217}, Index{99999999}}) {
    CHECK(bias[lag] == -slope * static_cast<double>(lag));
    CHECK(bias[-lag] == -slope * static_cast<double>(lag));
  }
}

}  // namespace nprf::test::core_lag_bias
