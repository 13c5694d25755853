// SPDX-License-Identifier: MIT
//
// The rows of steps are those of the formula, for all positions, with positive features.
#include "nprf/decoder/decoder.hpp"

#include <algorithm>
#include <limits>
#include <sstream>
#include <vector>

#include "decoder/check_steps.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/kerple.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::decoder_decoder {

using namespace decoder_steps;

TEMPLATE_TEST_CASE("steps: positive features", "[decoder]", NPRF_TEST_SCALARS) {
  using T = TestType;
  check_positions(orf<T>(d, 12, 3));
  check_positions(orf<T>(d, 12, 3), {.normalization = Normalization::none()});
  check_positions(sphere_prf<T>(d, 8, 3));
  check_positions(HyperbolicFeatures<T>({.input_dim = d, .num_features = 9}), {.near = 7});
}

TEMPLATE_TEST_CASE("steps: attention sinks", "[decoder]", NPRF_TEST_SCALARS) {
  using T = TestType;
  check_positions(orf<T>(d, 12, 3), {.sinks = 1});
  check_positions(orf<T>(d, 12, 3), {.normalization = Normalization::none(), .near = 7, .sinks = 4});
  check_positions(orf<T>(d, 12, 3), {.near = 2, .sinks = 100});
}

TEMPLATE_TEST_CASE("steps: features of another kernel", "[decoder]", NPRF_TEST_SCALARS) {
  check_positions(EluFeatures<TestType>(d));
}

// log-scales and scores have no digits beside such a bias
TEMPLATE_TEST_CASE("steps: queries that attend by biases far below the largest alone", "[decoder]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const double low : {-1e5, -1e9, -1e30}) {
    Vector<T> table = T(0.5) * random_table<T>(30, 3);
    table.segment(30 - 9, 10).setConstant(static_cast<T>(low));  // of the last 10 keys, which are all
    const HeldPosition<T> position{RelativePosition<T>(table).bias()};
    check(orf<T>(d, 12, 3), position, 10, {.normalization = Normalization::none()});
    check(orf<T>(d, 12, 3), position, 10, {.near = 4});
    check(orf<T>(d, 12, 3), position, 10, {.near = 4, .sinks = 3});
  }
}

TEST_CASE("steps: a near field, sinks and rollbacks beyond all tokens are those of all tokens", "[decoder]") {
  using T = float;
  constexpr Index n = 60, most = std::numeric_limits<Index>::max();
  Vector<T> window = random_table<T>(20, 3);
  window.head(4).setConstant(-std::numeric_limits<T>::infinity());
  for (const HeldPosition<T>& position :
       {HeldPosition<T>{AlibiPosition<T>(T(0.2)).bias()}, HeldPosition<T>{RelativePosition<T>(window).bias()}}) {
    struct Sizes {
      Index near, sinks, rollback, most_tokens;
    };
    const auto rows = [&](const Sizes& x) {
      const AttentionOptions options{.direction = Direction::causal, .near = x.near, .sinks = x.sinks};
      Decoder decoder(MultiHeadAttention(orf<T>(d, 8, 3), position, options),
                      {.rollback = x.rollback, .most_tokens = x.most_tokens});
      TokenBatch<T> tokens(1, 1, 1, n, d, d_v);
      tokens.step(decoder, 0, n);
      decoder.rollback(0, n - 5);
      tokens.step(decoder, 5, n - 5);
      CHECK(decoder.bytes() < 100000);
      return tokens.y.values;
    };
    const Matrix<T> near = rows({2 * n, 0, n, 2 * n}), sinks = rows({1, 2 * n, n, 2 * n});
    for (const Index size : {Index{1} << 31, Index{1} << 47, most / 2, most}) {
      CHECK(same_bits(rows({size, 0, Index{1} << 24, 0}), near));
      CHECK(same_bits(rows({size, size, Index{1} << 24, size}), near));
      CHECK(same_bits(rows({1, size, n, 0}), sinks));
    }
  }
}

TEST_CASE("prefill and steps: padding is neither read nor counted", "[decoder]") {
  using T = float;
  constexpr Index heads = 2, n = 20;
  const AttentionOptions options{.direction = Direction::causal, .normalization = Normalization::none()};
  const MultiHeadAttention attention(orf<T>(d, 12, 3), AlibiPosition<T>(T(0.2)), options);
  const std::vector<Index> lengths{12, 0, n};
  for (const bool is_prefill : {true, false}) {
    Decoder decoder(attention, {.batch = 3});
    TokenBatch<T> x(3, heads, 1, n, d, d_v);
    double error_bound = 0;
    for (Index b = 0; b < 3; ++b) {
      const Index length = lengths[static_cast<std::size_t>(b)];
      TokenBatch<T> one(1, heads, 1, length, d, d_v);
      for (Index h = 0; h < heads; ++h) {
        one.q(0, h) = x.q(b, h).topRows(length);
        x.q(b, h).bottomRows(n - length).setConstant(std::numeric_limits<T>::max());
      }
      one.k(0, 0) = x.k(b, 0).topRows(length), one.v(0, 0) = x.v(b, 0).topRows(length);
      x.k(b, 0).bottomRows(n - length).setConstant(std::numeric_limits<T>::quiet_NaN());
      x.v(b, 0).bottomRows(n - length).setConstant(std::numeric_limits<T>::infinity());
      Decoder alone(attention);
      Report report;
      is_prefill ? one.prefill(alone, 0, length, {.report = &report}) : one.step(alone, 0, length, {.report = &report});
      error_bound = std::max(error_bound, report.error_bound);
    }
    x.q(0, 1)(12, 0) = std::numeric_limits<T>::quiet_NaN();
    Report report;
    const CallOptions call{
        .lengths = lengths, .check_finite = true, .report = &report, .softmax_samples = is_prefill ? n : 0};
    is_prefill ? x.prefill(decoder, 0, n, call) : x.step(decoder, 0, n, call);
    CHECK(report.empty_rows == 0);
    CHECK(report.repaired_rows == 0);
    CHECK(report.error_bound == error_bound);
    CHECK(report.compared_rows == (is_prefill ? heads * (12 + n) : 0));
    for (Index b = 0; b < 3; ++b)
      for (Index h = 0; h < heads; ++h) {
        const Index length = lengths[static_cast<std::size_t>(b)];
        CHECK(all_zero(x.y(b, h).bottomRows(n - length)));
        CHECK_FALSE((x.y(b, h).topRows(length).array() == 0).any());
      }
    x.q(0, 1)(11, 0) = std::numeric_limits<T>::quiet_NaN();
    check_invalid([&] { x.step(decoder, 0, n, {.lengths = lengths, .check_finite = true}); },
                  {"queries", "batch 0, head 1, row 11"});
  }
}

