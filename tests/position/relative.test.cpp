// SPDX-License-Identifier: MIT
#include "nprf/position/relative.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "nprf/position/position.hpp"
#include "position/check_gradient.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::position_relative {

static_assert(Position<RelativePosition<float>> && Position<RelativePosition<double>>);
static_assert(LearnedPosition<RelativePosition<float>> && LearnedPosition<RelativePosition<double>>);
static_assert(!PlacedPosition<RelativePosition<float>>);

TEMPLATE_TEST_CASE("relative: a lag within reach has its own scalar, any other that of its end", "[position]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Index R : {0, 1, 2, 7}) {
    Vector<T> b(2 * R + 1);
    for (Index l = 0; l < b.size(); ++l) b[l] = static_cast<T>(3 * l - 4);
    const RelativePosition<T> position(b);
    INFO("R " << R);
    CHECK(position.reach() == R);
    for (Index lag = -R - 5; lag <= R + 5; ++lag) {
      const Index clipped = std::clamp(lag, -R, R);
      CHECK(position.bias()[lag] == static_cast<double>(b[R + clipped]));
    }
    CHECK(position.bias()[-1000000] == static_cast<double>(b[0]));
    CHECK(position.bias()[1000000] == static_cast<double>(b[2 * R]));
  }
}

TEST_CASE("relative: an even number of scalars is rejected", "[position]") {
  for (const Index size : {0, 2, 10})
    check_invalid([&] { RelativePosition<float>(Vector<float>::Zero(size)); },
                  {"b: expected an odd number of scalars", "got " + std::to_string(size)});
}

TEMPLATE_TEST_CASE("relative: NaN and +infinity are rejected with their index", "[position]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const T wrong : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity()})
    for (const Index index : {0, 3, 4}) {
      Vector<T> b = Vector<T>::Zero(5);
      b[index] = wrong;
      check_invalid([&] { RelativePosition<T>{b}; },
                    {"b[" + std::to_string(index) + "]", "finite number or -infinity"});
    }
}

TEMPLATE_TEST_CASE("relative: -infinity is accepted, and clipped like other scalars", "[position]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const T infinity = std::numeric_limits<T>::infinity();
  Vector<T> b = Vector<T>::Zero(5);
  b[0] = b[4] = -infinity;
  const RelativePosition<T> position(b);
  for (const Index lag : {-900, -3, -2, 2, 3, 900})
    CHECK(position.bias()[lag] == -std::numeric_limits<double>::infinity());
  for (const Index lag : {-1, 0, 1}) CHECK(position.bias()[lag] == 0);
}

TEST_CASE("relative: the gradient is the transpose of the map from the table to the bias", "[position]") {
  const Vector<double> table = Vector<double>::LinSpaced(31, -2, 3);
  check_gradient(RelativePosition<double>(table), table);
}

}  // namespace nprf::test::position_relative
