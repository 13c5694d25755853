// SPDX-License-Identifier: MIT
#include "nprf/decoder/exponentials.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::decoder_exponentials {

TEMPLATE_TEST_CASE("exponentials have no rounding error of their exponents", "[decoder]", NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr std::size_t n = 64;
  // of float, exponents near -60 have errors of 2e-6
  const Vector<double> exponents = (normal_vector<double>(n, 1).array() - 60).eval();
  std::vector<T> x(n), rests(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = rounded_with_rest(exponents[static_cast<Index>(i)], rests[i]);
  exponentials(x.data(), rests.data(), static_cast<Index>(n));
  for (std::size_t i = 0; i < n; ++i) {
    const double exact = std::exp(exponents[static_cast<Index>(i)]);
    // two roundings, and the exponential of a pack, which is within 2 eps
    CHECK(std::abs(static_cast<double>(x[i]) - exact) <= 4 * epsilon<T> * exact);
  }
}

TEMPLATE_TEST_CASE("the exponential of -infinity is 0, and its rest is not used", "[decoder]", NPRF_TEST_SCALARS) {
  using T = TestType;
  std::vector<T> x(16), rests(16);
  for (std::size_t i = 0; i < 16; ++i) x[i] = rounded_with_rest(-std::numeric_limits<double>::infinity(), rests[i]);
  exponentials(x.data(), rests.data(), 16);
  CHECK(x == std::vector<T>(16, T(0)));
}

}  // namespace nprf::test::decoder_exponentials
