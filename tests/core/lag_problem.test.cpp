// SPDX-License-Identifier: MIT
#include "nprf/core/lag_problem.hpp"

#include <limits>
#include <vector>

#include "support/catch.hpp"

namespace nprf::test::core_lag_problem {

TEST_CASE("the bias of a query and a key is that of their slots, or the border's", "[core]") {
  constexpr double never = LagProblem<double>::minus_infinity;
  const std::vector<double> biases{-2, -1, 0, never, -4}, extra{5, 6, 7};
  const std::vector<Index> at{0, 2};
  LagProblem<double> x;
  x.queries = Placement({2, 0, at.data()}, 1), x.keys = x.queries;
  x.query_slots = x.key_slots = 3;
  x.lags = {-2, 2}, x.reach = {-2, 2};
  x.biases = biases.data();
  x.border_biases = {1, extra.data()};
  CHECK((x.bias_between(0, 0) == 7 && x.bias_between(0, 2) == 5 && x.bias_between(2, 0) == 6));
  CHECK((x.bias_between(1, 1) == 0 && x.bias_between(1, 2) == -4 && x.bias_between(2, 1) == -2));
  CHECK((x.attends(-1) && !x.attends(1) && !x.attends(3) && !x.attends(-3)));
  CHECK(x.bias_spread() == 11);
  x.reach.last = 1;  // a direction that hides lag 2
  CHECK((!x.attends(2) && !x.attends(1, 2) && x.bias_spread() == 9));
}

TEST_CASE("a difference of two biases on one line is exact", "[core]") {
  // b = -lag / 4 from lag 1 on, far from zero: b + 2^60 rounds the quarters away
  const double far = 0x1p60;
  const std::vector<double> biases{far, far, far - 0.25, far - 0.5, far - 0.75};
  LagProblem<double> x;
  x.lags = x.reach = {-1, 3};
  x.biases = biases.data();
  x.table = {-1, 0}, x.slope_after = -0.25;
  CHECK(x.bias_difference(3, 1) == -0.5);
  CHECK(x.bias_difference(1, 3) == 0.5);
  CHECK(x.bias_difference(0, -1) == 0);
  CHECK(x.bias_difference(4, 1) == LagProblem<double>::minus_infinity);
}

TEST_CASE("the last attended lag that is not near keeps a weight", "[core]") {
  constexpr double never = LagProblem<float>::minus_infinity;
  const std::vector<double> biases{0, -1000, never, 3};
  const auto kept = [&](Index near) {
    std::vector<float> weights{1, 0, 0, 0};
    LagProblem<float> x;
    x.lags = x.reach = {-3, 0};
    x.biases = biases.data(), x.weight_values = weights.data();
    x.near.width = near;
    x.keep_last_weight();
    return weights;
  };
  constexpr float least = std::numeric_limits<float>::min();
  CHECK(kept(0) == std::vector<float>{1, 0, 0, least});
  CHECK(kept(1) == std::vector<float>{1, least, 0, 0});
  for (const Index near : {3, 4}) CHECK(kept(near) == std::vector<float>{1, 0, 0, 0});
}

}  // namespace nprf::test::core_lag_problem
