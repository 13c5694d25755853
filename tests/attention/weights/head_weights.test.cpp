// SPDX-License-Identifier: MIT
#include "nprf/attention/weights/head_weights.hpp"

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

namespace nprf::test::attention_weights_head_weights {

namespace {

constexpr double never = -std::numeric_limits<double>::infinity();

using Relative = RelativePosition<double>;
using Grid = GridPosition<double>;

std::vector<Index> numbers(const Placement& keys) {
  std::vector<Index> all;
  for (Index j = 0; j < keys.count(); ++j) all.push_back(keys.number(j));
  return all;
}

std::vector<Index> slots(const Placement& keys) {
  std::vector<Index> all;
  for (Index j = 0; j < keys.slots.count; ++j) all.push_back(keys.slots[j]);
  return all;
}

Mask mask_of(Index n, const std::vector<Index>& keys) {
  Mask mask = Mask::Constant(n, false);
  for (const Index j : keys) mask[j] = true;
  return mask;
}

// the holes of a window, N(0,1) elsewhere
Grid grid(Index E) {
  Matrix<double> b = normal<double>(5, 7, 1), extra = normal<double>(E, E + 2, 2);
  b(0, 0) = b(2, 4) = b(3, 3) = never;
  if (E > 0) extra(0, 0) = extra(E - 1, 1) = extra(0, 2) = never;
  return {3, 4, b, extra};
}

}  // namespace

TEST_CASE("weights are relative to the largest that a direction reaches", "[attention]") {
  Vector<double> b = random_table<double>(4, 3);
  b[8] = 100;   // the lag 4 and beyond: no causal query reaches it
  b[0] = 1000;  // the lag -4 and before: nobody reaches it from so few queries
  const Relative position(b);
  Workspace workspace;
  const Team team(workspace);
  const Index offset = 1;
  const ProductShape shape{3, 9, 4, 2};
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    const HeadWeights<double> weights(position, {.direction = direction}, shape, offset, Pass::forward, team);
    const bool causal = direction == Direction::causal;
    CHECK(weights.gradient_lags().first == -3);
    CHECK(weights.gradient_lags().last == 7);
    const double largest = causal ? position.bias().max({-3, 0}) : 100;
    for (Index lag = -3; lag <= 7; ++lag)
      CHECK(weights.weight(lag) == (causal && lag > 0 ? 0 : std::exp(position.bias()[lag] - largest)));
    for (Index i = 0; i < 3; ++i)
      for (Index j = 0; j < 9; ++j)
        CHECK(weights.bias(i, j) == (causal && j > i + offset ? never : position.bias()[j - i - offset]));
    CHECK(weights.border().count == 0);
    CHECK(weights.queries().count() == 3);
  }
}

TEST_CASE("the keys that take part are those before the length that the mask leaves", "[attention]") {
  const Relative position(random_table<double>(4, 3));
  Workspace workspace;
  const HeadWeights<double> weights(position, {}, {5, 6, 4, 2}, 0, Pass::forward, Team(workspace));
  const auto keys = [&](const std::vector<Index>& left, Index length) {
    const Mask mask = mask_of(6, left);
    return numbers(weights.keys(view(mask), length, workspace));
  };
  const auto all_of = [&](Index length) { return numbers(weights.keys({}, length, workspace)); };
  CHECK(all_of(6) == std::vector<Index>{0, 1, 2, 3, 4, 5});
  CHECK(all_of(4) == std::vector<Index>{0, 1, 2, 3});
  CHECK(all_of(0).empty());
  CHECK(keys({0, 1, 2, 3, 4, 5}, 6) == std::vector<Index>{0, 1, 2, 3, 4, 5});
  CHECK(keys({1, 2, 5}, 6) == std::vector<Index>{1, 2, 5});
  CHECK(keys({1, 2, 5}, 5) == std::vector<Index>{1, 2});
  CHECK(keys({0, 1}, 6) == std::vector<Index>{0, 1});
  CHECK(keys({4, 5}, 4).empty());
  CHECK(keys({}, 6).empty());

  // padding at the end alone needs no numbers, so that keys are read in place
  const Mask prefix = mask_of(6, {0, 1, 2}), gap = mask_of(6, {0, 2});
  CHECK(weights.keys(view(prefix), 6, workspace).numbers == nullptr);
  CHECK(weights.keys(view(prefix), 6, workspace).slots.at == nullptr);
  CHECK(slots(weights.keys(view(gap), 6, workspace)) == std::vector<Index>{0, 2});
}

