// SPDX-License-Identifier: MIT
#include "nprf/core/lags.hpp"

#include "support/catch.hpp"

namespace nprf::test::core_lag_weights_view {

TEST_CASE("tails are the lags where the bias falls or is flat beyond its table, at most all but one", "[core]") {
  const float b[] = {0, 1, 0};
  const auto is = [](const Tails& t, Index before, Index after, double slope_before, double slope_after) {
    return t.before == before && t.after == after && t.slope_before == slope_before && t.slope_after == slope_after;
  };
  const LagBiasView<float> falling{-1, b, 3, -0.5f, 0};
  CHECK(is(tails(falling, {-5, 7}), 4, 6, -0.5, 0));
  CHECK(is(tails(falling, {-1, 1}), 0, 0, 0, 0));
  CHECK(is(tails(falling, {0, 7}), 0, 6, 0, 0));
  CHECK(is(tails(falling, {-9, -6}), 3, 0, -0.5, 0));
  CHECK(is(tails(falling, {3, 2}), 0, 0, 0, 0));
  const LagBiasView<float> rising{-1, b, 3, 0.5f, -0.25f};
  CHECK(is(tails(rising, {-5, 7}), 0, 6, 0, -0.25));
}

}  // namespace nprf::test::core_lag_weights_view
