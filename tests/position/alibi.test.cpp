// SPDX-License-Identifier: MIT
#include "nprf/position/alibi.hpp"

#include <cmath>
#include <limits>
#include <span>

#include "nprf/position/position.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

using namespace nprf;

static_assert(Position<AlibiPosition<float>> && Position<AlibiPosition<double>>);
static_assert(LearnedPosition<AlibiPosition<float>> && LearnedPosition<AlibiPosition<double>>);
static_assert(!PlacedPosition<AlibiPosition<float>>);

TEMPLATE_TEST_CASE("the bias falls by the slope with every step of distance", "[position]", float, double) {
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

TEMPLATE_TEST_CASE("a slope that is not finite, or absurd, is refused", "[position]", float, double) {
  using T = TestType;
  const T infinity = std::numeric_limits<T>::infinity();
  for (const T slope : {infinity, -infinity, std::numeric_limits<T>::quiet_NaN(), T(1.1e30), T(-1.1e30)})
    test::check_invalid([&] { AlibiPosition<T>{slope}; }, {"slope: expected a number between -1e30 and 1e30", "got "});
}

TEST_CASE("alibi: the gradient of the parameters is the transpose of what they make", "[position]") {
  // the bias is linear in the parameters: sum_l db[l] b[l] = <gradient, parameters>, for every range of lags
  const Index first = -40;
  Vector<double> db(90);
  for (Index l = 0; l < db.size(); ++l) db[l] = std::cos(1.7 * static_cast<double>(l));
  const Vector<double> parameters = Vector<double>::Constant(1, 0.3);
  const AlibiPosition<double> position(parameters[0]);
  Matrix<double> gradient = Matrix<double>::Constant(2, 3, 17);  // what stood there before does not matter
  position.gradient(first, std::span<const double>(db.data(), static_cast<std::size_t>(db.size())), gradient);
  REQUIRE(gradient.rows() == parameters.size());
  REQUIRE(gradient.cols() == 1);
  double sum = 0;
  for (Index l = 0; l < db.size(); ++l) sum += db[l] * position.bias()[first + l];
  CHECK(std::abs(gradient.col(0).dot(parameters) - sum) <= 90 * std::numeric_limits<double>::epsilon() * 10 * 90);

  // nothing seen, nothing learned
  Matrix<double> none = gradient;
  position.gradient(first, {}, none);
  CHECK(none.rows() == parameters.size());
  CHECK(none.cols() == 1);
  CHECK(none.isZero(0));
}
