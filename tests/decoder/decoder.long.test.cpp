// SPDX-License-Identifier: MIT
//
// Many steps do not drift: the last rows are within their error bounds, which do not grow.
#include <algorithm>
#include <cmath>
#include <utility>

#include "decoder/tokens.hpp"
#include "nprf/decoder/decoder.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/t5.hpp"
#include "support/catch.hpp"

namespace nprf::test::decoder_decoder_long {

// The tokens repeat with a period, so the weights of each residue add up to a number in closed form: the number of its
// tokens, or with ALiBi a geometric series.
TEST_CASE("a million steps", "[long]") {
  using T = float;
  constexpr Index d = 4, d_v = 4, period = 100, n = 1000000;
  const auto features = orf<T>(d, 8, 1);
  for (const double slope : {0.0, 1e-5, 0.01}) {
    const AlibiPosition<T> position(static_cast<T>(slope));
    const Attention one(features, position, {.direction = Direction::causal});
    TokenBatch<T> x(1, 1, 1, period, d, d_v);
    Decoder decoder(MultiHeadAttention(features, position, {.direction = Direction::causal}));
    Report report;
    for (Index i = 0; i < n; i += period) x.step(decoder, 0, period, {.report = &report});
    CHECK(decoder.tokens(0) == n);
    CHECK(report.error_bound < 2e-5);

    const Matrix<double> A = one.query_features(Matrix<T>(x.q(0, 0))).cast<double>(),
                         B = one.key_features(Matrix<T>(x.k(0, 0))).cast<double>(), v = x.v(0, 0).cast<double>();
    const double s = static_cast<double>(static_cast<T>(slope)), repeats = n / period;
    for (Index i = 0; i < period; ++i) {
      const auto position_of_query = static_cast<double>(n - period + i);
      Vector<double> N = Vector<double>::Zero(d_v);
      double D = 0;
      for (Index j = 0; j < period; ++j) {
        const double count = j <= i ? repeats : repeats - 1,
                     youngest = static_cast<double>(i - (j <= i ? j : j - period)), ratio = std::exp(-s * period);
        const double series =
            s == 0 ? count : std::exp(-s * youngest) * std::expm1(count * std::log(ratio)) / (ratio - 1);
        CHECK(youngest + (count - 1) * period <= position_of_query);
        const double weight = A.row(i).dot(B.row(j)) * series;
        N += weight * v.row(j).transpose(), D += weight;
      }
      for (Index p = 0; p < d_v; ++p)
        CHECK(std::abs(x.y(0, 0)(i, p) - N[p] / D) <= report.error_bound * v.cwiseAbs().maxCoeff());
    }
  }
}

namespace {

// the last rows of many steps with tokens that repeat with a period
template <class F, class P>
void check_last_rows(const F& features, const P& position, Index near, Index n) {
  constexpr Index d = 4, d_v = 4, period = 100;
  const AttentionOptions options{.direction = Direction::causal, .near = near};
  const Attention one(features, position, options);
  TokenBatch<float> x(1, 1, 1, period, d, d_v);
  Decoder decoder(MultiHeadAttention(features, position, options), {.most_tokens = n});
  Report report;
  for (Index i = 0; i < n; i += period) {
    x.step(decoder, 0, period, {.report = &report});
    CHECK(report.failing_rows + report.repaired_rows == 0);
  }
  const Matrix<float> q = x.q(0, 0), k = Matrix<float>(x.k(0, 0)).replicate(n / period, 1),
                      v = Matrix<float>(x.v(0, 0)).replicate(n / period, 1),
                      expected = reference::kernelized_attention(one, q, k, v, n - period);
  CHECK(report.error_bound < 2e-4);
  CHECK(ratio_to_bound(Matrix<float>(x.y(0, 0)), expected, report.error_bound, v) <= 1);
}

}  // namespace

TEST_CASE("many steps with a ring of keys, and with sums of chunks", "[long]") {
  constexpr Index n = 20000;
  check_last_rows(TaylorFeatures<float>({.input_dim = 4, .directions = 2}),
                  t5_position<float>(normal<float>(1, 16, 2).row(0), Direction::causal, 40), 32, n);
  check_last_rows(orf<float>(4, 8, 1), RelativePosition<float>(waving_table<float>(n)), 0, n);
}

// rounding errors of equal terms do not average out
TEST_CASE("steps over many equal tokens are within their bound, of far pairs, near ones and sinks", "[decoder]") {
  using T = float;
  constexpr Index d = 4, d_v = 16, n = 3000;
  Vector<T> table(2 * n - 1);
  for (Index l = 0; l < table.size(); ++l) table[l] = l % 2 == 0 ? T(0.01) : T(0);  // no tail
  const RelativePosition<T> position(table);
  for (const auto& [near, sinks] : {std::pair<Index, Index>{0, 0}, {n, 0}, {0, n}}) {
    const AttentionOptions options{.direction = Direction::causal, .near = near, .sinks = sinks};
    TokenBatch<T> x(1, 1, 1, 1, d, d_v);
    const Matrix<T> v = x.v(0, 0);
    Decoder decoder(MultiHeadAttention(orf<T>(d, 8, 1), position, options));
    Report report;
    double worst = 0;
    for (Index i = 0; i < n; ++i) {
      x.step(decoder, 0, 1, {.report = &report});
      worst = std::max(worst, ratio_to_bound(Matrix<T>(x.y(0, 0)), v, report.error_bound, v));
    }
    INFO(near << " near, " << sinks << " sinks");
    CHECK(report.failing_rows + report.repaired_rows == 0);
    CHECK(worst <= 1);
  }
}

// The table falls to a weight below the normal numbers, and keeps it beyond its end. The first key's score makes up for
// that: its exponent is 90 - 100 beside -90 for each of the others.
TEST_CASE("a key of high score counts at any distance beyond a falling table", "[decoder]") {
  using T = float;
  constexpr Index d = 2, d_v = 3, n = 300, reach = 100;
  Vector<T> table(2 * reach + 1);
  for (Index l = 0; l < table.size(); ++l) table[l] = -static_cast<T>(std::abs(l - reach));
  const AttentionOptions options{
      .direction = Direction::causal, .normalization = Normalization::none(), .near = 2, .sinks = 1};
  TokenBatch<T> x(1, 1, 1, n, d, d_v);
  x.q.values.col(0).setConstant(9), x.q.values.col(1).setZero();
  x.k.values = -x.q.values / T(0.9);
  x.k.values.row(0) *= T(-1);
  Decoder decoder(MultiHeadAttention(orf<T>(d, 8, 1), RelativePosition<T>(table), options));
  Report report;
  for (Index i = 0; i < n; ++i) x.step(decoder, i, 1, {.report = &report});
  CHECK(report.failing_rows == 0);
  // later keys have at most n exp(-80) of the weight
  const Matrix<T> first = x.v.values.row(0).replicate(n, 1);
  CHECK(ratio_to_bound<T>(x.y.values, first, report.error_bound, x.v.values) <= 1);
}

}  // namespace nprf::test::decoder_decoder_long
