// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/plan/choose.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/product.hpp"

namespace nprf::test::toeplitz_plan_row_balance {

namespace {

// the smallest of the rows' sums over the largest
double row_balance(LagWeightsView<double> c, const Slots& queries, const Slots& keys, Workspace& workspace) {
  const Workspace::Scope scope(workspace);
  const auto sums = toeplitz::row_sums(c, queries, keys, workspace);
  const auto [smallest, largest] = std::minmax_element(sums.begin(), sums.end());
  return *largest > 0 ? *smallest / *largest : 0;
}

}  // namespace

TEST_CASE("the balance of rows is that of the sums of their weights", "[toeplitz]") {
  Workspace workspace;
  for (const auto& [n_q, n_k] :
       std::vector<std::pair<Index, Index>>{{7, 4}, {4, 7}, {1, 5}, {5, 1}, {1, 1}, {30, 30}}) {
    LagWeights<double> c = random_weights<double>(n_q, n_k, 1);
    for (const Index shift : {0, 1, -2}) {  // a table that does not begin at the first lag
      c.first = -(n_q - 1) + shift;
      double smallest = std::numeric_limits<double>::infinity(), largest = 0;
      for (Index i = 0; i < n_q; ++i) {
        double sum = 0;
        for (Index j = 0; j < n_k; ++j) sum += std::abs(c[j - i]);
        smallest = std::min(smallest, sum);
        largest = std::max(largest, sum);
      }
      INFO("n_q " << n_q << " n_k " << n_k << " shift " << shift);
      // a sum is a difference of sums of n_q + n_k steps, each of which rounds a number below the last
      const double tolerance = 4 * epsilon<double> * static_cast<double>((n_q + n_k) * (n_q + n_k));
      const double expected = largest > 0 ? smallest / largest : 0;
      CHECK(std::abs(row_balance(c.view(), Slots{n_q}, Slots{n_k}, workspace) - expected) <= tolerance);
    }
  }
  CHECK(row_balance(LagWeightsView<double>(), Slots{5}, Slots{4}, workspace) == 0);
}

TEST_CASE("the share of failing rows is that of the queries that a large weight does not reach", "[toeplitz]") {
  Workspace workspace;
  const Index n = 512;
  // only the last 128 queries attend to a key with the large weight
  LagWeights<double> peak{-(n - 1), Vector<double>::Constant(2 * n - 1, 1e-12)};
  peak.values[-(n - 128) - peak.first] = 1;
  CHECK(toeplitz::failing_share(peak.view(), Slots{n}, Slots{n}, workspace) == 0.75);
  CHECK(toeplitz::failing_share(peak.view(), Slots{n}, Slots{64}, workspace) == 0.875);
  const LagWeights<double> ones{-(n - 1), Vector<double>::Ones(2 * n - 1)};
  CHECK(toeplitz::failing_share(ones.view(), Slots{n}, Slots{n}, workspace) == 0);
  CHECK(toeplitz::failing_share(ones.view(), Slots{n}, Slots{}, workspace) == 0);
}

TEST_CASE("the balance of rows counts only slots with keys", "[toeplitz]") {
  Workspace workspace;
  const Index span = 40;
  const LagWeights<double> c = random_weights<double>(span, span, 1);
  const Vector<double> coin = normal_vector<double>(2 * span, 2);
  std::vector<Index> q, k;
  for (Index s = 0; s < span; ++s) {
    if (coin[s] > 0) q.push_back(s);
    if (coin[span + s] > 0) k.push_back(s);
  }
  const auto slots = [](const std::vector<Index>& at) { return Slots{static_cast<Index>(at.size()), 0, at.data()}; };
  const auto expected = [&](const Slots& queries, const Slots& keys) {
    double smallest = std::numeric_limits<double>::infinity(), largest = 0;
    for (Index i = 0; i < queries.count; ++i) {
      double sum = 0;
      for (Index j = 0; j < keys.count; ++j) sum += std::abs(c[keys[j] - queries[i]]);
      smallest = std::min(smallest, sum);
      largest = std::max(largest, sum);
    }
    return smallest / largest;
  };
  for (const Slots& queries : {slots(q), Slots{span}, Slots{1, span - 1}})
    for (const Slots& keys : {slots(k), Slots{span}, Slots{7, 3}, Slots{1}}) {
      // sums of at most 2 span numbers below 4, as differences
      const double tolerance = 16 * epsilon<double> * static_cast<double>(span * span);
      CHECK(std::abs(row_balance(c.view(), queries, keys, workspace) - expected(queries, keys)) <= tolerance);
    }
}

TEST_CASE("with many gaps a row has the sum of a row near it", "[toeplitz]") {
  Workspace workspace;
  const Index n = 8192;
  std::vector<Index> even;
  for (Index s = 0; s < n; s += 2) even.push_back(s);
  const LagWeights<double> past{-(n - 1), Vector<double>::Ones(n)};
  const auto sums = toeplitz::row_sums(past.view(), Slots{n}, Slots{n / 2, 0, even.data()}, workspace);
  double worst = 0;
  for (Index i = 0; i < n; ++i)
    worst = std::max(worst, std::abs(sums[static_cast<std::size_t>(i)] - static_cast<double>(i / 2 + 1)));
  CHECK(worst > 0);
  CHECK(worst < n / 32);
}

TEST_CASE("blocks are balanced unless a row has far smaller weights than another of its block", "[toeplitz]") {
  Workspace workspace;
  const Index n = 1000;
  const auto balance = [&](const LagWeights<double>& c, const Slots& queries, const Slots& keys) {
    return toeplitz::block_balance(c.view(), queries, keys, workspace);
  };
  // weights of 1: row i attends to i + 1 keys, and the rows of the block from 256 on 257 to 512
  const LagWeights<double> ones{-(n - 1), Vector<double>::Ones(n)};
  CHECK(std::abs(balance(ones, {n}, {n}) - 257.0 / 512) <= 1e-12);
  // rows before the first key attend to no key and do not count; the first of the others attend to a few
  CHECK(std::abs(balance(ones, {n}, {n - 200, 200}) - 1.0 / 56) <= 1e-12);
  CHECK(std::abs(balance(ones, {n - 512, 512}, {n - 500, 500}) - 13.0 / 500) <= 1e-12);
  // with weights that rise with distance the early rows of a block have sums near 0, even if they are lost to rounding
  LagWeights<double> rising = ones;
  for (Index k = 0; k < n; ++k) rising.values[k] = std::exp(-0.1 * static_cast<double>(k));
  CHECK(balance(rising, {n}, {n}) < 1e-10);
  CHECK(balance(ones, {0}, {n}) == 0);
}

}  // namespace nprf::test::toeplitz_plan_row_balance
