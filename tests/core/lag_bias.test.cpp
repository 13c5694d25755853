// SPDX-License-Identifier: MIT
#include "nprf/core/lag_bias.hpp"

#include "support/catch.hpp"

using namespace nprf;

TEST_CASE("a bias goes on as straight lines beyond its table", "[core]") {
  LagBias<double> bias{-1, Vector<double>::LinSpaced(3, 1, 3), 0.5, -2};
  CHECK(bias[-1] == 1);
  CHECK(bias[1] == 3);
  CHECK(bias[-4] == 1 + 3 * 0.5);
  CHECK(bias[3] == 3 - 2 * 2.0);
  CHECK(bias.max({-1, 1}) == 3);
  CHECK(bias.max({-11, -9}) == 6);
  CHECK(bias.max({2, 1}) == -INFINITY);
}
