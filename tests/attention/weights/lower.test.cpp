// SPDX-License-Identifier: MIT
#include "nprf/attention/weights/lower.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/weights/holed_grid.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::attention_weights_lower {

namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

using Relative = RelativePosition<double>;

}  // namespace

TEST_CASE("weights are relative to the largest bias of the lags that the direction allows", "[attention]") {
  Vector<double> b = random_table<double>(4, 3);
  b[8] = 100;   // the lag 4 and beyond: no causal query attends to it
  b[0] = 1000;  // the lag -4 and before: no query is so far from a key
  const Relative position(b);
  Workspace workspace;
  const Index offset = 1;
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    const LagProblem<double> x =
        lower<double>(position, {.direction = direction}, offset, 3, 9, Pass::forward, workspace);
    const bool causal = direction == Direction::causal;
    CHECK((x.lags.first == -2 && x.lags.last == 8));
    CHECK((x.reach.first == -2 && x.reach.last == (causal ? offset : 8)));
    const double largest = causal ? position.bias().max({-3, 0}) : 100;
    for (Index lag = -3; lag <= 7; ++lag)
      CHECK(x.weights[lag + offset] == (causal && lag > 0 ? 0 : std::exp(position.bias()[lag] - largest)));
    for (Index i = 0; i < 3; ++i)
      for (Index j = 0; j < 9; ++j)
        CHECK(x.bias_between(i, j) == (causal && j > i + offset ? minus_infinity : position.bias()[j - i - offset]));
    CHECK((x.border.count == 0 && x.queries.count() == 3 && x.keys.count() == 9));
  }
}

TEST_CASE("the weights of all cells share a scale, and the row of an extra token has its own", "[attention]") {
  Workspace workspace;
  const GridPosition<double> position = holed_grid(2);
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    const LagProblem<double> x = lower<double>(position, {.direction = direction}, 0, 14, 14, Pass::forward, workspace);
    std::array<double, 3> largest{minus_infinity, minus_infinity,
                                  minus_infinity};  // of extra token 0, of 1, and of all cells
    for (Index i = 0; i < 14; ++i)
      for (Index j = 0; j < 14; ++j) {
        double& top = largest[static_cast<std::size_t>(std::min<Index>(i, 2))];
        top = std::max(top, x.bias_between(i, j));
      }
    REQUIRE(x.border.count == 2);
    for (Index i = 0; i < 14; ++i)
      for (Index j = 0; j < 14; ++j) {
        const double b = x.bias_between(i, j), top = largest[static_cast<std::size_t>(std::min<Index>(i, 2))];
        const double expected = b > minus_infinity ? std::exp(b - top) : 0;
        const bool inside = i >= 2 && j >= 2;
        const double got = inside ? x.weights[position.slot(j - 2) - position.slot(i - 2)] : x.border(i, j);
        CHECK(got == expected);
      }
  }
}

TEST_CASE("if all biases are -infinity, all weights are zero", "[attention]") {
  Workspace workspace;
  const Relative all_masked(Vector<double>::Constant(1, minus_infinity));
  const LagProblem<double> x =
      lower<double>(all_masked, {.direction = Direction::bidirectional}, 0, 5, 6, Pass::forward, workspace);
  for (Index lag = -4; lag <= 5; ++lag)
    CHECK((x.weights[lag] == 0 && !x.attends(lag) && x.bias(lag) == minus_infinity));
  CHECK((!x.attends(0, 0) && x.bias_spread() == 0));
}

TEST_CASE("a position with slots of its own rejects other numbers of tokens", "[attention]") {
  Workspace workspace;
  const GridPosition<double> position = holed_grid(2);
  const auto make = [&](Index n_q, Index n_k, Index offset) {
    lower<double>(position, {.direction = Direction::bidirectional}, offset, n_q, n_k, Pass::forward, workspace);
  };
  CHECK_NOTHROW(make(14, 14, 0));
  check_invalid([&] { make(13, 14, 0); }, {"queries: expected 14 rows", "got 13"});
  check_invalid([&] { make(14, 15, 0); }, {"keys: expected 14 rows", "got 15"});
  check_invalid([&] { make(14, 14, 1); }, {"offset: expected 0", "got 1"});
}

TEST_CASE("lags of a problem include the offset, and the direction limits those that are attended", "[attention]") {
  Workspace workspace;
  const AlibiPosition<double> alibi(0.5);
  const LagProblem<double> x =
      lower<double>(alibi, {.direction = Direction::causal}, 4, 3, 10, Pass::forward, workspace);
  CHECK((x.lags.first == -2 && x.lags.last == 9 && x.reach.last == 4));
  for (Index lag = -2; lag <= 9; ++lag) {
    CHECK(x.attends(lag) == (lag <= 4));
    CHECK(x.bias(lag) == (lag <= 4 ? -0.5 * static_cast<double>(4 - lag) : minus_infinity));
  }
  CHECK((x.bias(-3) == minus_infinity && x.bias(10) == minus_infinity));
  CHECK((x.largest_bias == 0 && x.bias_spread() == 3));
  CHECK(x.weights.tails.before == 6);
  // far from the table a difference is that of the lags
  const LagProblem<double> far =
      lower<double>(alibi, {.direction = Direction::bidirectional}, Index{1} << 40, 2, 10, Pass::forward, workspace);
  CHECK((far.bias_difference(3, 8) == -2.5 && far.log_weights[9 + 1] == 0 && far.log_weights[8 + 1] == -0.5));
}

TEST_CASE("the last attended weight is kept above zero on request", "[attention]") {
  Workspace workspace;
  Vector<float> b = Vector<float>::Zero(9);
  b[6] = -1000, b.tail(2).setConstant(-std::numeric_limits<float>::infinity());
  const RelativePosition<float> position(b);
  LagProblem<float> x =
      lower<float>(position, {.direction = Direction::bidirectional}, 0, 5, 5, Pass::forward, workspace);
  CHECK((x.weights[2] == 0 && x.weights[3] == 0));
  x.keep_last_weight();
  CHECK((x.weights[2] == std::numeric_limits<float>::min() && x.weights[3] == 0 && x.weights[1] == 1));
}

}  // namespace nprf::test::attention_weights_lower
