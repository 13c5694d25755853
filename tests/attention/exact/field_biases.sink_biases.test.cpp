// SPDX-License-Identifier: MIT

#include "nprf/attention/exact/field_biases.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "nprf/attention/weights/prepared_position.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::attention_exact_sink_biases {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// every pair of a prepared position: the bias of a sink that is not near, and -infinity for others; and where the
// gradient of its bias goes
template <class P>
void check(const P& position, Index n_q, Index n_k, const AttentionOptions& options, Index offset, const Mask& mask) {
  Workspace workspace;
  const Team team(workspace);
  const PreparedPosition<double> prepared(position, options, {n_q, n_k, 4, 3}, offset, Pass::forward, team);
  const LagProblem<double>& problem = prepared.problem();
  const Placement keys = prepared.keys(view(mask), n_k, workspace);
  const SinkBiases<double> biases(problem, keys, workspace);
  const Index sinks = std::min(options.sinks, keys.count()), outside = problem.queries.outside;
  REQUIRE(biases.empty() == (sinks == 0));
  REQUIRE(biases.keys(0, n_q).begin == 0);
  REQUIRE(biases.keys(0, n_q).end == sinks);
  std::vector<double> lags(static_cast<std::size_t>(problem.lags.size()), 0),
      border(static_cast<std::size_t>(problem.border.size()), 0), expected_lags = lags, expected_border = border;
  const BiasGradient db{lags, border};
  MatrixMap<double> share = workspace.matrix<double>(1, biases.gradient_size(db));
  share.setZero();
  for (Index i = 0; i < n_q; ++i) {
    std::vector<double> b(static_cast<std::size_t>(sinks));
    biases.set(i, 0, sinks, b.data());
    // far weights of a query without a slot are relative to its largest bias
    double unit = problem.weight_bias, largest = -infinity;
    if (i < outside) {
      unit = -infinity;
      for (Index j = 0; j < n_k; ++j) unit = std::max(unit, problem.bias_between(i, j));
    }
    for (Index j = 0; j < sinks; ++j) {
      const Index token = keys.token_index(j);
      const bool in_slots = i >= outside && j >= keys.outside;
      const Index lag = in_slots ? keys.slots[j - keys.outside] - problem.queries.slots[i - outside] : 0;
      const double got = b[static_cast<std::size_t>(j)], bias = problem.bias_between(i, token);
      largest = std::max(largest, got);
      if (!problem.attends(i, token) || (in_slots && problem.near.contains(lag))) {
        CHECK(got == -infinity);
        continue;
      }
      CHECK(std::abs(got + biases.reference(i) + unit - bias) <= 1e-12);
      double part = 0;  // the same by another run of keys
      biases.set(i, j, 1, &part);
      CHECK(part == got);
      const double gradient = static_cast<double>(1 + i * n_k + j);
      biases.add_gradient(i, j, 1, &gradient, db, share.data());
      if (in_slots)
        expected_lags[static_cast<std::size_t>(lag - problem.lags.first)] += gradient;
      else
        expected_border[static_cast<std::size_t>(problem.border.index(i, token))] += gradient;
    }
    CHECK((largest == 0 || largest == -infinity));
    CHECK(std::isfinite(biases.reference(i)));
  }
  biases.add_shares(share, db);
  CHECK(lags == expected_lags);
  CHECK(border == expected_border);
  CHECK(biases.gradient_size({{}, {}}) == 0);
}

}  // namespace

TEST_CASE("sinks are the first keys that take part, without near pairs", "[attention]") {
  constexpr Index n = 17;
  Vector<double> b = random_table<double>(n, 1);
  b[n + 3] = b[n - 5] = -infinity;
  Mask mask = Mask::Constant(n, true), prefix = Mask::Constant(n, true);
  for (Index j = 0; j < n; ++j) mask[j] = j % 4 != 0, prefix[j] = j > 4;
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const auto& [near, sinks] : {std::pair<Index, Index>{0, 1}, {0, 4}, {3, 4}, {40, 3}, {2, 40}}) {
      const AttentionOptions options{.direction = direction, .near = near, .sinks = sinks};
      for (const Mask& of : {Mask(), mask, prefix}) {
        check(RelativePosition<double>(b), n, n, options, 0, of);
        check(RelativePosition<double>(b), 9, n, options, -4, of);
        check(RelativePosition<double>(b), 9, n, options, 60, of);
      }
    }
}

TEST_CASE("sinks of a grid are its extra tokens first", "[attention]") {
  constexpr Index E = 3, n = E + 20;
  Matrix<double> extra = normal<double>(E, E + 2, 2);
  extra(0, 1) = 20, extra(1, 2) = extra(2, 0) = -infinity;
  Mask mask = Mask::Constant(n, true);
  mask[1] = mask[4] = false;
  const GridPosition<double> grid(4, 5, normal<double>(7, 9, 3), extra);
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const auto& [near, sinks] : {std::pair<Index, Index>{0, 2}, {0, 5}, {2, 30}})
      for (const Mask& of : {Mask(), mask})
        check(grid, n, n, {.direction = direction, .near = near, .sinks = sinks}, 0, of);
}

TEST_CASE("sinks without any bias above -infinity have no weight", "[attention]") {
  const RelativePosition<double> never(Vector<double>(Vector<double>::Constant(9, -infinity)));
  check(never, 5, 5, {.sinks = 2}, 0, {});
  check(never, 5, 0, {.sinks = 2}, 0, {});
  const GridPosition<double> grid(2, 2, Matrix<double>::Constant(3, 3, -infinity),
                                  Matrix<double>::Constant(1, 3, -infinity));
  check(grid, 5, 5, {.sinks = 2}, 0, {});
}

}  // namespace nprf::test::attention_exact_sink_biases
