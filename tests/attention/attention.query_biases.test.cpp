// SPDX-License-Identifier: MIT
//
// Positions with vectors of lags: biases of near pairs that depend on the query.

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "attention/exact_pairs_case.hpp"
#include "nprf/attention/attention.hpp"
#include "nprf/attention/multi_head_attention.hpp"
#include "nprf/decoder/decoder.hpp"
#include "nprf/feature_map/positive.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/query_biased.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/reference/kernelized_attention.hpp"
#include "nprf/reference/softmax_attention.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

namespace nprf::test::attention_attention_query_biases {

namespace {

constexpr Index n = 100, d = 5, d_v = 3, rank = 4;

template <Real T>
TaylorFeatures<T> taylor() {
  return TaylorFeatures<T>({.input_dim = d});
}

Index lags_of(Direction direction, Index near) { return direction == Direction::causal ? near : 2 * near - 1; }

template <Real T>
Matrix<T> lag_vectors(Direction direction, Index near, std::uint64_t seed = 50) {
  return T(0.7) * normal<T>(rank, lags_of(direction, near), seed);
}

// queries have the channels of r, too
template <Real T>
Tokens<T> tokens(Index n_q, Index n_k, std::uint64_t seed) {
  Tokens<T> x = random_tokens<T>(n_q, n_k, d, d_v, seed);
  x.q = normal<T>(n_q, d + rank, seed + 70);
  return x;
}

template <Real T>
void check(std::uint64_t seed) {
  Mask gaps = Mask::Constant(n, true), left = gaps;
  for (Index j = 0; j < n; ++j) gaps[j] = j % 7 != 2 && j % 11 != 3, left[j] = j >= 13;
  const Tokens<T> x = tokens<T>(n, n, seed), cross = tokens<T>(n, 61, seed + 1);
  const RelativePosition<T> table(T(0.3) * random_table<T>(40, seed));
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const Engine engine : {Engine::automatic, Engine::direct, Engine::banded})
      for (const Index near : {1, 2, 17, 300})
        for (const Index sinks : {0, 3}) {
          INFO("engine " << static_cast<int>(engine) << " near " << near << " sinks " << sinks << " direction "
                         << static_cast<int>(direction));
          const Attention attention(taylor<T>(), QueryBiased(table, lag_vectors<T>(direction, near)),
                                    {.direction = direction, .engine = engine, .near = near, .sinks = sinks});
          CHECK(agrees(attention, x));
          CHECK(agrees(attention, x, 0, gaps));
          CHECK(agrees(attention, x, 0, left));
          CHECK(agrees(attention, cross, -20));
          CHECK(agrees(attention, cross, 9));
        }
}

// the entries of `of` in some places, each by a central difference of `loss`, beside those of `gradient`
template <class Loss>
void check_differences(const Matrix<double>& of, const Matrix<double>& gradient, const Loss& loss) {
  REQUIRE(gradient.rows() == of.rows());
  REQUIRE(gradient.cols() == of.cols());
  constexpr double step = 1e-5;
  for (Index at = 0; at < of.size(); at += std::max<Index>(of.size() / 23, 1)) {
    Matrix<double> above = of, below = of;
    above.data()[at] += step, below.data()[at] -= step;
    const double difference = (loss(above) - loss(below)) / (2 * step);
    CHECK(std::abs(difference - gradient.data()[at]) <= 1e-8 * (1 + gradient.cwiseAbs().maxCoeff()));
  }
}

}  // namespace

TEST_CASE("attention with vectors of lags equals the formula", "[attention]") {
  check<double>(1);
  if (!NPRF_TEST_SANITIZED) check<float>(3);
}

