// SPDX-License-Identifier: MIT
#include "nprf/position/alibi.hpp"

#include <limits>

#include "nprf/position/position.hpp"
#include "position/check_gradient.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::position_alibi {

static_assert(Position<AlibiPosition<float>> && Position<AlibiPosition<double>>);
static_assert(LearnedPosition<AlibiPosition<float>> && LearnedPosition<AlibiPosition<double>>);
static_assert(!PlacedPosition<AlibiPosition<float>>);

TEMPLATE_TEST_CASE("alibi: the bias is -slope |lag|", "[position]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const T slope : {T(0.5), T(0.1), T(0), T(-2), T(1) / 256}) {
    const AlibiPosition<T> position(slope);
    CHECK(position.slope() == slope);
    CHECK(position.bias()[0] == 0);
    for (const Index distance : {1, 2, 3, 100, 99999}) {
      const double expected = -static_cast<double>(slope) * static_cast<double>(distance);
      CHECK(position.bias()[distance] == expected);
      CHECK(position.bias()[-distance] == expected);
    }
  }
}

TEMPLATE_TEST_CASE("alibi: a slope that is NaN or larger than 1e30 is rejected", "[position]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const T infinity = std::numeric_limits<T>::infinity();
  for (const T slope : {infinity, -infinity, std::numeric_limits<T>::quiet_NaN(), T(1.1e30), T(-1.1e30)})
    check_invalid([&] { AlibiPosition<T>{slope}; }, {"slope: expected a number between -1e30 and 1e30", "got "});
}

TEST_CASE("alibi: the gradient is the transpose of the map from the slope to the bias", "[position]") {
  const Vector<double> slope = Vector<double>::Constant(1, 0.3);
  check_gradient(AlibiPosition<double>(slope[0]), slope);
}

}  // namespace nprf::test::position_alibi
