// SPDX-License-Identifier: MIT
#include "nprf/core/mixed_scalars.hpp"

#include "nprf/core/types.hpp"
#include "support/catch.hpp"

// tests/refusals tests the message of the compiler

namespace nprf::test::core_mixed_scalars {

TEST_CASE("scalars are mixed if one array has another scalar than the feature map", "[core]") {
  using detail::MixedScalars;
  STATIC_REQUIRE(MixedScalars<float, Matrix<double>>);
  STATIC_REQUIRE(MixedScalars<float, Matrix<float>, Matrix<float>, MatrixView<double>>);
  STATIC_REQUIRE(MixedScalars<double, Vector<float>, Matrix<double>>);
  STATIC_REQUIRE_FALSE(MixedScalars<float, Matrix<float>, MatrixView<float>>);
  STATIC_REQUIRE_FALSE(MixedScalars<double>);
}

TEST_CASE("arguments without a scalar do not count as mixed scalars", "[core]") {
  STATIC_REQUIRE_FALSE(detail::MixedScalars<float, Matrix<float>, int, const char*>);
}

}  // namespace nprf::test::core_mixed_scalars
