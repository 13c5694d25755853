// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/plan/planner.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/product.hpp"

namespace nprf::test::toeplitz_plan_planner {

using toeplitz::Costs;
using toeplitz::pairs_in;
using toeplitz::row_balance;
using toeplitz::Rows;
using toeplitz::worthwhile_threads;

namespace {

/// Weights that differ from lag to lag, of one size.
LagWeights<float> uneven(Index first, Index last) {
  return {first, Vector<float>::LinSpaced(last - first + 1, 1.0f, 2.0f)};
}

template <class T>
Engine choose(const LagWeights<T>& c, const ProductShape& x) {
  Workspace workspace;
  return toeplitz::choose(c.view(), x, {x.n_q}, {x.n_k}, workspace);
}

}  // namespace

TEST_CASE("automatic is direct for short products, an FFT for long ones, by blocks for weights of one side",
          "[toeplitz]") {
  const ProductShape small{64, 64, 8, 9}, large{16384, 16384, 32, 65};
  CHECK(choose(uneven(-63, 63), small) == Engine::direct);
  CHECK(choose(uneven(-16383, 0), large) == Engine::block_causal);
  // the last rows see a few keys, the first ones all, in the same blocks
  CHECK(choose(uneven(0, 16383), large) == Engine::direct);
  CHECK(choose(uneven(-16383, 16383), large) == Engine::lanes);

  // zeros on one side are no weights: an FFT would drown the early rows in the rounding of the late ones
  LagWeights<float> past = uneven(-16383, 16383);
  past.values.tail(16383).setZero();
  CHECK(choose(past, large) == Engine::block_causal);

  // no weights at all
  CHECK(choose(LagWeights<float>(), large) == Engine::direct);
  past.values.setZero();
  CHECK(choose(past, large) == Engine::direct);
}

TEST_CASE("automatic: the longer the product, the more features direct takes", "[toeplitz]") {
  // direct once, direct for all more features: an FFT's cost is a product of r and p, direct's is a sum; but for few,
  // which do not fill registers
  for (const Index n : {1000, 4000, 16000}) {
    const LagWeights<float> c = uneven(-(n - 1), n - 1);
    bool was_direct = false;
    for (Index r = 2 * fft::lane_count<float>; r <= 4096; r *= 2) {
      const bool direct = choose(c, {n, n, r, r}) == Engine::direct;
      INFO("n " << n << " r " << r);
      CHECK((direct || !was_direct));
      was_direct = direct;
    }
    CHECK(was_direct);
  }
}

TEST_CASE("automatic keeps an FFT from weights that leave some rows far less than others", "[toeplitz]") {
  const Index n_q = 12000, n_k = 6000;
  const ProductShape shape{n_q, n_k, 8, 9};
  // ALiBi in cross attention, its tails not told: queries beyond the last key see it from afar
  const auto alibi = [&](double slope) {
    LagWeights<float> c{-(n_q - 1), Vector<float>(n_q + n_k - 1)};
    for (Index k = 0; k < c.values.size(); ++k)
      c.values[k] = static_cast<float>(std::exp(-slope * std::abs(static_cast<double>(c.first + k))));
    return c;
  };
  CHECK(choose(alibi(0.01), shape) == Engine::direct);
  CHECK(choose(alibi(0.0001), shape) == Engine::lanes);
}

TEST_CASE("the pairs whose lag is in a range are counted", "[toeplitz]") {
  for (const auto& [n_q, n_k] : std::vector<std::pair<Index, Index>>{{7, 4}, {4, 7}, {1, 5}, {5, 1}, {1, 1}, {6, 6}})
    for (Index first = -10; first <= 10; ++first)
      for (Index last = first - 1; last <= 11; ++last) {
        Index count = 0;
        for (Index i = 0; i < n_q; ++i)
          for (Index j = 0; j < n_k; ++j) count += first <= j - i && j - i <= last;
        INFO("n_q " << n_q << " n_k " << n_k << " lags " << first << " to " << last);
        REQUIRE(pairs_in({first, last}, n_q, n_k) == static_cast<double>(count));
      }
  CHECK(pairs_in({-5, 5}, 0, 3) == 0);
}

TEST_CASE("the balance of rows is that of sums over every window", "[toeplitz]") {
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

TEST_CASE("the balance of rows counts the keys that there are", "[toeplitz]") {
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
  CHECK(row_balance(c.view(), Slots{span}, Slots{}, workspace) == 0);
}

TEST_CASE("among many gaps a row's sum is that of a row near by", "[toeplitz]") {
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

TEST_CASE("blocks of rows are balanced where none sees far less than another of its block", "[toeplitz]") {
  Workspace workspace;
  const Index n = 1000;
  const auto balance = [&](const LagWeights<double>& c, const Slots& queries, const Slots& keys) {
    return toeplitz::block_balance(c.view(), queries, keys, workspace);
  };
  // weights of 1: row i sees i + 1 keys, and the rows of the block from 256 on 257 to 512
  const LagWeights<double> ones{-(n - 1), Vector<double>::Ones(n)};
  CHECK(std::abs(balance(ones, {n}, {n}) - 257.0 / 512) <= 1e-12);
  // rows before the first key see nothing, and are no worse for it; the first of the others see a few
  CHECK(std::abs(balance(ones, {n}, {n - 200, 200}) - 1.0 / 56) <= 1e-12);
  CHECK(std::abs(balance(ones, {n - 512, 512}, {n - 500, 500}) - 13.0 / 500) <= 1e-12);
  // weights that rise with distance leave the early rows of a block nothing, even where sums cannot tell it from 0
  LagWeights<double> rising = ones;
  for (Index k = 0; k < n; ++k) rising.values[k] = std::exp(-0.1 * static_cast<double>(k));
  CHECK(balance(rising, {n}, {n}) < 1e-10);
  CHECK(balance(ones, {0}, {n}) == 0);
}

TEST_CASE("costs grow with every size", "[toeplitz]") {
  const ProductShape one{500, 700, 30, 20};
  for (const ProductShape& larger : {ProductShape{501, 700, 30, 20},
                                     {500, 701, 30, 20},
                                     {500, 700, 31, 20},
                                     {500, 700, 30, 20 + fft::lane_count<float>}}) {
    CHECK(Costs::of_direct(larger) > Costs::of_direct(one));
    CHECK(Costs::of_lanes<float>(larger) >= Costs::of_lanes<float>(one));
    CHECK(toeplitz::dense_cost<float>(larger) >= toeplitz::dense_cost<float>(one));
  }
  CHECK(toeplitz::dense_cost<float>({0, 0, 0, 0}) == 0);

  // weights of one side have half of the pairs and what tiles take along, and those in few slots no more than tokens
  const LagWeights<float> all = uneven(-499, 499), past = uneven(-499, 0);
  const ProductShape tokens{500, 500, 30, 20};
  const double half = Costs(past.view(), tokens, tokens).direct / Costs(all.view(), tokens, tokens).direct;
  CHECK(half > 0.501);
  CHECK(half < 0.501 + 64.0 / 500);
  CHECK(Costs(all.view(), tokens, tokens).direct == Costs::of_direct(tokens));
  const ProductShape few{50, 50, 30, 20};
  CHECK(Costs(all.view(), few, tokens).lanes == Costs::of_lanes<float>(tokens));
  // but for the weights, which then do not lie side by side
  CHECK(Costs(all.view(), few, tokens).direct > Costs::of_direct(few));
  CHECK(Costs(all.view(), few, tokens).direct < 2 * Costs::of_direct(few));
}

TEST_CASE("costs of an FFT contain its certificate", "[toeplitz]") {
  const LagWeights<float> c = uneven(-499, 499);
  const ProductShape tokens{500, 500, 30, 20};
  const Costs costs(c.view(), tokens, tokens);
  CHECK(costs.certificate > 0);
  CHECK(costs.of(Engine::direct) == costs.direct);
  CHECK(costs.product(Engine::grid) == costs.lanes);
  for (const Engine engine : {Engine::lanes, Engine::grid}) CHECK(costs.of(engine) == costs.lanes + costs.certificate);
  CHECK(costs.of(Engine::block_causal) == costs.block_causal + costs.certificate);
  CHECK(Costs(c.view(), {500, 500, 60, 20}, {500, 500, 60, 20}).certificate > costs.certificate);
}

TEST_CASE("automatic: weights below the normal numbers are slow in tiles", "[toeplitz]") {
  // slope 1/16 in float: beyond 1397 lags
  const LagBias<float> alibi{0, Vector<float>::Zero(1), -1.0f / 16, -1.0f / 16};
  const Index n = 3000, few = 188;
  const LagWeights<float> c = exp_weights(alibi, {-(n - 1), 0});
  LagWeights<float> without = c;
  for (float& x : without.values)
    if (x < std::numeric_limits<float>::min()) x = 0;
  const ProductShape tokens{n, few, 32, 65}, slots{n, n, 32, 65};
  CHECK(Costs(c.view(), tokens, slots).direct > 4 * Costs(without.view(), tokens, slots).direct);
  CHECK(choose(c.view(), tokens, slots, Rows::unlike) == Engine::recurrence);
}

TEST_CASE("signals are counted that fill up a register", "[toeplitz]") {
  constexpr Index W = fft::lane_count<double>;
  const auto count = [](Index r, Index p) { return toeplitz::signals<double>(r, p, 1); };
  CHECK(count(6, W) == 6 * W);
  CHECK(count(5, 2 * W) == 5 * 2 * W);
  // features as lanes, where one column is left over
  CHECK(count(2 * W, W + 1) == 2 * W * (W + 1));
  CHECK(count(2 * W + 1, 1) == 3 * W);
  CHECK(toeplitz::signals<double>(2 * W, W + 1, 3) == 2 * W * (W + 3));
  // or a panel that is not full, where that is less
  CHECK(count(1, W - 1) == W);
}

TEST_CASE("automatic: few columns and features fill no register, and an FFT is the dearer for it", "[toeplitz]") {
  if (fft::lane_count<float> < 8) return;
  for (const Index r : {4, 8}) {
    CHECK(choose(uneven(-199, 0), {200, 200, r, 2}) == Engine::direct);
    CHECK(choose(uneven(-199, 199), {200, 200, r, 2}) == Engine::direct);
    const LagBias<float> alibi{0, Vector<float>::Zero(1), -0.01f, -0.01f};
    CHECK(choose(exp_weights(alibi, {-1023, 0}), {1024, 1024, r, 2}) == Engine::recurrence);
  }
}

TEST_CASE("a product has as many threads as it is worth, at least one and at most those that are set", "[toeplitz]") {
  struct Kept {
    ~Kept() { set_num_threads(before); }
    const Index before = num_threads();
  } const kept;
  for (const Index most : {1, 2, 7}) {
    set_num_threads(most);
    CHECK(worthwhile_threads(0) == 1);
    CHECK(worthwhile_threads(1e15) == most);
    Index before = 1;
    for (double operations = 1; operations < 1e12; operations *= 1.5) {
      const Index threads = worthwhile_threads(operations);
      CHECK((before <= threads && threads <= most));
      before = threads;
    }
  }
}

TEST_CASE("automatic takes the engine that is linear where weights have tails, and tokens are many", "[toeplitz]") {
  const auto choice = [](const LagBias<float>& bias, Index n, Direction direction) {
    return choose(exp_weights(bias, reachable_lags(n, n, 0, direction)), {n, n, 32, 65});
  };
  const LagBias<float> clipped{-91, Vector<float>::Random(183)}, alibi{0, Vector<float>::Zero(1), -0.1f, -0.1f};
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    CHECK(choice(clipped, 8192, direction) == Engine::banded);
    CHECK(choice(alibi, 8192, direction) == Engine::recurrence);
    CHECK(choice({}, 8192, direction) == Engine::banded);
    CHECK(choice(clipped, 64, direction) == Engine::direct);
  }
  // a table as wide as the tokens are many has no tails
  CHECK(choice({-8191, Vector<float>::Random(16383)}, 8192, Direction::bidirectional) == Engine::lanes);
  const LagWeights<float> no_tails = uneven(-99, 99);
  CHECK(std::isinf(Costs(no_tails.view(), {100, 100, 8, 9}, {100, 100, 8, 9}).banded));
}

}  // namespace nprf::test::toeplitz_plan_planner
