// SPDX-License-Identifier: MIT

#include "nprf/attention/exact/field_biases.hpp"

#include <limits>
#include <vector>

#include "nprf/attention/weights/prepared_position.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::attention_exact_near_biases {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// every pair of a prepared position: the bias of a near pair, and -infinity for others
template <class P>
void check(const P& position, Index n_q, Index n_k, const AttentionOptions& options, Index offset, const Mask& mask) {
  Workspace workspace;
  const Team team(workspace);
  const PreparedPosition<double> prepared(position, options, {n_q, n_k, 4, 3}, offset, Pass::forward, team);
  const LagProblem<double>& problem = prepared.problem();
  const Placement keys = prepared.keys(view(mask), n_k, workspace);
  const NearBiases<double> biases(problem, keys, workspace);
  const Placement& queries = problem.queries;
  std::vector<double> b(static_cast<std::size_t>(keys.count()));
  double largest = -infinity;
  for (Index i = 0; i < n_q; ++i) {
    biases.set(i, 0, keys.count(), b.data());
    const auto [begin, end] = biases.keys(i, 1);
    for (Index j = 0; j < keys.count(); ++j) {
      const Index token = keys.token_index(j);
      const bool in_slots = i >= queries.outside && j >= keys.outside;
      const Index lag = in_slots ? keys.slots[j - keys.outside] - queries.slots[i - queries.outside] : 0;
      const bool is_near = in_slots && problem.near.contains(lag) && problem.attends(i, token);
      const double got = b[static_cast<std::size_t>(j)];
      CHECK((got > -infinity) == is_near);
      if (!is_near) continue;
      CHECK((begin <= j && j < end));
      CHECK(std::abs(got + biases.reference(i) + problem.weight_bias - problem.bias_between(i, token)) <= 1e-12);
      largest = std::max(largest, got);
      double part = 0;  // the same by another run of keys
      biases.set(i, j, 1, &part);
      CHECK(part == got);
    }
    const auto near = static_cast<Index>(std::ranges::count_if(b, [](double x) { return x > -infinity; }));
    std::vector<double> db(static_cast<std::size_t>(biases.lags().size()), 0);
    const std::vector<double> ones(static_cast<std::size_t>(keys.count()), 1);
    biases.add_gradient(i, 0, keys.count(), ones.data(), {}, db.data());
    double sum = 0;
    for (const double x : db) sum += x;
    CHECK(sum >= static_cast<double>(near));
  }
  CHECK(biases.empty() == (largest == -infinity));
  if (!biases.empty()) CHECK(largest <= 0);
}

}  // namespace

TEST_CASE("near biases are those of the near pairs of a position", "[attention]") {
  Mask mask = Mask::Constant(19, true);
  for (Index j = 0; j < 19; ++j) mask[j] = j % 4 != 1;
  Vector<double> table = random_table<double>(20, 1);
  table[22] = -infinity;
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const Index near : {1, 4, 50})
      for (const Index offset : {-25, -3, 0, 6, 40})
        for (const Mask& keys : {Mask(), mask})
          check(RelativePosition<double>(table), 15, 19, {.direction = direction, .near = near}, offset, keys);
}

TEST_CASE("near biases of a grid are those of near cells", "[attention]") {
  constexpr Index height = 4, width = 5, E = 2, n = E + height * width;
  const GridPosition<double> grid(height, width, normal<double>(7, 9, 2), normal<double>(E, E + 2, 3));
  Mask mask = Mask::Constant(n, true);
  for (Index j = 0; j < n; ++j) mask[j] = j % 4 != 1;
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const Index near : {1, 2, 9})
      for (const Mask& keys : {Mask(), mask}) check(grid, n, n, {.direction = direction, .near = near}, 0, keys);
}

}  // namespace nprf::test::attention_exact_near_biases
