// SPDX-License-Identifier: MIT
#include "nprf/attention/weights/attendance.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "attention/weights/holed_grid.hpp"
#include "nprf/attention/weights/prepared_position.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_weights_attendance {

namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

using Relative = RelativePosition<double>;

}  // namespace

TEST_CASE("a query attends to a key if the bias is not -infinity", "[attention]") {
  Vector<double> window = random_table<double>(3, 3);
  window[0] = window[2] = window[6] = minus_infinity;
  Workspace workspace;
  const Team team(workspace);
  const std::vector<std::vector<Index>> left{{}, {0}, {1}, {5}, {0, 1}, {0, 5, 9}, {2, 3, 4, 11}, {1, 12, 13}};
  const auto check = [&](const auto& weights, Index n) {
    Index wrong = 0;
    for (const std::vector<Index>& keys : left) {
      const Mask mask = mask_of(n, keys);
      const Placement placed = weights.keys(view(mask), n, workspace);
      Mask attending(n), attended(placed.count());
      weights.attendance().attending_queries(placed, attending.data(), workspace);
      weights.attendance().attended_keys(placed, attended.data(), workspace);
      for (Index i = 0; i < n; ++i) {
        bool any = false;
        for (const Index j : keys) any = any || weights.problem().bias_between(i, j) > minus_infinity;
        wrong += attending[i] != any;
      }
      for (Index j = 0; j < placed.count(); ++j) {
        bool any = false;
        for (Index i = 0; i < n; ++i)
          any = any || weights.problem().bias_between(i, placed.token_index(j)) > minus_infinity;
        wrong += attended[j] != any;
      }
    }
    CHECK(wrong == 0);
  };
  const Relative relative(window);
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    for (const Index offset : {0, 2, -2})
      check(PreparedPosition<double>(relative, {.direction = direction}, {14, 14, 4, 2}, offset, Pass::forward, team),
            14);
    const GridPosition<double> position = holed_grid(2);
    check(PreparedPosition<double>(position, {.direction = direction}, {14, 14, 4, 2}, 0, Pass::forward, team), 14);
  }
}

TEST_CASE("the largest attended size is found up to a factor of two, and never exceeded", "[attention]") {
  const Index n = 90;
  Workspace workspace;
  const Team team(workspace);
  const Vector<double> all_sizes = normal_vector<double>(n, 4).cwiseAbs();
  for (const Index hole : {2, 3, 5}) {
    Vector<double> b = Vector<double>::Zero(2 * n + 1);
    for (Index l = 0; l < b.size(); ++l)
      if (l % hole != 0) b[l] = minus_infinity;
    for (const Index period : {1, 2, 4}) {
      std::vector<Index> left;
      for (Index j = 0; j < n; j += period) left.push_back(j);
      const Mask mask = mask_of(n, left);
      const Relative position(b);
      const PreparedPosition<double> weights(position, {}, {n, n, 4, 2}, 0, Pass::forward, team);
      const Placement keys = weights.keys(view(mask), n, workspace);
      Vector<double> sizes(keys.count()), got(n);
      for (Index j = 0; j < sizes.size(); ++j) sizes[j] = all_sizes[keys.token_index(j)];
      weights.attendance().largest_attended(sizes.data(), keys, got.data(), workspace);
      Index wrong = 0;
      for (Index i = 0; i < n; ++i) {
        double largest = 0;
        for (Index j = 0; j < keys.count(); ++j)
          if (weights.problem().attends(i, keys.token_index(j))) largest = std::max(largest, sizes[j]);
        wrong += got[i] > largest || (largest > 0 && got[i] <= largest / 2);  // a power of two above half of it
      }
      INFO("every " << hole << "th lag, every " << period << "th key");
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("the lags at which marked queries attend to keys", "[attention]") {
  Vector<double> window = random_table<double>(5, 3);
  window[0] = window[2] = window[10] = minus_infinity;
  Workspace workspace;
  const Team team(workspace);
  const Relative position(window);
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const Index offset : {0, 2, -2}) {
      const PreparedPosition<double> weights(position, {.direction = direction}, {14, 11, 4, 2}, offset, Pass::forward,
                                             team);
      for (const std::vector<Index>& left :
           std::vector<std::vector<Index>>{{}, {3}, {0, 1, 2, 3, 4, 5, 6}, {2, 7, 10}}) {
        const Mask mask = mask_of(11, left);
        const Placement keys = weights.keys(view(mask), 11, workspace);
        auto attended = workspace.matrix<double>(weights.problem().lags.size(), 1);
        const auto marked = [](Index i) { return i % 5 == 1; };
        weights.attendance().attended_lags(keys, marked, attended, workspace);
        for (Index l = 0; l < attended.rows(); ++l) {
          const Index lag = weights.problem().lags.first + l;
          bool expected = false;
          for (Index i = 0; i < 14; ++i)
            for (const Index j : left)
              expected = expected || (marked(i) && j - i == lag && weights.problem().attends(i, j));
          CHECK((attended(l, 0) > 0) == expected);
        }
      }
    }
}

}  // namespace nprf::test::attention_weights_attendance
