// SPDX-License-Identifier: MIT
#include "nprf/core/power_of_two.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"

namespace nprf::test::core_power_of_two {

namespace {

template <class T>
using Limits = std::numeric_limits<T>;

// the scale of a largest magnitude, found by halving and doubling
template <class T>
T naive_scale(T largest) {
  T scale = 1;
  while (scale < largest && scale < power_of_two<T>(Limits<T>::max_exponent - 1)) scale *= 2;
  while (scale / 2 > largest && scale > power_of_two<T>(Limits<T>::min_exponent)) scale /= 2;
  return scale;
}

// numbers in every binade and at its edges
template <class T>
std::vector<T> maxima() {
  std::vector<T> all{Limits<T>::denorm_min(), Limits<T>::min() / 2, Limits<T>::min(), Limits<T>::max()};
  for (int e = Limits<T>::min_exponent - 1; e < Limits<T>::max_exponent; ++e)
    for (const T x : {power_of_two<T>(e), std::nextafter(power_of_two<T>(e), Limits<T>::infinity()),
                      std::nextafter(power_of_two<T>(e), T(0)), power_of_two<T>(e) * T(1.3)})
      all.push_back(x);
  return all;
}

}  // namespace

TEMPLATE_TEST_CASE("power_of_two returns 2^e, and exponent_of the exponent of a number's binade", "[core]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  for (int e = Limits<T>::min_exponent - 1; e < Limits<T>::max_exponent; ++e) {
    CHECK(power_of_two<T>(e) == std::ldexp(T(1), e));
    CHECK(exponent_of(power_of_two<T>(e)) == e);
    CHECK(exponent_of(power_of_two<T>(e) * T(1.9)) == e);
  }
  CHECK(exponent_of(Limits<T>::min() / 2) < Limits<T>::min_exponent - 1);
}

TEMPLATE_TEST_CASE("the scale is a power of two, and the largest magnitude divided by it is between 1/2 and 1",
                   "[core]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const T largest : maxima<T>()) {
    const T scale = power_of_two_scale(largest);
    INFO("largest magnitude " << largest << ", scale " << scale);
    int exponent = 0;
    CHECK(std::frexp(scale, &exponent) == T(0.5));
    CHECK(exponent_of(scale) == exponent - 1);
    CHECK(std::isnormal(scale));
    CHECK(std::isfinite(1 / scale));
    CHECK(scale * (1 / scale) == 1);
    const T ratio = largest * (1 / scale);
    CHECK(ratio * scale == largest);  // exact in both directions
    if (largest >= power_of_two<T>(Limits<T>::max_exponent - 1)) {
      CHECK(ratio < 2);
    } else {
      CHECK(ratio <= 1);
      if (largest >= Limits<T>::min()) CHECK(ratio >= T(0.5));
    }
    // the scale of a power of two may be the number itself or twice it
    if (std::frexp(largest, &exponent) != T(0.5)) CHECK(scale == naive_scale(largest));
  }
}

TEMPLATE_TEST_CASE("the scale of zero is infinity, and the scale of a non-finite number is 1", "[core]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  CHECK(power_of_two_scale(T(0)) == Limits<T>::infinity());
  CHECK(power_of_two_scale(-T(0)) == Limits<T>::infinity());
  CHECK(power_of_two_scale(Limits<T>::infinity()) == 1);
  CHECK(power_of_two_scale(Limits<T>::quiet_NaN()) == 1);
  CHECK(power_of_two_scale(-Limits<T>::quiet_NaN()) == 1);
}

TEMPLATE_TEST_CASE("a row is scaled by powers of two outside the range of normal numbers", "[core]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const auto scaled = [](T x, int exponent) {
    Matrix<T> row = Matrix<T>::Constant(1, 3, x);
    scale_by_power_of_two<T>(exponent, row.row(0));
    CHECK((row.array() == row(0, 0)).all());
    return row(0, 0);
  };
  for (const int exponent : {0, 1, -1, 20, -30}) CHECK(scaled(T(3), exponent) == std::ldexp(T(3), exponent));
  const int all = Limits<T>::max_exponent - Limits<T>::min_exponent;
  CHECK(scaled(Limits<T>::min(), all) == std::ldexp(Limits<T>::min(), all));
  CHECK(scaled(std::ldexp(Limits<T>::min(), all), -all) == Limits<T>::min());
  CHECK(scaled(T(1), 10 * all) == Limits<T>::infinity());
  CHECK(scaled(T(1), -10 * all) == 0);
}

}  // namespace nprf::test::core_power_of_two
