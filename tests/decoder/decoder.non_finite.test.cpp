// SPDX-License-Identifier: MIT
//
// Non-finite tokens, underflow and rows that fail.
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "decoder/tokens.hpp"
#include "nprf/decoder/decoder.hpp"
#include "nprf/decoder/running_sums.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/t5.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::decoder_decoder_non_finite {

namespace {

constexpr Index d = 4, d_v = 3, n = 80, bad = 20;
constexpr double infinity = std::numeric_limits<double>::infinity();
using T = float;
using Held = HeldPosition<T>;
enum class Part { query, key, value };

Held window(Index reach) {
  Vector<T> table = Vector<T>::Zero(2 * reach + 1);
  table[0] = -std::numeric_limits<T>::infinity();
  return {RelativePosition<T>(table).bias()};
}

std::vector<Held> positions() {
  return {{NoPosition<T>().bias()},
          {AlibiPosition<T>(0.1f).bias()},
          {t5_position<T>(normal<T>(1, 8, 2).row(0), Direction::causal, 14).bias()},
          window(10),
          {RelativePosition<T>(random_table<T>(200, 4)).bias()}};
}

}  // namespace

TEST_CASE("non-finite: the same rows and columns as of the attention", "[decoder]") {
  for (const auto& [near, sinks] : {std::pair<Index, Index>{0, 0}, {6, 0}, {0, bad + 1}})
    for (const Held& position : positions())
      for (const Part part : {Part::query, Part::key, Part::value})
        for (const double x : {std::nan(""), infinity, -infinity}) {
          const MultiHeadAttention attention(orf<T>(d, 8, 1), position,
                                             {.direction = Direction::causal, .near = near, .sinks = sinks});
          TokenBatch<T> some(1, 2, 1, n, d, d_v), all(1, 2, 1, n, d, d_v);
          for (TokenBatch<T>* one : {&some, &all}) {
            TokenArray<T>& changed = part == Part::query ? one->q : part == Part::key ? one->k : one->v;
            changed(0, 0)(bad, 1) = static_cast<T>(x);
            if (part == Part::value) changed(0, 0)(bad + 2, 1) = static_cast<T>(-x), changed(0, 0)(bad, 2) = T(x);
          }
          attention(all.q.view, all.k.view, all.v.view, all.y.view);
          for (const Index prompt : {0, 25}) {
            Decoder decoder(attention, {.rollback = 3});
            some.prefill(decoder, 0, prompt);
            for (Index i = prompt; i < n; ++i) some.step(decoder, i, 1);
            for (Index h = 0; h < 2; ++h)
              for (Index i = 0; i < n; ++i)
                for (Index p = 0; p < d_v; ++p) {
                  const T got = some.y(0, h)(i, p), expected = all.y(0, h)(i, p);
                  INFO("part " << static_cast<int>(part) << " value " << x << " row " << i << " column " << p);
                  if (std::isfinite(expected))
                    REQUIRE(std::abs(got - expected) < 1e-4);
                  else
                    REQUIRE((std::isnan(expected) ? std::isnan(got) : got == expected));
                }
          }
        }
}

TEST_CASE("non-finite: a query or a key whose features do not depend on it", "[decoder]") {
  const QuadraticFeatures<T> constant(d, {});  // one feature
  for (const Index near : {0, 6})
    for (const Held& position : positions())
      for (const bool is_query : {true, false})
        for (const bool is_prefill : {true, false}) {
          const MultiHeadAttention attention(constant, position, {.direction = Direction::causal, .near = near});
          TokenBatch<T> x(1, 2, 1, n, d, d_v);
          (is_query ? x.q : x.k)(0, 0)(bad, 1) = is_prefill ? std::numeric_limits<T>::quiet_NaN() : T(infinity);
          Decoder decoder(attention);
          is_prefill ? x.prefill(decoder, 0, n) : x.step(decoder, 0, n);
          for (Index h = 0; h < 2; ++h)
            for (Index i = 0; i < n; ++i) {
              const bool depends = is_query
                                       ? h == 0 && i == bad
                                       : i >= bad && position.bias()[bad - i] > -std::numeric_limits<T>::infinity();
              CHECK(x.y(0, h).row(i).array().isNaN().all() == depends);
              CHECK(x.y(0, h).row(i).allFinite() == !depends);
            }
        }
}

TEST_CASE("non-finite: a rollback or a reset removes a token", "[decoder]") {
  for (const Held& position : positions()) {
    const MultiHeadAttention attention(orf<T>(d, 8, 1), position, {.direction = Direction::causal});
    Decoder decoder(attention, {.rollback = 2});
    TokenBatch<T> x(1, 1, 1, n, d, d_v);
    const T key = x.k(0, 0)(bad, 0);
    x.prefill(decoder, 0, bad);
    x.k(0, 0)(bad, 0) = std::numeric_limits<T>::quiet_NaN();
    x.step(decoder, bad, 2);
    CHECK(x.y(0, 0).middleRows(bad, 2).array().isNaN().all());
    decoder.rollback(0, 2);
    x.k(0, 0)(bad, 0) = key;
    x.step(decoder, bad, 20);
    CHECK(x.y(0, 0).middleRows(bad, 20).allFinite());
    x.k(0, 0)(bad + 20, 0) = std::numeric_limits<T>::infinity();
    x.step(decoder, bad + 20, 30);
    CHECK(x.y(0, 0).row(bad + 20).array().isNaN().all());
    decoder.reset(0);
    x.step(decoder, 0, bad);
    CHECK(x.y(0, 0).topRows(bad).allFinite());
  }
}

