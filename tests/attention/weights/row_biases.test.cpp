// SPDX-License-Identifier: MIT
#include "nprf/attention/weights/row_biases.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "nprf/position/alibi.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"

namespace nprf::test::attention_weights_row_biases {

namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

// calls body(weights, keys) for positions and masks of n tokens
template <class Body>
void for_each_case(Body&& body) {
  const Index n = 14;
  Workspace workspace;
  const Team team(workspace);
  Vector<double> b = random_table<double>(n, 3);
  b[n + 2] = b[n - 6] = minus_infinity;
  const RelativePosition<double> relative(b);
  const Mask mask = (normal_vector<double>(n, 90).array() > -0.5).eval();
  const auto with = [&](const auto& position, Index offset) {
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      const PreparedPosition<double> weights(position, {.direction = direction}, {n, n, 4, 2}, offset, Pass::forward,
                                             team);
      for (const auto key_mask : {std::span<const bool>(), view(mask)})
        for (const Index length : {n, Index{5}}) body(weights, weights.keys(key_mask, length, workspace));
    }
  };
  for (const Index offset : {0, 3, -2}) with(relative, offset);
  with(GridPosition<double>(2, 7, normal<double>(3, 13, 1)), 0);
  with(GridPosition<double>(3, 4, normal<double>(5, 7, 1), normal<double>(2, 4, 2)), 0);
}

}  // namespace

TEST_CASE("the bias of a pair is that of the position plus the key's log-scale", "[attention]") {
  Index pairs = 0;
  for_each_case([&](const PreparedPosition<double>& weights, const Placement& keys) {
    Workspace workspace;
    const Team team(workspace);
    const Index n_k = keys.count(), n_q = weights.queries().count();
    const Vector<double> log_scales = normal_vector<double>(n_k, 5);
    const RowSubset rows = RowSubset::all(n_q, team);
    const RowBiases<double> bias(weights.problem(), keys, nullptr, rows, team),
        scaled(weights.problem(), keys, log_scales.data(), rows, team);
    for (Index i = 0; i < n_q; ++i) {
      const auto [first, end] = bias.keys(i, 1);
      Vector<double> expected(n_k);
      for (Index j = 0; j < n_k; ++j) expected[j] = weights.problem().bias_between(i, keys.token_index(j));
      const Vector<double> sums = expected + log_scales;
      const double most = expected.maxCoeff(), most_sum = sums.maxCoeff();
      for (Index j = 0; j < n_k; ++j) {
        pairs += expected[j] > minus_infinity;
        if (j < first || j >= end) CHECK(expected[j] == minus_infinity);
        for (const Index count : {Index{1}, n_k - j}) {
          Vector<double> b(count), r(count);
          bias.set(i, j, count, b.data());
          if (most > minus_infinity) scaled.set(i, j, count, r.data());
          for (const Index k : {Index{0}, count - 1}) {
            // differences of numbers below 8, and sums of two of them
            const auto is = [&](double got, double wanted) {
              return expected[j + k] > minus_infinity ? std::abs(got - wanted) <= 64 * epsilon<double>
                                                      : got == minus_infinity;
            };
            CHECK(is(b[k], expected[j + k] - most));
            if (most > minus_infinity) CHECK(is(r[k], sums[j + k] - most_sum));
          }
        }
      }
    }
  });
  CHECK(pairs > 1000);
}

TEST_CASE("differences of biases far from zero are precise", "[attention]") {
  // ALiBi far from lag 0, and so steep that biases have no fractional bits
  const Index n = 9;
  Workspace workspace;
  const Team team(workspace);
  for (const auto& [slope, offset] : {std::pair(0.37, Index{1} << 40), std::pair(1e18, Index{3})}) {
    const AlibiPosition<double> alibi(slope);
    const PreparedPosition<double> weights(alibi, {}, {n, n, 4, 2}, offset, Pass::forward, team);
    const Placement keys = weights.keys({}, n, workspace);
    const RowBiases<double> bias(weights.problem(), keys, nullptr, RowSubset::all(n, team), team);
    for (Index i = 0; i < n; ++i) {
      Vector<double> b(n);
      bias.set(i, 0, n, b.data());
      const auto distance = [i, offset = offset](Index j) { return std::abs(j - i - offset); };
      Index nearest = distance(0);
      for (Index j = 1; j < n; ++j) nearest = std::min(nearest, distance(j));
      for (Index j = 0; j < n; ++j) {
        const double expected = -slope * static_cast<double>(distance(j) - nearest);
        // differences of multiples of the slope
        CHECK(std::abs(b[j] - expected) <= epsilon<double> * (std::abs(expected) + 16));
      }
    }
  }
}

TEST_CASE("biases of cells beside an extra token's are precise, however large those of other queries are",
          "[attention]") {
  Workspace workspace;
  const Team team(workspace);
  Matrix<double> b = normal<double>(3, 13, 1);
  b(2, 12) = 1e9;  // of the first cell and the last one
  const GridPosition<double> grid(2, 7, b, Matrix<double>::Constant(1, 3, 8));
  const Index n = grid.tokens();
  const PreparedPosition<double> weights(grid, {}, {n, n, 4, 2}, 0, Pass::forward, team);
  const Placement keys = weights.keys({}, n, workspace);
  const RowBiases<double> bias(weights.problem(), keys, nullptr, RowSubset::all(n, team), team);
  for (Index i = 2; i < n; ++i) {
    Vector<double> got(n);
    bias.set(i, 0, n, got.data());
    for (Index j = 0; j < n; ++j) CHECK(std::abs(got[j] - (grid.bias(i, j) - 8)) <= 16 * epsilon<double>);
  }
}

TEST_CASE("the gradient of a pair is added to that of its lag or of its entry of the border", "[attention]") {
  for_each_case([&](const PreparedPosition<double>& weights, const Placement& keys) {
    Workspace workspace;
    const Team team(workspace);
    const RowBiases<double> bias(weights.problem(), keys, nullptr, RowSubset::all(weights.queries().count(), team),
                                 team);
    const Index n_k = keys.count(), E = weights.problem().border.count;
    const LagRange lags = weights.problem().lags;
    Vector<double> at_lags = Vector<double>::Zero(lags.size()), at_border = Vector<double>::Zero(E * (E + 2));
    Vector<double> expected_lags = at_lags, expected_border = at_border;
    const auto share = [](Index i, Index j) { return static_cast<double>(100 * i + j); };
    for (Index i = 0; i < weights.queries().count(); ++i) {
      bias.add_gradient(
          i, 0, n_k, [&](Index k) { return share(i, k); }, at_lags.data(), at_border.data());
      for (Index j = 0; j < n_k; ++j) {
        const Index key = keys.token_index(j);
        if (i < E || key < E)
          expected_border[weights.problem().border.index(i, key)] += share(i, j);
        else
          expected_lags[keys.slots[j - keys.outside] - weights.queries().slots[i - E] - weights.problem().lags.first] +=
              share(i, j);
      }
    }
    CHECK(at_lags == expected_lags);
    CHECK(at_border == expected_border);
    // the gradients of lags may be not requested
    double* nowhere = nullptr;
    bias.add_gradient(
        0, 0, n_k, [](Index) { return 1.0; }, nowhere, at_border.data());
  });
}

}  // namespace nprf::test::attention_weights_row_biases