TEST_CASE("if all lags have vectors, attention is that of softmax, which has them too", "[attention]") {
  const Tokens<double> x = tokens<double>(n, n, 5);
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const Normalization normalization : {Normalization::unit(3), Normalization::none()}) {
      const QueryBiased position(AlibiPosition<double>(0.1), lag_vectors<double>(direction, n));
      const Matrix<double> y =
          Attention(taylor<double>(), position, {.direction = direction, .normalization = normalization, .near = n})(
              x.q, x.k, x.v);
      const Matrix<double> softmax =
          reference::softmax_attention<double>(x.q, x.k, x.v, position, direction, normalization);
      CHECK((y - softmax).cwiseAbs().maxCoeff() <= 256 * epsilon<double> * x.v.cwiseAbs().maxCoeff());
      Report report;  // no row differs from exact softmax, also where a part of the lags has vectors
      const QueryBiased narrow(AlibiPosition<double>(0.1), lag_vectors<double>(direction, 8));
      Attention(taylor<double>(), narrow,
                {.direction = direction, .normalization = normalization, .near = 8, .sinks = n})(
          x.q, x.k, x.v, {.report = &report, .softmax_samples = n});
      CHECK(report.softmax_error <= 256 * epsilon<double>);
    }
}

TEST_CASE("gradients by the vectors of queries and of lags", "[attention]") {
  Tokens<double> x = tokens<double>(n, n, 7);
  // key i - 5 of some queries i is their opposite and has the largest bias: at radius 3, where 1 + q.k = -8, their rows
  // become those of exact softmax
  for (Index i = 5; i < n; i += 3) x.k.row(i - 5) = -x.q.row(i).head(d);
  const Matrix<double> dy = normal<double>(n, d_v, 8);
  Mask gaps = Mask::Constant(n, true);
  for (Index j = 0; j < n; ++j) gaps[j] = j % 7 != 2;
  Vector<double> b = 0.3 * random_table<double>(40, 9);
  b[39 - 5] = 12;
  const RelativePosition<double> table(b);
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const double radius : {1.0, 3.0})
      for (const bool is_masked : {false, true}) {
        constexpr Index near = 3;
        const Matrix<double> R = lag_vectors<double>(direction, near);
        const CallOptions call{.key_mask = is_masked ? view(gaps) : std::span<const bool>()};
        const AttentionOptions options{
            .direction = direction, .normalization = Normalization::unit(radius), .near = near, .sinks = 1};
        const auto loss = [&](const Tokens<double>& at, const Matrix<double>& vectors) {
          const Attention attention(taylor<double>(), QueryBiased(table, vectors), options);
          return attention(at.q, at.k, at.v, call).cwiseProduct(dy).sum();
        };
        const auto passes = both_passes(Attention(taylor<double>(), QueryBiased(table, R), options), x, dy, call);
        CHECK((passes.report.repaired_rows > 0) == (radius > 1));
        Tokens<double> at = x;
        check_differences(x.q, passes.g.queries, [&](const auto& q) { return at.q = q, loss(at, R); });
        at = x;
        check_differences(x.k, passes.g.keys, [&](const auto& k) { return at.k = k, loss(at, R); });
        check_differences(R, passes.g.lag_vectors, [&](const auto& vectors) { return loss(x, vectors); });
      }
}

