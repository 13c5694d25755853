// SPDX-License-Identifier: MIT
#include "nprf/core/plain_pack.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/catch.hpp"

namespace nprf::test::core_plain_pack {

TEMPLATE_TEST_CASE("plain packs compute what packs do", "[core]", NPRF_TEST_SCALARS) {
  using T = TestType;
  using P = PlainPack<T>;
  constexpr T nan = std::numeric_limits<T>::quiet_NaN();
  const T numbers[P::size] = {3, -5, 0, 7, -1, 2, 6, 4};
  const P a = P::load(numbers), b = P::all(2);
  CHECK(a.largest() == 7);
  CHECK((-a).largest() == 5);
  CHECK(abs(-a).largest_or_nan() == 7);
  for (Index k = 0; k < P::size; ++k) {
    CHECK(multiply_add(a, b, a).x[k] == 3 * numbers[k]);
    CHECK(larger(a, b).x[k] == std::max(numbers[k], T(2)));
    CHECK(larger_or_nan(a, b).x[k] == larger(a, b).x[k]);
    P with_nan = a;
    with_nan.x[k] = nan;
    CHECK(std::isnan(larger_or_nan(with_nan, b).x[k]));
    CHECK(std::isnan(larger_or_nan(b, with_nan).x[k]));
    CHECK(std::isnan(with_nan.largest_or_nan()));
  }
}

}  // namespace nprf::test::core_plain_pack
