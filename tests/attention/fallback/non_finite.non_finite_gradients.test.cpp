// SPDX-License-Identifier: MIT
#include "nprf/attention/fallback/non_finite.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "nprf/position/grid.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_fallback_non_finite_gradients {

namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN(),
                 minus_infinity = -std::numeric_limits<double>::infinity();

// With G = 1 except for the non-finite entries (rows, column), and gradients of 1: whether exactly those gradients
// become NaN that depend on these entries in the formula.
template <class P>
void check(const P& position, Direction direction, Index n, const std::vector<Index>& rows, Index column) {
  constexpr Index r = 3, d_v = 10;  // more columns than are processed at a time
  Workspace workspace;
  const Team team(workspace);
  const PreparedPosition<double> weights(position, {.direction = direction}, {n, n, r, d_v + 1}, 0, Pass::backward,
                                         team);
  const Placement& keys = weights.queries();
  auto G = workspace.matrix<double>(n, d_v + 1);
  G.setOnes();
  for (const Index i : rows) G(i, column) = nan;
  const auto is_non_finite = [&](Index i) { return std::ranges::find(rows, i) != rows.end(); };
  const NonFiniteGradients<double> non_finite(
      weights, keys, G, [&](Index i) { return !is_non_finite(i); }, team);
  for (Index i = 0; i < n; ++i)
    for (Index p = 0; p <= d_v; ++p) CHECK(G(i, p) == (is_non_finite(i) && p == column ? 0 : 1));

  auto dA = workspace.matrix<double>(n, r), dB = workspace.matrix<double>(n, r),
       dU = workspace.matrix<double>(n, d_v + 1);
  for (auto* each : {&dA, &dB, &dU}) each->setOnes();
  const LagRange lags = weights.problem().lags;
  const Index E = weights.problem().border.count;
  std::vector<double> db(static_cast<std::size_t>(lags.size()), 1), border(static_cast<std::size_t>(E * (E + 2)), 1);
  non_finite.propagate(dA, dB, dU, {db, border}, team);

  std::vector<bool> lag_is_attended(db.size()), border_is_attended(border.size());
  Index wrong = 0;
  for (Index j = 0; j < n; ++j) {
    bool attended = false;
    for (const Index i : rows) {
      if (!weights.problem().attends(i, j)) continue;
      attended = true;
      if (i >= E && j >= E)
        lag_is_attended[static_cast<std::size_t>(keys.slots[j - E] - keys.slots[i - E] - lags.first)] = true;
      else
        border_is_attended[static_cast<std::size_t>(weights.problem().border.index(i, j))] = true;
    }
    wrong += dA.row(j).array().isNaN().any() != is_non_finite(j);
    wrong += dB.row(j).array().isNaN().all() != attended || dB.row(j).array().isNaN().any() != attended;
    for (Index p = 0; p < d_v; ++p) wrong += std::isnan(dU(j, p)) != (attended && p == column);
  }
  for (std::size_t l = 0; l < db.size(); ++l) wrong += std::isnan(db[l]) != lag_is_attended[l];
  for (std::size_t e = 0; e < border.size(); ++e) wrong += std::isnan(border[e]) != border_is_attended[e];
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("non-finite gradients propagate to the query and to the keys and lags that it attends to", "[attention]") {
  Vector<double> b = random_table<double>(19, 3);
  b[19 - 2] = b[19 - 5] = minus_infinity;
  const RelativePosition<double> table(b);
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const Index column : {0, 4, 9})
      for (const std::vector<Index>& rows : std::vector<std::vector<Index>>{{}, {0}, {7}, {3, 4, 18}})
        check(table, direction, 20, rows, column);
}

TEST_CASE("non-finite gradients propagate to the biases of a grid's extra tokens", "[attention]") {
  for (const Index E : {0, 2}) {
    Matrix<double> b = normal<double>(5, 7, 1), extra = normal<double>(E, E + 2, 2);
    b(0, 0) = b(2, 4) = minus_infinity;
    if (E > 0) extra(0, 0) = minus_infinity;
    const GridPosition<double> grid(3, 4, b, extra);
    for (const std::vector<Index>& rows : std::vector<std::vector<Index>>{{0}, {5}, {1, 11}})
      check(grid, Direction::bidirectional, 12 + E, rows, 2);
  }
}

}  // namespace nprf::test::attention_fallback_non_finite_gradients