TEST_CASE("heads, packed sequences and threads with vectors of lags", "[attention][threads]") {
  constexpr Index heads = 4, kv_heads = 2, near = 6, batch = 2;
  const Matrix<float> q = normal<float>(batch * heads * n, d + rank, 20),
                      k = normal<float>(batch * kv_heads * n, d, 21), v = normal<float>(batch * kv_heads * n, d_v, 22),
                      dy = normal<float>(batch * heads * n, d_v, 23);
  const HeadsView<const float> queries{q.data(), batch, heads, n, d + rank}, keys{k.data(), batch, kv_heads, n, d},
      values{v.data(), batch, kv_heads, n, d_v}, gradient{dy.data(), batch, heads, n, d_v};
  std::vector<QueryBiased<NoPosition<float>>> positions;
  for (Index h = 0; h < heads; ++h)
    positions.emplace_back(NoPosition<float>(),
                           lag_vectors<float>(Direction::causal, near, 30 + static_cast<std::uint64_t>(h)));
  const MultiHeadAttention attention(std::vector{taylor<float>()}, positions,
                                     {.direction = Direction::causal, .near = near});
  const std::vector<Index> ends{0, 37, 38, n};
  const auto run = [&] {
    Matrix<float> y(batch * heads * n, d_v), dq(q.rows(), q.cols()), dk(k.rows(), d), dv(v.rows(), d_v);
    Saved<float> saved;
    attention.forward(queries, keys, values, HeadsView<float>{y.data(), batch, heads, n, d_v}, saved,
                      {.cumulative_lengths = ends});
    std::vector<Matrix<float>> dbias, vectors;
    attention.backward(saved, gradient, HeadsView<float>{dq.data(), batch, heads, n, d + rank},
                       HeadsView<float>{dk.data(), batch, kv_heads, n, d},
                       HeadsView<float>{dv.data(), batch, kv_heads, n, d_v}, dbias, nullptr, nullptr, &vectors);
    return std::tuple(y, dq, dk, vectors);
  };
  const auto [y, dq, dk, vectors] = run();
  REQUIRE(vectors.size() == heads);
  for (Index h = 0; h < heads; ++h) {
    Matrix<double> sum = Matrix<double>::Zero(rank, near);
    for (Index b = 0; b < batch; ++b)
      for (std::size_t s = 0; s + 1 < ends.size(); ++s) {
        const Index first = ends[s], count = ends[s + 1] - first;
        const auto part = [&](const auto& view, Index head) {
          return Matrix<double>(view(b, head).middleRows(first, count).template cast<double>());
        };
        const Tokens<double> x{part(queries, h), part(keys, h / 2), part(values, h / 2)};
        const QueryBiased<NoPosition<double>> position(
            NoPosition<double>(), positions[static_cast<std::size_t>(h)].lag_vectors().cast<double>());
        const Attention alone(taylor<double>(), position, attention.options());
        const auto passes = both_passes(alone, x, part(gradient, h));
        const auto rows = [&](const Matrix<float>& of) {
          return of.middleRows((b * heads + h) * n + first, count).template cast<double>();
        };
        CHECK((rows(y) - passes.y).norm() <= 1e-5 * passes.y.norm());
        const double size = part(gradient, h).norm() * x.v.cwiseAbs().maxCoeff();
        CHECK((rows(dq) - passes.g.queries).norm() <= 64 * epsilon<float> * size);
        sum += passes.g.lag_vectors;
      }
    CHECK((vectors[static_cast<std::size_t>(h)].cast<double>() - sum).norm() <= 1e-4 * sum.norm());
  }
  const Threads three(3);
  const auto [y3, dq3, dk3, vectors3] = run();
  CHECK(same_bits<float>(y3, y));
  CHECK(same_bits<float>(dq3, dq));
  CHECK(same_bits<float>(dk3, dk));
  for (std::size_t h = 0; h < heads; ++h) CHECK(same_bits<float>(vectors3[h], vectors[h]));
}

TEST_CASE("a decoder with vectors of lags has the rows of the attention", "[decoder]") {
  constexpr Index near = 9, heads = 4, kv_heads = 2;
  const QueryBiased position(AlibiPosition<double>(0.05), lag_vectors<double>(Direction::causal, near));
  for (const double radius : {1.0, 3.0})
    for (const Index sinks : {0, 2}) {
      const MultiHeadAttention attention(
          taylor<double>(), position,
          {.direction = Direction::causal, .normalization = Normalization::unit(radius), .near = near, .sinks = sinks});
      const Matrix<double> q = normal<double>(heads * n, d + rank, 40), k = normal<double>(kv_heads * n, d, 41),
                           v = normal<double>(kv_heads * n, d_v, 42);
      const HeadsView<const double> queries{q.data(), 1, heads, n, d + rank}, keys{k.data(), 1, kv_heads, n, d},
          values{v.data(), 1, kv_heads, n, d_v};
      Matrix<double> y(heads * n, d_v), steps = y;
      Report report;
      attention(queries, keys, values, HeadsView<double>{y.data(), 1, heads, n, d_v}, {.report = &report});
      Decoder<double> decoder(attention, {.batch = 1});
      const auto part = [](const auto& x, Index first, Index count) {
        auto rows = x;
        rows.data += first * x.channels, rows.tokens = count, rows.strides = x.all_strides();
        return rows;
      };
      const HeadsView<double> out{steps.data(), 1, heads, n, d_v};
      Report of_steps;
      double bound = report.error_bound;
      for (Index t = 0, count = 0; t < n; t += count) {
        count = t == 0 ? 17 : std::min<Index>(1 + t % 4, n - t);  // a prompt, and tokens one by one or a few
        const auto call = [&](auto&& of) {
          of(part(queries, t, count), part(keys, t, count), part(values, t, count), part(out, t, count),
             CallOptions{.report = &of_steps});
        };
        call([&](auto&&... x) { t == 0 ? decoder.prefill(x...) : decoder.step(x...); });
        bound = std::max(bound, of_steps.error_bound);
      }
      // without sums of older tokens that cannot be recomputed, rows that cancel are exact
      if (radius == 1) CHECK((steps - y).cwiseAbs().maxCoeff() <= 2 * bound * v.cwiseAbs().maxCoeff());
    }
}

