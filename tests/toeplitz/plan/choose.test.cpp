// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/plan/choose.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/product.hpp"

namespace nprf::test::toeplitz_plan_choose {

using Direct = toeplitz::DirectEngine<float>;
using toeplitz::cost_of;
using toeplitz::CostInputs;
using toeplitz::product_cost;
using toeplitz::Rounding;

namespace {

/// Weights that differ from lag to lag, of similar magnitude.
LagWeights<float> uneven(Index first, Index last) {
  return {first, Vector<float>::LinSpaced(last - first + 1, 1.0f, 2.0f)};
}

template <class T>
Engine choose(const LagWeights<T>& c, const ProductShape& x) {
  Workspace workspace;
  return toeplitz::choose(c.view(), x, {x.n_q}, {x.n_k}, workspace);
}

}  // namespace

TEST_CASE("automatic is direct for short products, an FFT for long ones, and block_causal for long one-sided ones",
          "[toeplitz]") {
  const ProductShape small{64, 64, 8, 9}, large{16384, 16384, 32, 65};
  CHECK(choose(uneven(-63, 63), small) == Engine::direct);
  CHECK(choose(uneven(-16383, 0), large) == Engine::block_causal);
  // the last rows attend to a few keys, the first ones to all, in the same blocks
  CHECK(choose(uneven(0, 16383), large) == Engine::direct);
  CHECK(choose(uneven(-16383, 16383), large) == Engine::lanes);

  // zeros on one side do not count as weights: the rounding errors of late rows in an FFT would be large relative to
  // early rows
  LagWeights<float> past = uneven(-16383, 16383);
  past.values.tail(16383).setZero();
  CHECK(choose(past, large) == Engine::block_causal);

  // no weights at all
  CHECK(choose(LagWeights<float>(), large) == Engine::direct);
  past.values.setZero();
  CHECK(choose(past, large) == Engine::direct);
}

TEST_CASE("automatic: the longer the product, the more features are needed for direct to be chosen", "[toeplitz]") {
  // if direct is chosen, it is for more features too: the cost of an FFT is a product of r and p, that of direct a sum;
  // but for few, which do not fill registers
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

TEST_CASE("automatic chooses no FFT if many rows would have to be recomputed after it", "[toeplitz]") {
  const Index n_q = 12000, n_k = 6000;
  const ProductShape shape{n_q, n_k, 8, 9};
  // ALiBi in cross attention without tails: queries beyond the last key are far from it
  const auto alibi = [&](double slope) {
    LagWeights<float> c{-(n_q - 1), Vector<float>(n_q + n_k - 1)};
    for (Index k = 0; k < c.values.size(); ++k)
      c.values[k] = static_cast<float>(std::exp(-slope * std::abs(static_cast<double>(c.first + k))));
    return c;
  };
  CHECK(choose(alibi(0.01), shape) == Engine::direct);
  CHECK(choose(alibi(0.0001), shape) == Engine::lanes);

  // one weight of e^15: only the last query does not attend to a key with it
  const Index n = 6000;
  const auto peak = [](Index at, double height) {
    LagWeights<float> c{-(n - 1), Vector<float>::Constant(2 * n - 1, static_cast<float>(std::exp(-height)))};
    c.values[at - c.first] = 1;
    return c;
  };
  for (const Index r : {8, 64}) {
    const ProductShape square{n, n, r, r + 1};
    CHECK(choose(peak(1, 15), square) == Engine::lanes);
    // seven of eight queries attend to no key with the large weight
    CHECK(choose(peak(-(n - n / 8), 12), square) == Engine::direct);
  }
}

TEST_CASE("costs grow with every size", "[toeplitz]") {
  const auto lanes = [](const ProductShape& x) { return product_cost<float>(Engine::lanes, {{}, x, x}); };
  const ProductShape one{500, 700, 30, 20};
  for (const ProductShape& larger : {ProductShape{501, 700, 30, 20},
                                     {500, 701, 30, 20},
                                     {500, 700, 31, 20},
                                     {500, 700, 30, 20 + fft::lane_count<float>}}) {
    CHECK(Direct::dense_cost(larger) > Direct::dense_cost(one));
    CHECK(lanes(larger) >= lanes(one));
    CHECK(toeplitz::dense_cost<float>(larger) >= toeplitz::dense_cost<float>(one));
  }
  CHECK(toeplitz::dense_cost<float>({0, 0, 0, 0}) == 0);

  // weights of one side have half of the pairs and what tiles add to them; those in few slots no more than tokens
  const LagWeights<float> all = uneven(-499, 499), past = uneven(-499, 0);
  const ProductShape tokens{500, 500, 30, 20}, few{50, 50, 30, 20};
  const auto cost = [&](Engine engine, const LagWeights<float>& c, const ProductShape& of) {
    return product_cost<float>(engine, {c.view(), of, tokens});
  };
  const double half = cost(Engine::direct, past, tokens) / cost(Engine::direct, all, tokens);
  CHECK(half > 0.501);
  CHECK(half < 0.501 + 64.0 / 500);
  CHECK(cost(Engine::direct, all, tokens) == Direct::dense_cost(tokens));
  CHECK(cost(Engine::lanes, all, few) == lanes(tokens));
  // except for the weights, which are then not contiguous
  CHECK(cost(Engine::direct, all, few) > Direct::dense_cost(few));
  CHECK(cost(Engine::direct, all, few) < 2 * Direct::dense_cost(few));
}

TEST_CASE("the cost of an FFT includes its error bounds", "[toeplitz]") {
  const LagWeights<float> c = uneven(-499, 499);
  const ProductShape tokens{500, 500, 30, 20};
  const CostInputs<float> x{c.view(), tokens, tokens};
  const double bounds = toeplitz::error_bound_cost(tokens);
  CHECK(bounds > 0);
  CHECK(toeplitz::error_bound_cost({500, 500, 60, 20}) > bounds);
  CHECK(cost_of(Engine::direct, x) == product_cost(Engine::direct, x));
  CHECK(product_cost(Engine::grid, x) == product_cost(Engine::lanes, x));
  for (const Engine engine : {Engine::lanes, Engine::grid, Engine::block_causal})
    CHECK(cost_of(engine, x) == product_cost(engine, x) + bounds);
  CHECK(std::isnan(product_cost(Engine::automatic, x)));
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
  CHECK(product_cost<float>(Engine::direct, {c.view(), tokens, slots}) >
        4 * product_cost<float>(Engine::direct, {without.view(), tokens, slots}));
  CHECK(toeplitz::cheapest<float>({c.view(), tokens, slots}, Rounding::per_row) == Engine::recurrence);
}

TEST_CASE("automatic: an FFT costs more if few columns and features leave lanes empty", "[toeplitz]") {
  if (fft::lane_count<float> < 8) return;
  for (const Index r : {4, 8}) {
    CHECK(choose(uneven(-199, 0), {200, 200, r, 2}) == Engine::direct);
    CHECK(choose(uneven(-199, 199), {200, 200, r, 2}) == Engine::direct);
    const LagBias<float> alibi{0, Vector<float>::Zero(1), -0.01f, -0.01f};
    CHECK(choose(exp_weights(alibi, {-1023, 0}), {1024, 1024, r, 2}) == Engine::recurrence);
  }
}

TEST_CASE("automatic chooses the linear engine for weights with tails and many tokens", "[toeplitz]") {
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
  // a table of all lags has no tails
  CHECK(choice({-8191, Vector<float>::Random(16383)}, 8192, Direction::bidirectional) == Engine::lanes);
  const LagWeights<float> no_tails = uneven(-99, 99);
  CHECK(std::isinf(product_cost<float>(Engine::banded, {no_tails.view(), {100, 100, 8, 9}, {100, 100, 8, 9}})));
}

}  // namespace nprf::test::toeplitz_plan_choose