TEST_CASE("the keys of a grid: extra tokens first, and each cell in its slot", "[attention]") {
  const Grid position = grid(2);
  Workspace workspace;
  const HeadWeights<double> weights(position, {}, {14, 14, 4, 2}, 0, Pass::forward, Team(workspace));
  CHECK(weights.queries().outside == 2);
  CHECK(slots(weights.queries()) == std::vector<Index>{0, 1, 2, 3, 7, 8, 9, 10, 14, 15, 16, 17});
  CHECK(weights.gradient_lags().first == -17);
  CHECK(weights.gradient_lags().last == 17);
  const auto check = [&](const std::vector<Index>& left, Index outside, const std::vector<Index>& expected) {
    const Mask mask = mask_of(14, left);
    const Placement keys = weights.keys(view(mask), 14, workspace);
    CHECK(keys.outside == outside);
    CHECK(numbers(keys) == left);
    CHECK(slots(keys) == expected);
  };
  check({0, 1, 2, 7, 13}, 2, {0, 8, 17});
  check({1, 5, 6}, 1, {3, 7});
  check({3}, 0, {1});
  check({0}, 1, {});
  check({}, 0, {});
  CHECK(numbers(weights.keys({}, 3, workspace)) == std::vector<Index>{0, 1, 2});
}

TEST_CASE("a query sees a key where the bias is not -infinity", "[attention]") {
  Vector<double> window = random_table<double>(3, 3);
  window[0] = window[2] = window[6] = never;
  Workspace workspace;
  const Team team(workspace);
  const std::vector<std::vector<Index>> left{{}, {0}, {1}, {5}, {0, 1}, {0, 5, 9}, {2, 3, 4, 11}, {1, 12, 13}};
  const auto check = [&](const auto& weights, Index n) {
    Index wrong = 0;
    for (const std::vector<Index>& keys : left) {
      const Mask mask = mask_of(n, keys);
      const Placement placed = weights.keys(view(mask), n, workspace);
      Mask sees_any(n), seen_by_any(placed.count());
      weights.sees_any(placed, sees_any.data(), workspace);
      weights.seen_by_any(placed, seen_by_any.data(), workspace);
      for (Index i = 0; i < n; ++i) {
        bool sees = false;
        for (const Index j : keys) sees = sees || weights.bias(i, j) > never;
        wrong += sees_any[i] != sees;
      }
      for (Index j = 0; j < placed.count(); ++j) {
        bool seen = false;
        for (Index i = 0; i < n; ++i) seen = seen || weights.bias(i, placed.number(j)) > never;
        wrong += seen_by_any[j] != seen;
      }
    }
    CHECK(wrong == 0);
  };
  const Relative relative(window);
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    for (const Index offset : {0, 2, -2})
      check(HeadWeights<double>(relative, {.direction = direction}, {14, 14, 4, 2}, offset, Pass::forward, team), 14);
    const Grid position = grid(2);
    check(HeadWeights<double>(position, {.direction = direction}, {14, 14, 4, 2}, 0, Pass::forward, team), 14);
  }
}