TEST_CASE("non-finite: check_finite refuses a call and changes nothing", "[decoder]") {
  const MultiHeadAttention attention(orf<T>(d, 8, 1), positions()[2], {.direction = Direction::causal});
  Decoder decoder(attention);
  TokenBatch<T> x(1, 1, 1, n, d, d_v);
  x.prefill(decoder, 0, 10);
  x.v(0, 0)(10, 0) = std::numeric_limits<T>::quiet_NaN();
  const T before = x.y(0, 0)(10, 0);
  check_invalid([&] { x.step(decoder, 10, 1, {.check_finite = true}); }, {"values", "expected finite"});
  CHECK(decoder.tokens(0) == 10);
  CHECK(x.y(0, 0)(10, 0) == before);
}

TEST_CASE("underflow: log-scales of keys far apart", "[decoder]") {
  // keys of growing and of falling norm: factors exp(-|k|^2/2) that no float holds
  for (const bool grows : {true, false})
    for (const Held& position : positions()) {
      const AttentionOptions options{.direction = Direction::causal, .normalization = Normalization::none()};
      const auto features = orf<T>(d, 8, 1);
      // in double, which holds the factors
      LagBias<double> bias{position.held.first, position.held.table.cast<double>(), position.held.slope_before, 0};
      const Attention exact(PositiveFeatures<double>(Matrix<double>(features.projection().cast<double>())),
                            HeldPosition<double>{bias}, options);
      Decoder decoder(MultiHeadAttention(features, position, options));
      TokenBatch<T> x(1, 1, 1, n, d, d_v);
      for (Index j = 0; j < n; ++j) x.k(0, 0).row(j) *= T(1) + T(0.1) * static_cast<T>(grows ? j : n - 1 - j);
      Report report;
      x.step(decoder, 0, n, {.report = &report});
      CHECK(report.failing_rows == 0);
      CHECK(report.error_bound < 1e-3);  // norms up to 20
      const Matrix<T> y = x.y(0, 0), v = x.v(0, 0);
      const Matrix<double> expected =
          reference::kernelized_attention(exact, x.q(0, 0).cast<double>(), x.k(0, 0).cast<double>(), v.cast<double>());
      CHECK(ratio_to_bound(y, Matrix<T>(expected.cast<T>()), report.error_bound, v) <= 1);
    }
}

TEST_CASE("failing rows are counted", "[decoder]") {
  // first-order series of opposite tokens: 1 + q.k = 0
  const auto rows = [](const Held& position) {
    const MultiHeadAttention attention(TaylorFeatures<T>({.input_dim = d}), position, {.direction = Direction::causal});
    Decoder decoder(attention);
    TokenBatch<T> x(1, 1, 1, n, d, d_v);
    for (Index i = 0; i < n; ++i) x.q(0, 0).row(i).setOnes(), x.k(0, 0).row(i).setConstant(-1);
    Report report;
    x.step(decoder, 0, n, {.report = &report});
    if (report.failing_rows == 0) CHECK(x.y(0, 0).allFinite());
    CHECK(report.repaired_rows + report.failing_rows == n);
    return report.failing_rows;
  };
  // a ring with all attended keys has what exact softmax needs, and sums have not: the first block goes to them whole
  CHECK(rows(window(10)) == 0);
  CHECK(rows({RelativePosition<T>(random_table<T>(n, 4)).bias()}) == 0);
  CHECK(rows({NoPosition<T>().bias()}) == n - (RunningSums<T>::block - 1));
}

TEST_CASE("rows whose denominators underflow fail", "[decoder]") {
  // features of queries and of keys that peak far apart
  Matrix<T> w = Matrix<T>::Zero(2, d);
  w(0, 0) = 1, w(1, 0) = -1;
  for (const Held& position : positions()) {
    const AttentionOptions options{.direction = Direction::causal, .normalization = Normalization::none()};
    Decoder decoder(MultiHeadAttention(PositiveFeatures<T>(w), position, options));
    TokenBatch<T> x(1, 1, 1, 5, d, d_v);
    x.q.values.setZero(), x.k.values.setZero();
    x.q.values.col(0).setConstant(120), x.k.values.col(0).setConstant(-120);
    Report report;
    x.step(decoder, 0, 5, {.report = &report});
    CHECK(report.failing_rows == 5);
    CHECK(report.error_bound == infinity);
    CHECK(x.y.values.array().isNaN().all());
  }
}

}  // namespace nprf::test::decoder_decoder_non_finite
