// SPDX-License-Identifier: MIT
#include "nprf/attention/weights/prepared_position.hpp"

#include <vector>

#include "attention/weights/holed_grid.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::attention_weights_prepared_position {

namespace {

using Relative = RelativePosition<double>;

std::vector<Index> numbers(const Placement& keys) {
  std::vector<Index> all;
  for (Index j = 0; j < keys.count(); ++j) all.push_back(keys.token_index(j));
  return all;
}

std::vector<Index> slots(const Placement& keys) {
  std::vector<Index> all;
  for (Index j = 0; j < keys.slots.count; ++j) all.push_back(keys.slots[j]);
  return all;
}

}  // namespace

TEST_CASE("the keys of a call are those before its length whose mask is true", "[attention]") {
  const Relative position(random_table<double>(4, 3));
  Workspace workspace;
  const PreparedPosition<double> weights(position, {}, {5, 6, 4, 2}, 0, Pass::forward, Team(workspace));
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

  // with padding only at the end there are no arrays, so that keys are read in place
  const Mask prefix = mask_of(6, {0, 1, 2}), gap = mask_of(6, {0, 2});
  CHECK(weights.keys(view(prefix), 6, workspace).token_indices == nullptr);
  CHECK(weights.keys(view(prefix), 6, workspace).slots.at == nullptr);
  CHECK(slots(weights.keys(view(gap), 6, workspace)) == std::vector<Index>{0, 2});
}

TEST_CASE("the keys of a grid are its extra tokens, without slots, and then its cells in their slots", "[attention]") {
  const GridPosition<double> position = holed_grid(2);
  Workspace workspace;
  const PreparedPosition<double> weights(position, {}, {14, 14, 4, 2}, 0, Pass::forward, Team(workspace));
  CHECK(weights.queries().outside == 2);
  CHECK(slots(weights.queries()) == std::vector<Index>{0, 1, 2, 3, 7, 8, 9, 10, 14, 15, 16, 17});
  CHECK((weights.problem().lags.first == -17 && weights.problem().lags.last == 17));
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

TEST_CASE("Engine::grid is rejected for a position that is not a grid", "[attention]") {
  Workspace workspace;
  const Team team(workspace);
  const Relative relative(random_table<double>(4, 3));
  check_invalid(
      [&] {
        PreparedPosition<double>(relative, {.engine = Engine::grid}, {5, 6, 4, 2}, 0, Pass::forward, team);
      },
      {"engine: expected another than grid"});
}

}  // namespace nprf::test::attention_weights_prepared_position
