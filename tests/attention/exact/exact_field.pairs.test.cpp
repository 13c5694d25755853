// SPDX-License-Identifier: MIT
#include "nprf/attention/exact/exact_field.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "nprf/attention/weights/prepared_position.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::attention_exact_pairs {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// every pair of a field, for keys that are the first of `all`: its bias, or -infinity if belongs(i, token, lag) is
// false or the query does not attend to the key; and where the gradient of its bias goes. `lag` is 0 for a pair of
// which a token has no slot
template <class Belongs>
void check(const LagProblem<double>& problem, const LagProblem<double>& of_field, const Placement& all,
           const Placement& keys, const Team& team, Belongs&& belongs) {
  const Index n_q = problem.queries.count(), n_k = all.count(), outside = problem.queries.outside;
  const RowBiases<double> biases(of_field, keys, nullptr, RowSubset::all(n_q, team), team);
  std::vector<double> lags(static_cast<std::size_t>(problem.lags.size()), 0),
      border(static_cast<std::size_t>(problem.border.size()), 0), expected_lags = lags, expected_border = border;
  const BiasGradient db{lags, border};
  MatrixMap<double> share = team.workspace().matrix<double>(1, db.size());
  share.setZero();
  std::vector<double> b(static_cast<std::size_t>(keys.count()));
  for (Index i = 0; i < n_q; ++i) {
    biases.set(i, 0, keys.count(), b.data());
    const auto [begin, end] = biases.keys(i, 1);
    // far weights of a query without a slot are relative to its largest bias
    double unit = problem.weight_bias, largest = -infinity;
    if (i < outside) unit = problem.unit_bias(i);
    for (Index j = 0; j < keys.count(); ++j) {
      const Index token = keys.token_index(j);
      const bool in_slots = i >= outside && j >= keys.outside;
      const Index lag = in_slots ? keys.slots[j - keys.outside] - problem.queries.slots[i - outside] : 0;
      const double got = b[static_cast<std::size_t>(j)];
      largest = std::max(largest, got);
      if (!problem.attends(i, token) || !belongs(in_slots, lag)) {
        CHECK(got == -infinity);
        continue;
      }
      CHECK((begin <= j && j < end));
      CHECK(std::abs(got + biases.reference(i) + unit - problem.bias_between(i, token)) <= 1e-12);
      double part = 0;  // the same by another run of keys
      biases.set(i, j, 1, &part);
      CHECK(part == got);
      const double gradient = static_cast<double>(1 + i * n_k + j);
      biases.add_gradient(
          i, j, 1, [=](Index) { return gradient; }, db, share.data());
      if (in_slots)
        expected_lags[static_cast<std::size_t>(lag - problem.lags.first)] += gradient;
      else
        expected_border[static_cast<std::size_t>(problem.border.index(i, token))] += gradient;
    }
    CHECK((largest == 0 || largest == -infinity));
    CHECK(std::isfinite(biases.reference(i)));
  }
  db.add(share);
  CHECK(lags == expected_lags);
  CHECK(border == expected_border);
}

// both fields of a position
template <class P>
void check(const P& position, Index n_q, Index n_k, const AttentionOptions& options, Index offset, const Mask& mask) {
  Workspace workspace;
  const Team team(workspace);
  const PreparedPosition<double> prepared(position, options, {n_q, n_k, 4, 3}, offset, Pass::forward, team);
  const LagProblem<double>& problem = prepared.problem();
  const Placement keys = prepared.keys(view(mask), n_k, workspace);
  const auto is_near = [&](bool in_slots, Index lag) { return in_slots && problem.near.contains(lag); };
  check(problem, near_pairs(problem, workspace), keys, keys, team, is_near);
  const Placement sinks = keys.first(options.sinks);
  CHECK(sinks.count() == problem.sinks_of(keys));
  check(problem, sink_pairs(problem, workspace), keys, sinks, team,
        [&](bool in_slots, Index lag) { return !is_near(in_slots, lag); });
}

}  // namespace

TEST_CASE("fields have the near pairs, and the first keys that take part without near pairs", "[attention]") {
  constexpr Index n = 19;
  Vector<double> table = random_table<double>(n, 1);
  table[n + 3] = table[n - 5] = -infinity;
  Mask mask = Mask::Constant(n, true), prefix = Mask::Constant(n, true);
  for (Index j = 0; j < n; ++j) mask[j] = j % 4 != 1, prefix[j] = j > 4;
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const auto& [near, sinks] : {std::pair<Index, Index>{0, 1}, {1, 4}, {3, 4}, {50, 3}, {2, 40}})
      for (const Mask& keys : {Mask(), mask, prefix}) {
        const AttentionOptions options{.direction = direction, .near = near, .sinks = sinks};
        for (const Index offset : {-25, -3, 0, 6, 40, 60})
          check(RelativePosition<double>(table), 15, n, options, offset, keys);
        check(RelativePosition<double>(table), n, n, options, 0, keys);
      }
}

TEST_CASE("fields of a grid have near cells, and its extra tokens first", "[attention]") {
  constexpr Index E = 3, n = E + 20;
  Matrix<double> extra = normal<double>(E, E + 2, 2);
  extra(0, 1) = 20, extra(1, 2) = extra(2, 0) = -infinity;
  Mask mask = Mask::Constant(n, true);
  for (Index j = 0; j < n; ++j) mask[j] = j % 4 != 1;
  const GridPosition<double> grid(4, 5, normal<double>(7, 9, 3), extra);
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const auto& [near, sinks] : {std::pair<Index, Index>{0, 2}, {1, 5}, {2, 30}, {9, 1}})
      for (const Mask& keys : {Mask(), mask})
        check(grid, n, n, {.direction = direction, .near = near, .sinks = sinks}, 0, keys);
}

TEST_CASE("fields without any bias above -infinity have no weight", "[attention]") {
  const RelativePosition<double> never(Vector<double>(Vector<double>::Constant(9, -infinity)));
  check(never, 5, 5, {.near = 2, .sinks = 2}, 0, {});
  check(never, 5, 0, {.near = 2, .sinks = 2}, 0, {});
  const GridPosition<double> grid(2, 2, Matrix<double>::Constant(3, 3, -infinity),
                                  Matrix<double>::Constant(1, 3, -infinity));
  check(grid, 5, 5, {.near = 2, .sinks = 2}, 0, {});
}

}  // namespace nprf::test::attention_exact_pairs
