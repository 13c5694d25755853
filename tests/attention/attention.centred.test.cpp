// SPDX-License-Identifier: MIT
//
// Attention with maps whose keys have other features than queries.

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/balance.hpp"
#include "nprf/feature_map/centred.hpp"
#include "nprf/feature_map/positive.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/reference/softmax_attention.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

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
    const Gradients<double> g = both_passes(attention, {q, k, v}, dy).g;
    const auto loss = [&](const Matrix<double>& queries, const Matrix<double>& keys) {
      return attention(queries, keys, v).cwiseProduct(dy).sum();
    };
    INFO("engine " << static_cast<int>(engine));
    CHECK(difference_error(q, g.queries, [&](const auto& at) { return loss(at, k); }) <= 1e-6);
    CHECK(difference_error(k, g.keys, [&](const auto& at) { return loss(q, at); }) <= 1e-6);
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
