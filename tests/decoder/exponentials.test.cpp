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
  constexpr Index n = 64;
  constexpr double reference = 1000;
  // of float, exponents near -60 have errors of 2e-6, and numbers near 940 of 3e-5
  const Vector<double> x = (normal_vector<double>(n, 1).array() + (reference - 60)).eval();
  std::vector<T> y(n);
  exponentials(x.data(), reference, n, y.data());
  for (std::size_t i = 0; i < n; ++i) {
    const double exact = std::exp(x[static_cast<Index>(i)] - reference);
    // two roundings, and the exponential of a pack, which is within 2 eps
    CHECK(std::abs(static_cast<double>(y[i]) - exact) <= 4 * epsilon<T> * exact);
  }
}

TEMPLATE_TEST_CASE("the exponential of -infinity is 0, and its rest is not used", "[decoder]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const std::vector<double> x(16, -std::numeric_limits<double>::infinity());
  std::vector<T> y(16, T(1));
  exponentials(x.data(), 1.0, 16, y.data());
  CHECK(y == std::vector<T>(16, T(0)));
}

}  // namespace nprf::test::decoder_exponentials