TEST_CASE("steps: a line for a table that sequences do not outgrow", "[decoder]") {
  using T = float;
  constexpr Index n = 300;
  Vector<T> falling(2 * n + 1);
  for (Index l = 0; l < falling.size(); ++l) falling[l] = T(-0.1) * static_cast<T>(std::abs(l - n));
  const auto map = orf<T>(d, 12, 3);
  const HeldPosition<T> position{RelativePosition<T>(falling).bias()};
  const AttentionOptions causal{.direction = Direction::causal};
  TokenBatch<T> x(1, 1, 1, n + 1, d, d_v, 7);
  Decoder limited(MultiHeadAttention(map, position, causal), {.most_tokens = n}),
      any(MultiHeadAttention(map, position, causal));
  x.prefill(any, 0, n);
  x.prefill(limited, 0, 20);
  Report report;
  for (Index i = 20; i < n; ++i) x.step(limited, i, 1, {.report = &report});
  CHECK(limited.bytes() * 5 < any.bytes());
  const Matrix<T> q = x.q(0, 0).topRows(n), k = x.k(0, 0).topRows(n), v = x.v(0, 0).topRows(n),
                  expected = reference::kernelized_attention(Attention(map, position, causal), q, k, v);
  CHECK(ratio_to_bound(Matrix<T>(x.y(0, 0).middleRows(20, n - 20)), Matrix<T>(expected.bottomRows(n - 20)),
                       report.error_bound, v) <= 1);
  CHECK(report.error_bound < 1e-4);
  check_invalid([&] { x.step(limited, n, 1); }, {"at most 300", "most_tokens", "got 300 and 1 more"});
  CHECK(limited.tokens(0) == n);
}

TEST_CASE("steps: sums of decays for a smooth table that sequences do not outgrow", "[decoder]") {
  using T = float;
  constexpr Index n = 900, prompt = 500, rollback = 5;
  const auto map = orf<T>(d, 12, 3);
  const HeldPosition<T> position{KerpleLogPosition<T>(KerpleLog(0.5, 0.1), n).bias()};
  const AttentionOptions causal{.direction = Direction::causal};
  for (const Index near : {0, 7}) {
    AttentionOptions options = causal;
    options.near = near;
    TokenBatch<T> x(1, 1, 1, n, d, d_v, 7);
    const double v_max = static_cast<double>(x.v.values.cwiseAbs().maxCoeff());
    const MultiHeadAttention attention(map, position, options);
    Decoder decoder(attention, {.rollback = rollback, .most_tokens = n}), other(attention, {.most_tokens = n});
    x.prefill(decoder, 0, prompt);
    Report report;
    double bound = 0;
    std::size_t bytes = 0;
    for (Index i = prompt; i < n; ++i) {
      x.step(decoder, i, 1, {.report = &report});
      bound = std::max(bound, report.error_bound);
      if (i == 700) {  // takes back some tokens, and adds them again
        const Matrix<T> first = x.y(0, 0).middleRows(i - 2, 3);
        bytes = decoder.bytes();
        decoder.rollback(0, 3);
        x.step(decoder, i - 2, 3);
        CHECK((first - x.y(0, 0).middleRows(i - 2, 3)).cwiseAbs().maxCoeff() <= bound * v_max);
      }
    }
    CHECK(decoder.bytes() == bytes);
    const Matrix<T> q = x.q(0, 0), k = x.k(0, 0), v = x.v(0, 0);
    Report exact;
    const Matrix<T> expected = Attention(
        map, position, {Direction::causal, options.normalization, Engine::direct, near})(q, k, v, {.report = &exact});
    CHECK(ratio_to_bound(Matrix<T>(x.y(0, 0).bottomRows(n - prompt)), Matrix<T>(expected.bottomRows(n - prompt)),
                         bound + exact.error_bound, v) <= 1);
    CHECK((bound > 1e-6 && bound < 1e-4));

    std::ostringstream out;
    decoder.save(out);
    Decoder loaded(attention, {.rollback = rollback, .most_tokens = n});
    std::istringstream in(out.str());
    loaded.load(in);
    decoder.rollback(0, 2), loaded.rollback(0, 2);
    x.step(decoder, n - 2, 2);
    const Matrix<T> again = x.y(0, 0).bottomRows(2);
    x.step(loaded, n - 2, 2);
    CHECK(same_bits(again, Matrix<T>(x.y(0, 0).bottomRows(2))));
  }
}

}  // namespace nprf::test::decoder_decoder
