// SPDX-License-Identifier: MIT
#include "nprf/core/mixed_scalars.hpp"

#include "nprf/core/types.hpp"
#include "support/catch.hpp"

// what a refusal says is in tests/refusals

namespace nprf::test::core_mixed_scalars {

TEST_CASE("scalars are mixed where one array has another than the feature map", "[core]") {
  using detail::MixedScalars;
  STATIC_REQUIRE(MixedScalars<float, Matrix<double>>);
  STATIC_REQUIRE(MixedScalars<float, Matrix<float>, Matrix<float>, MatrixView<double>>);
  STATIC_REQUIRE(MixedScalars<double, Vector<float>, Matrix<double>>);
  STATIC_REQUIRE_FALSE(MixedScalars<float, Matrix<float>, MatrixView<float>>);
  STATIC_REQUIRE_FALSE(MixedScalars<double>);
}

TEST_CASE("what has no scalar mixes none", "[core]") {
  STATIC_REQUIRE_FALSE(detail::MixedScalars<float, Matrix<float>, int, const char*>);
}

}  // namespace nprf::test::core_mixed_scalars
