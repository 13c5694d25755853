// SPDX-License-Identifier: MIT
//
// Attention with maps whose keys have other features than queries.

#include <algorithm>
#include <cmath>
#include <utility>

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/balance.hpp"
#include "nprf/feature_map/centred.hpp"
#include "nprf/feature_map/positive.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/reference/softmax_attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::attention_attention_centred {

namespace {

constexpr Index n = 40, d = 4, d_v = 3;

// queries and keys of norm 1 around means of their own
Matrix<double> around(double mean, std::uint64_t seed) {
  const Matrix<double> x = 0.2 * normal<double>(n, d, seed) + mean * Matrix<double>::Ones(n, d);
  return x.rowwise().normalized();
}

RelativePosition<double> table() {
  return RelativePosition<double>(Vector<double>(normal_vector<double>(2 * n - 1, 5)));
}

}  // namespace

TEST_CASE("centring brings Taylor features closer to softmax", "[attention]") {
  // of products around 1, so that no row of the series cancels and becomes one of exact softmax
  const Matrix<double> q = around(1, 1), k = around(1, 2), v = normal<double>(n, d_v, 3);
  const TaylorFeatures<double> features({.input_dim = d});
  const Centred<TaylorFeatures<double>> centred(features, balance<double>(q, k).constants);
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    const AttentionOptions options{.direction = direction, .engine = Engine::direct};
    const Matrix<double> exact =
        reference::softmax_attention<double>(q, k, v, table(), direction, Normalization::unit(1));
    const double error = (Attention(centred, table(), options)(q, k, v) - exact).norm() / exact.norm();
    CHECK(error < 0.03);
    CHECK(3 * error < (Attention(features, table(), options)(q, k, v) - exact).norm() / exact.norm());
  }
}

TEST_CASE("the gradients of queries and keys of a centred map are those of differences", "[attention]") {
  const Matrix<double> q = around(1, 1), k = around(-1, 2), v = normal<double>(n, d_v, 3),
                       dy = normal<double>(n, d_v, 4);
  const auto check = [&](const auto& features, Direction direction, Engine engine) {
    const Attention attention(features, table(), {.direction = direction, .engine = engine});
    Saved<double> saved;
    attention.forward(q, k, v, saved);
    const Gradients<double> g = attention.backward(saved, dy);
    const auto loss = [&](const Matrix<double>& queries, const Matrix<double>& keys) {
      return attention(queries, keys, v).cwiseProduct(dy).sum();
    };
    constexpr double h = 1e-5;  // errors h^2 / 6 times a third derivative, and eps / h
    double worst = 0;
    for (const auto& [i, c] : {std::pair<Index, Index>{0, 0}, {7, 2}, {39, 3}}) {
      Matrix<double> above = q, below = q;
      above(i, c) += h, below(i, c) -= h;
      worst = std::max(worst, std::abs((loss(above, k) - loss(below, k)) / (2 * h) - g.queries(i, c)));
      above = k, below = k;
      above(i, c) += h, below(i, c) -= h;
      worst = std::max(worst, std::abs((loss(q, above) - loss(q, below)) / (2 * h) - g.keys(i, c)));
    }
    INFO("engine " << static_cast<int>(engine));
    CHECK(worst <= 1e-6 * std::max(g.queries.cwiseAbs().maxCoeff(), g.keys.cwiseAbs().maxCoeff()));
  };
  const Centring<double> constants = balance<double>(q, k).constants;
  const Centred taylor(TaylorFeatures<double>({.input_dim = d, .directions = 2}), constants);
  const Centred positive(PositiveFeatures<double>({.input_dim = d, .num_features = 9}), constants);
  for (const Engine engine : {Engine::direct, Engine::lanes, Engine::block_causal}) {
    check(taylor, Direction::causal, engine);
    check(positive, Direction::causal, engine);
  }
  check(taylor, Direction::bidirectional, Engine::automatic);
  check(positive, Direction::bidirectional, Engine::automatic);
}

}  // namespace nprf::test::attention_attention_centred
