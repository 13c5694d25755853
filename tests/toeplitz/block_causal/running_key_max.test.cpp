// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/block_causal/running_key_max.hpp"

#include <cmath>
#include <limits>

#include "support/catch.hpp"

namespace nprf::test::toeplitz_block_causal_running_key_max {

using toeplitz::ratio;

TEST_CASE("a ratio is 1 if both log-scales are -infinity, and 0 if only the first is", "[toeplitz]") {
  constexpr double none = -std::numeric_limits<double>::infinity();
  CHECK(ratio(3, 3) == 1);
  CHECK(ratio(1.25, -0.5) == std::exp(1.75));
  CHECK(ratio(none, none) == 1);
  CHECK(ratio(none, -700) == 0);
  CHECK(ratio(-1e300, 1e300) == 0);
}

}  // namespace nprf::test::toeplitz_block_causal_running_key_max