TEST_CASE("a non-finite vector of a query is in its row alone", "[attention]") {
  constexpr Index near = 6, bad = 40;
  const Tokens<double> x = tokens<double>(n, n, 60);
  Tokens<double> changed = x;
  changed.q(bad, d + 1) = std::numeric_limits<double>::quiet_NaN();
  const Matrix<double> dy = normal<double>(n, d_v, 61);
  const Attention attention(taylor<double>(),
                            QueryBiased(NoPosition<double>(), lag_vectors<double>(Direction::causal, near)),
                            {.direction = Direction::causal, .near = near});
  const auto finite = both_passes(attention, x, dy), passes = both_passes(attention, changed, dy);
  for (Index i = 0; i < n; ++i) {
    CHECK(passes.y.row(i).hasNaN() == (i == bad));
    CHECK(passes.g.queries.row(i).hasNaN() == (i == bad));
    CHECK(passes.g.keys.row(i).hasNaN() == (i <= bad));  // those that the query attends to
    if (i != bad) CHECK(passes.y.row(i) == finite.y.row(i));
  }
  CHECK(passes.g.lag_vectors.array().isNaN().all());
  Decoder<double> decoder(MultiHeadAttention(taylor<double>(), attention.position(), attention.options()));
  for (Index t = 0; t < n; ++t) {
    const Matrix<double> q = changed.q.row(t), k = x.k.row(t), v = x.v.row(t);
    Matrix<double> y(1, d_v);
    decoder.step(one_head(MatrixView<double>(q)), one_head(MatrixView<double>(k)), one_head(MatrixView<double>(v)),
                 one_head(y));
    CHECK(y.hasNaN() == (t == bad));
  }
}

TEST_CASE("vectors of lags that do not fit are refused", "[attention]") {
  const Matrix<double> R = lag_vectors<double>(Direction::causal, 4);
  const auto make = [&](const Matrix<double>& vectors, const AttentionOptions& options) {
    return [=] { Attention(taylor<double>(), QueryBiased(NoPosition<double>(), vectors), options); };
  };
  check_invalid(make(R, {.direction = Direction::causal}), {"near: expected more than 0", "lag_vectors", "got 0"});
  check_invalid(make(R, {.direction = Direction::causal, .near = 5}), {"lag_vectors: expected 5 columns", "got 4"});
  check_invalid(make(R, {.near = 4}), {"lag_vectors: expected 7 columns", "got 4"});
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    check_invalid(make(R, {.direction = direction, .near = std::numeric_limits<Index>::max()}),
                  {direction == Direction::causal ? "expected 9223372036854775807" : "expected 18446744073709551613"});
  using Grid = QueryBiased<GridPosition<double>>;
  check_invalid(
      [&] {
        Attention(taylor<double>(), Grid(GridPosition<double>(2, 2, Matrix<double>::Zero(3, 3)), R),
                  {.direction = Direction::causal, .near = 4});
      },
      {"position: expected none with lag_vectors that assigns slots"});
  const std::vector positions{QueryBiased(NoPosition<double>(), R),
                              QueryBiased(NoPosition<double>(), Matrix<double>(R.topRows(2)))};
  check_invalid([&] { MultiHeadAttention(taylor<double>(), positions, {.direction = Direction::causal, .near = 4}); },
                {"positions: expected lag_vectors of rank 4", "got 2"});
  const Attention attention(taylor<double>(), QueryBiased(NoPosition<double>(), R),
                            {.direction = Direction::causal, .near = 4});
  const Tokens<double> x = tokens<double>(8, 8, 62);
  check_invalid([&] { attention(x.q.leftCols(d), x.k, x.v); }, {"queries: expected 9 columns", "rank", "got 5"});
}

}  // namespace nprf::test::attention_attention_query_biases
