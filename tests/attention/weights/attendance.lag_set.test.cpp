// SPDX-License-Identifier: MIT
#include "nprf/attention/weights/attendance.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "nprf/core/lag_bias.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::attention_weights_lag_set {

namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

LagBias<double> table(Index first, std::vector<double> b) {
  return {first, Eigen::Map<Vector<double>>(b.data(), static_cast<Index>(b.size()))};
}

// the number of entries in which connect() and connect_transposed() differ from a loop over pairs
Index wrong(const LagBias<double>& bias, Index slots_q, Index slots_k, const Slots& queries, const Slots& keys,
            Index offset, Direction direction, const Matrix<double>& marks) {
  Workspace workspace;
  const LagRange lags = reachable_lags(slots_q, slots_k, offset, direction);
  const LagSet set(
      {lags.first + offset, lags.last + offset}, [&](Index lag) { return bias[lag - offset] > minus_infinity; },
      workspace);
  const auto attends = [&](Index s, Index t) {
    const Index distance = t - s - offset;
    return (direction == Direction::bidirectional || distance <= 0) && bias[distance] > minus_infinity;
  };
  const Index p = marks.cols();
  Index wrong = 0;
  auto X = workspace.matrix<double>(slots_k, p), any = workspace.matrix<double>(queries.count, p);
  X.setZero();
  for (Index j = 0; j < keys.count; ++j) X.row(keys[j]) = marks.row(j);
  set.connect(queries, X, any, workspace);
  for (Index i = 0; i < queries.count; ++i)
    for (Index c = 0; c < p; ++c) {
      double expected = 0;
      for (Index j = 0; j < keys.count; ++j)
        if (attends(queries[i], keys[j])) expected = std::max(expected, marks(j, c));
      wrong += any(i, c) != expected;
    }
  auto Q = workspace.matrix<double>(slots_q, p), by_any = workspace.matrix<double>(keys.count, p);
  Q.setZero();
  for (Index i = 0; i < queries.count; ++i) Q.row(queries[i]) = marks.row(i);
  set.connect_transposed(keys, Q, by_any, workspace);
  for (Index j = 0; j < keys.count; ++j)
    for (Index c = 0; c < p; ++c) {
      double expected = 0;
      for (Index i = 0; i < queries.count; ++i)
        if (attends(queries[i], keys[j])) expected = std::max(expected, marks(i, c));
      wrong += by_any(j, c) != expected;
    }
  return wrong;
}

// zeros and ones, of which about `part` are ones
Matrix<double> random_marks(Index rows, Index cols, double part, std::uint64_t seed) {
  const double below = std::sqrt(2.0) * part;  // approximately
  return (normal<double>(rows, cols, seed).array().abs() < below).cast<double>();
}

}  // namespace

TEST_CASE("a set of lags connects queries with keys in the direction whose bias is not -infinity", "[attention]") {
  std::vector<LagBias<double>> biases{
      table(0, {0}),                                                      // all keys
      table(0, {minus_infinity}),                                         // none
      table(-2, {minus_infinity, 1, 2, 3, minus_infinity}),               // a window
      table(-1, {0, minus_infinity, 0}),                                  // all but lag 0
      table(-4, {5, minus_infinity, minus_infinity, 5, minus_infinity}),  // the past, with a hole
      table(3, {minus_infinity, 0}),                                      // from 4 tokens ahead
      table(-6, {0, minus_infinity, -1000}),                              // clipped at -4
  };
  biases.push_back(table(0, {0}));  // ALiBi
  biases.back().slope_before = biases.back().slope_after = -3;

  // tokens without gaps, from slot 0 or a later one, and tokens with gaps
  const std::vector<Index> gaps{0, 2, 3, 7, 12}, one{4}, last{12};
  const auto at = [](const std::vector<Index>& slots, Index n) {
    const auto end = std::ranges::lower_bound(slots, n);
    return Slots{static_cast<Index>(end - slots.begin()), 0, slots.data()};
  };
  const Matrix<double> all = Matrix<double>::Ones(13, 1), some = random_marks(13, 3, 0.3, 5);
  for (std::size_t kind = 0; kind < biases.size(); ++kind)
    for (const auto& [n_q, n_k] :
         std::vector<std::pair<Index, Index>>{{1, 1}, {5, 5}, {1, 9}, {9, 1}, {4, 13}, {13, 4}, {0, 3}, {3, 0}})
      for (const Direction direction : {Direction::bidirectional, Direction::causal})
        for (const Index offset : {0, 1, 3, 20, -1, -3, -20})
          for (const Slots& keys :
               {Slots{n_k}, Slots{n_k - n_k / 2, n_k / 2}, Slots{0}, at(gaps, n_k), at(one, n_k), at(last, n_k)})
            for (const Slots& queries : {Slots{n_q}, at(gaps, n_q)}) {
              INFO("bias " << kind << " n_q " << n_q << " n_k " << n_k << " offset " << offset << " keys " << keys.count
                           << (keys.at ? " with gaps" : "") << (direction == Direction::causal ? " causal" : ""));
              CHECK(wrong(biases[kind], n_q, n_k, queries, keys, offset, direction, all) == 0);
              CHECK(wrong(biases[kind], n_q, n_k, queries, keys, offset, direction, some) == 0);
            }
}

