// SPDX-License-Identifier: MIT
#include "nprf/position/relative.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>

#include "nprf/position/position.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

using namespace nprf;

static_assert(Position<RelativePosition<float>> && Position<RelativePosition<double>>);
static_assert(LearnedPosition<RelativePosition<float>> && LearnedPosition<RelativePosition<double>>);
static_assert(!PlacedPosition<RelativePosition<float>>);

TEMPLATE_TEST_CASE("each lag within reach has a scalar of its own, all others that of the end", "[position]", float,
                   double) {
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

TEST_CASE("an even number of scalars is refused", "[position]") {
  for (const Index size : {0, 2, 10})
    test::check_invalid([&] { RelativePosition<float>(Vector<float>::Zero(size)); },
                        {"b: expected an odd number of scalars", "got " + std::to_string(size)});
}

TEMPLATE_TEST_CASE("NaN and +infinity are refused by their place", "[position]", float, double) {
  using T = TestType;
  for (const T wrong : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity()})
    for (const Index place : {0, 3, 4}) {
      Vector<T> b = Vector<T>::Zero(5);
      b[place] = wrong;
      test::check_invalid([&] { RelativePosition<T>{b}; },
                          {"b[" + std::to_string(place) + "]", "finite number or -infinity"});
    }
}

TEMPLATE_TEST_CASE("a bias of -infinity is allowed, and holds beyond the reach", "[position]", float, double) {
  using T = TestType;
  const T infinity = std::numeric_limits<T>::infinity();
  Vector<T> b = Vector<T>::Zero(5);
  b[0] = b[4] = -infinity;
  const RelativePosition<T> position(b);
  for (const Index lag : {-900, -3, -2, 2, 3, 900})
    CHECK(position.bias()[lag] == -std::numeric_limits<double>::infinity());
  for (const Index lag : {-1, 0, 1}) CHECK(position.bias()[lag] == 0);
}

TEST_CASE("relative: the gradient of the parameters is the transpose of what they make", "[position]") {
  // the bias is linear in the parameters: sum_l db[l] b[l] = <gradient, parameters>, for every range of lags
  const Index first = -40;
  Vector<double> db(90);
  for (Index l = 0; l < db.size(); ++l) db[l] = std::cos(1.7 * static_cast<double>(l));
  const Vector<double> parameters = Vector<double>::LinSpaced(31, -2, 3);
  const RelativePosition<double> position(parameters);
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
