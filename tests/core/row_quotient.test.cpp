// SPDX-License-Identifier: MIT
#include "nprf/core/row_quotient.hpp"

#include <cmath>
#include <limits>

#include "support/catch.hpp"
#include "support/error.hpp"

namespace nprf::test::core_row_quotient {

TEMPLATE_TEST_CASE("denominators that are too small, non-finite or of the wrong sign do not keep their precision",
                   "[core]", float, double) {
  using T = TestType;
  using Limits = std::numeric_limits<T>;
  const T smallest = std::sqrt(Limits::min());
  for (const bool positive : {true, false}) {
    for (const T D : {smallest, T(1e-15), T(1), Limits::max()}) {
      INFO(D << (positive ? ", positive" : ""));
      CHECK(denominator_keeps_precision(D, positive));
      CHECK(denominator_keeps_precision(-D, positive) == !positive);
    }
    for (const T D : {T(0), Limits::min(), smallest / 2, Limits::infinity(), Limits::quiet_NaN()}) {
      INFO(D << (positive ? ", positive" : ""));
      CHECK_FALSE(denominator_keeps_precision(D, positive));
      CHECK_FALSE(denominator_keeps_precision(-D, positive));
      CHECK_FALSE(row_keeps_precision(D, T(0), T(1), positive));
    }
  }
}

TEMPLATE_TEST_CASE("a row keeps its precision if |D| times the largest value is normal, for each of its keys", "[core]",
                   float, double) {
  using T = TestType;
  constexpr T least = std::numeric_limits<T>::min();
  for (const bool positive : {true, false}) {
    CHECK(row_keeps_precision(T(0.5), 2 * least, T(1), positive));
    CHECK(row_keeps_precision(T(0.5), 200 * least, T(100), positive));
    CHECK_FALSE(row_keeps_precision(T(0.5), least, T(1), positive));
    CHECK_FALSE(row_keeps_precision(T(0.5), 200 * least, T(101), positive));
    CHECK(row_keeps_precision(T(0.5), T(0), T(100), positive));  // numerators of zero values are exact
  }
  CHECK(row_keeps_precision(T(-0.5), 2 * least, T(1), false));
}

TEST_CASE("the size of a row is relative to its largest value, and at least 1", "[core]") {
  CHECK(relative_size(12.0, 2.0, 3.0) == 2);
  CHECK(relative_size(3.0, 2.0, 3.0) == 1);
  CHECK(relative_size(12.0, 2.0, 0.0) == 1);
}

TEST_CASE("the error of a quotient bounds that of any perturbed numerator and denominator", "[core]") {
  const double v_max = 3, N = 8, D = 4, of_N = 1e-3, of_D = 2e-3;
  const double size = relative_size(N, D, v_max), error = quotient_error(of_N, of_D, D, v_max, size);
  for (const double n : {-of_N, of_N})
    for (const double d : {-of_D, of_D}) CHECK(std::abs((N + n) / (D + d) - N / D) <= error * v_max);
  // beyond the first order of of_D / D = 5e-4, it is larger by the margin, and by the size that is at least 1
  const double first_order = (of_N / v_max + of_D * size) / D;
  CHECK(std::abs(error - error_margin * first_order) <= 8 * epsilon<double> * error);
  CHECK(error_margin == 1.25);
}

TEST_CASE("numerators without an error need no values", "[core]") {
  CHECK(quotient_error(0.0, 0.5, 2.0, 0.0, 1.0) == 0.3125);
  CHECK(quotient_error(0.1, 0.5, 2.0, 0.0, 1.0) == std::numeric_limits<double>::infinity());
}

TEST_CASE("half of the tolerance is for FFTs, and an unknown error fails", "[core]") {
  CHECK(passes_error_bound(0.5, 1.0));
  CHECK_FALSE(passes_error_bound(0.5000001, 1.0));
  CHECK_FALSE(passes_error_bound(std::numeric_limits<double>::quiet_NaN(), 1.0));
  CHECK_FALSE(passes_error_bound(std::numeric_limits<double>::infinity(), 1.0));
  CHECK(passes_error_bound(1e30, std::numeric_limits<double>::infinity()));
}

}  // namespace nprf::test::core_row_quotient