TEST_CASE("few and many runs of lags and of keys", "[attention]") {
  const Index n_q = 700, n_k = 900;
  std::vector<Index> every_third;
  for (Index t = 1; t < n_q; t += 3) every_third.push_back(t);
  const Slots gaps{static_cast<Index>(every_third.size()), 0, every_third.data()};
  for (const double lags : {0.0, 0.003, 0.3})
    for (const double keys : {0.0, 0.003, 0.3})
      for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
        INFO(lags << " of lags, " << keys << " of keys");
        // random single lags, with and without a window
        for (const bool window : {false, true}) {
          if (NPRF_TEST_SANITIZED && window != (direction == Direction::causal)) continue;
          std::vector<double> b(static_cast<std::size_t>(n_q + n_k - 1), minus_infinity);
          const Matrix<double> attended = random_marks(n_q + n_k - 1, 1, lags, 7);
          for (std::size_t l = 0; l < b.size(); ++l)
            if (attended(static_cast<Index>(l), 0) > 0 || (window && l > 650 && l < 690)) b[l] = 1;
          Matrix<double> marks = random_marks(n_k, NPRF_TEST_SANITIZED ? 5 : 10, keys, 8);
          marks.col(3).setZero();
          marks.col(4).setOnes();
          CHECK(wrong(table(-(n_q - 1), b), n_q, n_k, {n_q}, {n_k}, 0, direction, marks) == 0);
          CHECK(wrong(table(-(n_q - 1), b), n_q, n_k, gaps, {n_k / 2, 5}, 0, direction, marks) == 0);
        }
      }
}

TEST_CASE("every second lag and every second key", "[attention]") {
  const Index n = 200000;  // a loop over pairs would take minutes
  Workspace workspace;
  const LagSet set(
      {-(n - 1), n - 1}, [](Index lag) { return lag % 2 == 0; }, workspace);
  auto X = workspace.matrix<double>(n, 2), any = workspace.matrix<double>(n, 2);
  X.setZero();
  for (Index t = 1; t < n; t += 2) X(t, 0) = 1;
  X(n / 2, 1) = 1;
  set.connect({n}, X, any, workspace);
  Index wrong = 0;
  for (Index i = 0; i < n; ++i) wrong += any(i, 0) != static_cast<double>(i % 2) || any(i, 1) == any(i, 0);
  CHECK(wrong == 0);
}

TEST_CASE("the longest run of lags in the set", "[attention]") {
  const auto longest = [](const std::vector<double>& b, LagRange lags) {
    Workspace workspace;
    const LagBias<double> bias = table(-2, b);
    const LagRange run = LagSet(
                             lags, [&](Index lag) { return bias[lag] > minus_infinity; }, workspace)
                             .longest_run();
    return std::pair(run.first, run.last);
  };
  const LagRange all{-2, 2};
  CHECK(longest({0, 0, 0, 0, 0}, all) == std::pair<Index, Index>(-2, 2));
  CHECK(longest({0, 0, minus_infinity, 0, 0}, all) == std::pair<Index, Index>(-2, -1));
  CHECK(longest({0, minus_infinity, 0, 0, 0}, all) == std::pair<Index, Index>(0, 2));
  CHECK(longest({minus_infinity, 0, 0, minus_infinity, 0}, all) == std::pair<Index, Index>(-1, 0));
  CHECK(longest({minus_infinity, 0, minus_infinity, 0, minus_infinity}, all) == std::pair<Index, Index>(-1, -1));
  CHECK(longest({0, 0, minus_infinity, 0, 0}, {-7, 2}) == std::pair<Index, Index>(-7, -1));
  CHECK(longest({minus_infinity, minus_infinity, minus_infinity, minus_infinity, minus_infinity}, all) ==
        std::pair<Index, Index>(0, -1));
}

}  // namespace nprf::test::attention_weights_lag_set