TEST_CASE("the largest size that a query sees: never more, and nothing only where that is so", "[attention]") {
  const Index n = 90;
  Workspace workspace;
  const Team team(workspace);
  const Vector<double> all_sizes = normal_vector<double>(n, 4).cwiseAbs();
  for (const Index hole : {2, 3, 5}) {
    Vector<double> b = Vector<double>::Zero(2 * n + 1);
    for (Index l = 0; l < b.size(); ++l)
      if (l % hole != 0) b[l] = never;
    for (const Index period : {1, 2, 4}) {
      std::vector<Index> left;
      for (Index j = 0; j < n; j += period) left.push_back(j);
      const Mask mask = mask_of(n, left);
      const Relative position(b);
      const HeadWeights<double> weights(position, {}, {n, n, 4, 2}, 0, Pass::forward, team);
      const Placement keys = weights.keys(view(mask), n, workspace);
      Vector<double> sizes(keys.count()), got(n);
      for (Index j = 0; j < sizes.size(); ++j) sizes[j] = all_sizes[keys.number(j)];
      weights.largest_seen(sizes.data(), keys, got.data(), workspace);
      Index wrong = 0;
      for (Index i = 0; i < n; ++i) {
        double largest = 0;
        for (Index j = 0; j < keys.count(); ++j)
          if (weights.sees_key(i, keys.number(j))) largest = std::max(largest, sizes[j]);
        wrong += got[i] > largest || (largest > 0 && got[i] <= largest / 2);  // a power of two at least
      }
      INFO("every " << hole << "th lag, every " << period << "th key");
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("the lags at which some queries see keys", "[attention]") {
  Vector<double> window = random_table<double>(5, 3);
  window[0] = window[2] = window[10] = never;
  Workspace workspace;
  const Team team(workspace);
  const Relative position(window);
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const Index offset : {0, 2, -2}) {
      const HeadWeights<double> weights(position, {.direction = direction}, {14, 11, 4, 2}, offset, Pass::forward,
                                        team);
      for (const std::vector<Index>& left :
           std::vector<std::vector<Index>>{{}, {3}, {0, 1, 2, 3, 4, 5, 6}, {2, 7, 10}}) {
        const Mask mask = mask_of(11, left);
        const Placement keys = weights.keys(view(mask), 11, workspace);
        auto hit = workspace.matrix<double>(weights.gradient_lags().size(), 1);
        const auto marked = [](Index i) { return i % 5 == 1; };
        weights.lags_seen(keys, marked, hit, workspace);
        for (Index l = 0; l < hit.rows(); ++l) {
          const Index lag = weights.gradient_lags().first + l;
          bool expected = false;
          for (Index i = 0; i < 14; ++i)
            for (const Index j : left)
              expected = expected || (marked(i) && j - i - offset == lag && weights.sees_key(i, j));
          CHECK((hit(l, 0) > 0) == expected);
        }
      }
    }
}

TEST_CASE("the weights of the cells' rows share a scale, and an extra token's row has its own", "[attention]") {
  Workspace workspace;
  const Team team(workspace);
  const Grid position = grid(2);
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    const HeadWeights<double> weights(position, {.direction = direction}, {14, 14, 4, 2}, 0, Pass::forward, team);
    std::array<double, 3> largest{never, never, never};  // of extra token 0, of 1, and of all cells
    for (Index i = 0; i < 14; ++i)
      for (Index j = 0; j < 14; ++j) {
        double& top = largest[static_cast<std::size_t>(std::min<Index>(i, 2))];
        top = std::max(top, weights.bias(i, j));
      }
    REQUIRE(weights.border().count == 2);
    for (Index i = 0; i < 14; ++i)
      for (Index j = 0; j < 14; ++j) {
        const double b = weights.bias(i, j), top = largest[static_cast<std::size_t>(std::min<Index>(i, 2))];
        const double expected = b > never ? std::exp(b - top) : 0;
        const bool inside = i >= 2 && j >= 2;
        const double got = inside ? weights.weight(position.slot(j - 2) - position.slot(i - 2))
                                  : weights.border().values[weights.border_place(i, j)];
        CHECK(got == expected);
      }
  }
}

TEST_CASE("a backward pass knows the exponents that its forward pass has saved", "[attention]") {
  Workspace workspace;
  const Team team(workspace);
  // forward, weights that are alike at the last two distances in reach, -1 and -2, are a tail: for some of these tables
  // banded is the cheaper engine without it, block_causal with it
  const Index n = 16384;
  Index saves = 0;
  for (Index reach = 9200; reach < 15200; reach += 25) {
    Vector<double> b = random_table<double>(reach, 3);
    b[reach - 2] = b[reach - 1];
    const Relative position(b);
    const Workspace::Scope scope(workspace);
    const auto made = [&](Pass pass) {
      return HeadWeights<double>(position, {.direction = Direction::causal}, {n, n, 32, 65}, n, pass, team);
    };
    INFO("reach " << reach);
    if (!made(Pass::forward).product().accepts_key_log_scales()) continue;
    ++saves;
    CHECK(made(Pass::backward).product().accepts_key_log_scales());
  }
  CHECK(saves > 0);
}

TEST_CASE("weights that hide what is later make one-sided attention, whatever the direction", "[attention]") {
  Workspace workspace;
  const Team team(workspace);
  const Index n = 16384;
  Vector<double> b = random_table<double>(n - 1, 3);
  b.tail(n - 1).setConstant(never);
  const Relative position(b);
  const HeadWeights<double> weights(position, {}, {n, n, 32, 65}, 0, Pass::forward, team);
  CHECK(weights.product().engine() == Engine::block_causal);
}

TEST_CASE("few keys of many are multiplied one by one", "[attention]") {
  Workspace workspace;
  const Team team(workspace);
  const Index n = 16384;
  const Relative position(random_table<double>(n - 1, 3));
  const HeadWeights<double> weights(position, {.direction = Direction::causal}, {n, n, 32, 65}, 0, Pass::forward, team);
  const auto engine_for = [&](Index left) {  // that many keys, evenly spread
    Mask mask = Mask::Constant(n, false);
    for (Index j = 0; j < left; ++j) mask[j * n / left] = true;
    return weights.product(weights.keys(view(mask), n, workspace), workspace).engine();
  };
  CHECK(weights.product().engine() == Engine::block_causal);
  CHECK(engine_for(n - 100) == Engine::block_causal);
  CHECK(engine_for(n / 64) == Engine::direct);

  // where all keys are multiplied without an FFT, and on a grid, likewise
  const AlibiPosition<double> alibi(0.01);
  const HeadWeights<double> by_states(alibi, {}, {1000, 1000, 32, 65}, 0, Pass::forward, team);
  Mask first = Mask::Constant(1000, false);
  first.head(16).setConstant(true);
  CHECK(by_states.product().engine() == Engine::recurrence);
  CHECK(by_states.product(by_states.keys(view(first), 1000, workspace), workspace).engine() == Engine::direct);
  const GridPosition<double> cells(80, 80, normal<double>(159, 159, 1), Matrix<double>(0, 2));
  const HeadWeights<double> on_grid(cells, {}, {6400, 6400, 8, 9}, 0, Pass::forward, team);
  Mask few = Mask::Constant(6400, false);
  for (Index j = 0; j < 6400; j += 64) few[j] = true;
  CHECK(on_grid.product().engine() == Engine::grid);
  CHECK(on_grid.product(on_grid.keys(view(few), 6400, workspace), workspace).engine() == Engine::direct);
}

TEST_CASE("weights that are all -infinity are all zero", "[attention]") {
  Workspace workspace;
  const Team team(workspace);
  const Relative blind(Vector<double>::Constant(1, never));
  const HeadWeights<double> weights(blind, {}, {5, 6, 4, 2}, 0, Pass::forward, team);
  for (Index lag = -4; lag <= 5; ++lag) CHECK(weights.weight(lag) == 0);
  Mask sees = Mask::Constant(5, true), seen = Mask::Constant(6, true);
  weights.sees_any(weights.keys({}, 6, workspace), sees.data(), workspace);
  weights.seen_by_any(weights.keys({}, 6, workspace), seen.data(), workspace);
  CHECK((!sees.any() && !seen.any()));
  CHECK(weights.product().engine() == Engine::automatic);
}

TEST_CASE("a position with places of its own refuses other numbers of tokens", "[attention]") {
  Workspace workspace;
  const Team team(workspace);
  const Grid position = grid(2);
  const auto make = [&](Index n_q, Index n_k, Index offset) {
    HeadWeights<double>(position, {}, {n_q, n_k, 4, 2}, offset, Pass::forward, team);
  };
  CHECK_NOTHROW(make(14, 14, 0));
  check_invalid([&] { make(13, 14, 0); }, {"queries: expected 14 rows", "got 13"});
  check_invalid([&] { make(14, 15, 0); }, {"keys: expected 14 rows", "got 15"});
  check_invalid([&] { make(14, 14, 1); }, {"offset: expected 0", "got 1"});
}

}  // namespace nprf::test::attention_weights_head_weights
