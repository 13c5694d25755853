// SPDX-License-Identifier: MIT
#include "nprf/core/compensated_sum.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::core_compensated_sum {

TEST_CASE("a sum of two and its error are exact, whatever their sizes", "[core]") {
  const Vector<double> numbers = normal_vector<double>(400, 1), exponents = normal_vector<double>(400, 2);
  int inexact = 0;
  for (Index k = 0; k + 1 < numbers.size(); ++k) {
    // at most 8 + 24 bits apart, so that double holds the sums of floats exactly
    const auto number = [&](Index at) {
      return static_cast<float>(std::ldexp(numbers[at], static_cast<int>(std::clamp(3 * exponents[at], -8.0, 8.0))));
    };
    const float a = number(k), b = number(k + 1);
    const double exact = static_cast<double>(a) + static_cast<double>(b);
    float error = 7;
    CHECK(two_sum(a, b, error) == a + b);
    CHECK(static_cast<double>(a + b) + static_cast<double>(error) == exact);
    inexact += error != 0;
    const float larger = std::abs(a) >= std::abs(b) ? a : b, smaller = std::abs(a) >= std::abs(b) ? b : a;
    CHECK(fast_two_sum(larger, smaller, error) == a + b);
    CHECK(static_cast<double>(a + b) + static_cast<double>(error) == exact);
  }
  CHECK(inexact > 100);
}

TEST_CASE("Kahan's sum does not lose terms that are small beside it", "[core]") {
  const float term = std::numeric_limits<float>::epsilon() / 4;
  float sum = 1, plain = 1, error = 0;
  for (int k = 0; k < 4096; ++k) {
    sum = fast_two_sum(sum, term + error, error);
    plain += term;
  }
  CHECK(plain == 1);
  CHECK(sum == 1 + 4096 * term);
}

TEST_CASE("zero leaves a sum as it is", "[core]") {
  float error = 7;
  CHECK(two_sum(0.1f, 0.0f, error) == 0.1f);
  CHECK(error == 0);
  CHECK(fast_two_sum(0.0f, 0.1f, error) == 0.1f);
  CHECK(error == 0);
}

TEST_CASE("a decay keeps the digits of a small exponent", "[core]") {
  constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon());
  for (const double x : {0.0, -1e-12, -1e-3, -0.25, -0.499, -0.5, -3.0, -80.0}) {
    const auto [whole, part] = decay_of<float>(x);
    const double expected = x > -0.5 ? std::expm1(x) : std::exp(x);
    CHECK(whole == (x > -0.5 ? 1.0f : 0.0f));
    CHECK(std::abs(static_cast<double>(part) - expected) <= eps * std::abs(expected));
  }
}

}  // namespace nprf::test::core_compensated_sum
