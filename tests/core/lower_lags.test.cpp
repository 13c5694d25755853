// SPDX-License-Identifier: MIT
#include "nprf/core/lower_lags.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <vector>

#include "nprf/core/workspace.hpp"
#include "support/catch.hpp"

namespace nprf::test::core_lower_lags {

namespace {

constexpr double never = LagProblem<double>::minus_infinity;

/// Memory that needs no matrix library.
struct Storage {
  template <class U>
  U* take(Index count) {
    memory.push_back(std::make_unique<std::byte[]>(sizeof(U) * static_cast<std::size_t>(count)));
    return reinterpret_cast<U*>(memory.back().get());
  }
  std::vector<std::unique_ptr<std::byte[]>> memory;
};

}  // namespace

TEST_CASE("lags are differences of slots, and the direction allows those up to the offset", "[core]") {
  const LagProblem<double> x = problem_without_biases<double>(Slots{3}, Slots{9}, Direction::causal, 1, {-4, 4});
  CHECK((x.query_slots == 3 && x.key_slots == 9));
  CHECK((x.lags.first == -2 && x.lags.last == 8));
  CHECK((x.reach.first == -2 && x.reach.last == 1));
  CHECK((x.table.first == -3 && x.table.last == 5));
  const Index slots[] = {0, 1, 5, 6};  // two rows of two cells
  const Placement cells({4, 0, slots}, 2);
  const LagProblem<double> grid = problem_without_biases<double>(cells, cells, Direction::bidirectional, 0, {-7, 7});
  CHECK((grid.query_slots == 7 && grid.lags.first == -6 && grid.lags.last == 6 && grid.reach.size() == 13));
}

TEST_CASE("weights are the same whatever the tables are stored in", "[core]") {
  const std::vector<double> table{0.5, -1, 2, 0, 1}, extra{1, -2, 0.5, 3, 0, 0.25, -1, never};
  const Index slots[] = {0, 1, 5, 6};
  const Placement cells({4, 0, slots}, 2);
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const double slope : {0.0, -0.5}) {
      const LagBiasView<double> bias{-2, table.data(), 5, slope, slope};
      LagProblem<double> x = problem_without_biases<double>(cells, cells, direction, 0, {-2, 2}), y = x;
      Storage storage;
      Workspace workspace;
      add_biases_and_weights(x, bias, extra.data(), Pass::backward, storage);
      add_biases_and_weights(y, bias, extra.data(), Pass::backward, workspace);
      CHECK(std::equal(x.biases, x.biases + x.lags.size(), y.biases));
      CHECK(std::equal(x.weights.values, x.weights.values + x.weights.size, y.weights.values));
      for (Index lag = x.lags.first; lag <= x.lags.last; ++lag) {
        const bool attended = direction == Direction::bidirectional || lag <= 0;
        CHECK(x.bias(lag) == (attended ? bias[lag] : never));
      }
      // of cells, relative to the largest of all pairs with a query that is a cell; extra(0, 1) = -2, extra(1, 1) =
      // 0.25
      const double largest = std::max(x.largest_bias, 0.25);
      for (Index lag = x.reach.first; lag <= x.reach.last; ++lag)
        CHECK(x.weights[lag] == std::exp((bias[lag] - x.largest_bias) + (x.largest_bias - largest)));
      CHECK(x.border(5, 1) == std::exp(0.25 - largest));
      CHECK((x.border(1, 1) == 0 && !x.attends(1, 1)));
      // of a token without a slot, relative to the largest of its own row; a causal one attends to none that are later
      const bool causal = direction == Direction::causal;
      CHECK(x.border(0, 0) == std::exp(0.5 - (causal ? 0.5 : 3)));
      CHECK(x.border(0, 1) == (causal ? 0 : 1));
      CHECK(x.border(0, 3) == (causal ? 0 : std::exp(1.0 - 3)));
      const Index beyond = std::max<Index>(x.reach.last - 2, 0);
      CHECK((x.weights.tails.before == 4 && x.weights.tails.after == beyond));
      CHECK(x.weights.tails.slope_before == slope);
    }
}

TEST_CASE("runs of equal weights are tails in the forward pass alone", "[core]") {
  const std::vector<double> table{1, 1, 1, 0, 2, 2};
  const LagBiasView<double> bias{-3, table.data(), 6, 0, 0};
  Storage storage;
  LagProblem<double> x = problem_without_biases<double>(Slots{6}, Slots{6}, Direction::bidirectional, 0, {-3, 2}),
                     y = x;
  add_biases_and_weights(x, bias, static_cast<const double*>(nullptr), Pass::forward, storage);
  add_biases_and_weights(y, bias, static_cast<const double*>(nullptr), Pass::backward, storage);
  CHECK((x.weights.tails.before == 4 && x.weights.tails.after == 4));
  CHECK((y.weights.tails.before == 2 && y.weights.tails.after == 3));
}

}  // namespace nprf::test::core_lower_lags
