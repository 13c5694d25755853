// SPDX-License-Identifier: MIT
#include "nprf/core/lags.hpp"

#include "support/catch.hpp"

namespace nprf::test::core_lag_weights_view {

TEST_CASE("a view of weights is zero outside the table, and its support has no zeros at the ends", "[core]") {
  const double values[] = {0, 0, 5, 0, 6, 0};
  const LagWeightsView<double> c{-3, values, 6};
  CHECK(c.last() == 2);
  CHECK((c[-4] == 0 && c[-1] == 5 && c[1] == 6 && c[3] == 0 && c[-1000000] == 0));
  CHECK((c.support().first == -1 && c.support().last == 1));
  CHECK((LagWeightsView<double>{-3, values, 2}.support().size() == 0));
}

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

TEST_CASE("the middle is what the tails leave, and flat tails extend over equal weights", "[core]") {
  const float values[] = {2, 2, 5, 3, 3, 3};
  const LagWeightsView<float> c{-2, values, 6, {.after = 1}}, extended = c.with_equal_ends();
  CHECK((c.middle().first == -2 && c.middle().last == 2));
  CHECK((extended.tails.before == 1 && extended.tails.after == 2));
  CHECK((extended.middle().first == -1 && extended.middle().last == 1));
  CHECK((extended.values == c.values && extended.first == c.first && extended.size == c.size));
}

}  // namespace nprf::test::core_lag_weights_view
