// SPDX-License-Identifier: MIT
#include "nprf/core/index.hpp"

#include <Eigen/Core>
#include <concepts>

#include "support/catch.hpp"

namespace nprf::test::core_index {

TEST_CASE("an index is Eigen's, and signed, so that lags may be negative", "[core]") {
  STATIC_REQUIRE(std::same_as<Index, Eigen::Index>);
  STATIC_REQUIRE(std::signed_integral<Index>);
}

TEST_CASE("the real scalars are float and double alone", "[core]") {
  STATIC_REQUIRE((Real<float> && Real<double>));
  STATIC_REQUIRE(!(Real<long double> || Real<int> || Real<const float> || Real<float&>));
}

}  // namespace nprf::test::core_index
