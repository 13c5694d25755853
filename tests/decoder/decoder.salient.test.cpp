// SPDX-License-Identifier: MIT
//
// Salient keys of a decoder, which a rule chooses.
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "decoder/check_steps.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::decoder_decoder_salient {

using namespace decoder_steps;

namespace {

using T = double;
constexpr Index tokens = 60;

// about every third key exceeds it
SalientRule rule(double threshold = 0.3) {
  return {std::vector<double>(d, 0.3), std::vector<double>(d * d, 0.05), threshold};
}

AttentionOptions options_of(Index salient, Index near = 4, Index sinks = 0) {
  AttentionOptions options{.direction = Direction::causal,
                           .normalization = Normalization::none(),
                           .near = near,
                           .sinks = sinks,
                           .salient = salient};
  options.salient_rules = {rule()};
  return options;
}

using Attention = MultiHeadAttention<PositiveFeatures<T>, AlibiPosition<T>>;
Attention attention_of(const AttentionOptions& options) { return {orf<T>(d, 12, 3), AlibiPosition<T>(0.05), options}; }

Matrix<T> rows_of(const Attention& attention, TokenBatch<T>& x) {
  Matrix<T> y(tokens, d_v);
  attention(HeadsView<const T>(x.q.view), HeadsView<const T>(x.k.view), HeadsView<const T>(x.v.view),
            HeadsView<T>{y.data(), 1, 1, tokens, d_v});
  return y;
}

double difference(const Matrix<T>& y, const Matrix<T>& expected) { return (y - expected).cwiseAbs().maxCoeff(); }

}  // namespace

TEMPLATE_TEST_CASE("steps: salient keys", "[decoder]", NPRF_TEST_SCALARS) {
  using S = TestType;
  check_positions(orf<S>(d, 12, 3), options_of(1, 0));
  check_positions(orf<S>(d, 12, 3), options_of(9, 7, 2));
  check_positions(orf<S>(d, 12, 3), options_of(std::numeric_limits<Index>::max(), 2, 1));
  check_positions(TaylorFeatures<S>({.input_dim = d}), options_of(20, 3, 1), 150);
}

TEST_CASE("salient keys that are taken back make room for others", "[decoder]") {
  const Attention attention = attention_of(options_of(8));
  TokenBatch<T> x(1, 1, 1, tokens, d, d_v, 7), old(1, 1, 1, tokens, d, d_v, 8);
  const Matrix<T> expected = rows_of(attention, x);
  CHECK(difference(expected, rows_of(attention_of(options_of(0)), x)) > 1e-3);
  for (const Index kept : {0, 5, 20, 30}) {
    Decoder decoder(attention, {.rollback = 15});
    x.prefill(decoder, 0, kept);
    old.step(decoder, kept, 15);
    decoder.rollback(0, 15);
    x.step(decoder, kept, tokens - kept);
    const Matrix<T> y = x.y(0, 0);
    CHECK(difference(y.bottomRows(tokens - kept), expected.bottomRows(tokens - kept)) <= 1e-11);
  }
  Decoder decoder(attention, {});
  old.prefill(decoder, 0, tokens);
  decoder.reset();
  x.step(decoder, 0, tokens);
  CHECK(difference(x.y(0, 0), expected) <= 1e-11);
}

TEST_CASE("a loaded decoder continues with the same salient keys", "[decoder]") {
  const Attention attention = attention_of(options_of(8, 4, 2));
  TokenBatch<T> x(1, 1, 1, tokens, d, d_v, 7), other(1, 1, 1, tokens, d, d_v, 7);
  Decoder decoder(attention, {.rollback = 3}), loaded(attention, {.rollback = 3});
  x.prefill(decoder, 0, 40);
  std::stringstream file;
  decoder.save(file);
  loaded.load(file);
  for (Decoder<T>* each : {&decoder, &loaded}) {
    each->rollback(0, 2);
    (each == &decoder ? x : other).step(*each, 38, tokens - 38);
  }
  CHECK(same_bits(Matrix<T>(x.y(0, 0).bottomRows(22)), Matrix<T>(other.y(0, 0).bottomRows(22))));
  for (const auto& [count, threshold] : {std::pair<Index, double>{7, 0.3}, {8, 0.4}, {0, 0.3}}) {
    AttentionOptions options = options_of(count, 4, 2);
    options.salient_rules = {rule(threshold)};
    Decoder<T> of_others(attention_of(options), {.rollback = 3});
    std::istringstream in(file.str());
    check_invalid([&] { of_others.load(in); }, {"expected", "options"});
  }
}

}  // namespace nprf::test::decoder_decoder_salient
