// SPDX-License-Identifier: MIT
#include "nprf/attention/weights/prepared_position.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "nprf/position/alibi.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::attention_weights_product_choice {

namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

using Relative = RelativePosition<double>;
using Grid = GridPosition<double>;

}  // namespace

TEST_CASE("if forward's engine accepts log-scales of keys, so does backward's", "[attention][long]") {
  Workspace workspace;
  const Team team(workspace);
  // In forward, equal weights at the last two attended lags, -1 and -2, are a tail. For some of these tables banded is
  // the cheaper engine without this tail, and block_causal with it
  const Index n = 16384;
  Index saves = 0;
  for (Index reach = 9200; reach < 15200; reach += 25) {
    Vector<double> b = random_table<double>(reach, 3);
    b[reach - 2] = b[reach - 1];
    const Relative position(b);
    const Workspace::Scope scope(workspace);
    const auto made = [&](Pass pass) {
      return PreparedPosition<double>(position, {.direction = Direction::causal}, {n, n, 32, 65}, n, pass, team);
    };
    INFO("reach " << reach);
    if (!made(Pass::forward).products().product().accepts_key_log_scales()) continue;
    ++saves;
    CHECK(made(Pass::backward).products().product().accepts_key_log_scales());
  }
  CHECK(saves > 0);
}

TEST_CASE("weights that are zero for later keys count as causal in bidirectional attention too", "[attention]") {
  Workspace workspace;
  const Team team(workspace);
  const Index n = 16384;
  Vector<double> b = random_table<double>(n - 1, 3);
  b.tail(n - 1).setConstant(minus_infinity);
  const Relative position(b);
  const PreparedPosition<double> weights(position, {}, {n, n, 32, 65}, 0, Pass::forward, team);
  CHECK(weights.products().product().engine() == Engine::block_causal);
}

TEST_CASE("the direct engine is selected if a mask leaves few keys", "[attention]") {
  Workspace workspace;
  const Team team(workspace);
  const Index n = 16384;
  const Relative position(random_table<double>(n - 1, 3));
  const PreparedPosition<double> weights(position, {.direction = Direction::causal}, {n, n, 32, 65}, 0, Pass::forward,
                                         team);
  const auto engine_for = [&](Index left) {  // for `left` keys at equal distances
    Mask mask = Mask::Constant(n, false);
    for (Index j = 0; j < left; ++j) mask[j * n / left] = true;
    return weights.products().product(weights.keys(view(mask), n, workspace), workspace).engine();
  };
  CHECK(weights.products().product().engine() == Engine::block_causal);
  CHECK(engine_for(n - 100) == Engine::block_causal);
  CHECK(engine_for(n / 64) == Engine::direct);

  // also instead of other engines, and on a grid
  const AlibiPosition<double> alibi(0.01);
  const PreparedPosition<double> by_states(alibi, {}, {1000, 1000, 32, 65}, 0, Pass::forward, team);
  Mask first = Mask::Constant(1000, false);
  first.head(16).setConstant(true);
  CHECK(by_states.products().product().engine() == Engine::recurrence);
  CHECK(by_states.products().product(by_states.keys(view(first), 1000, workspace), workspace).engine() ==
        Engine::direct);
  const GridPosition<double> cells(80, 80, normal<double>(159, 159, 1), Matrix<double>(0, 2));
  const PreparedPosition<double> on_grid(cells, {}, {6400, 6400, 8, 9}, 0, Pass::forward, team);
  Mask few = Mask::Constant(6400, false);
  for (Index j = 0; j < 6400; j += 64) few[j] = true;
  CHECK(on_grid.products().product().engine() == Engine::grid);
  CHECK(on_grid.products().product(on_grid.keys(view(few), 6400, workspace), workspace).engine() == Engine::direct);
}

TEST_CASE("weights of zero need no engine", "[attention]") {
  Workspace workspace;
  const Team team(workspace);
  const Relative all_masked(Vector<double>::Constant(1, minus_infinity));
  const PreparedPosition<double> weights(all_masked, {}, {5, 6, 4, 2}, 0, Pass::forward, team);
  CHECK(weights.products().product().engine() == Engine::automatic);
}

}  // namespace nprf::test::attention_weights_product_choice
