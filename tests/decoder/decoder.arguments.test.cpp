// SPDX-License-Identifier: MIT
//
// What a decoder refuses, and what it leaves unchanged then; grouped queries; prompts of different lengths.
#include <limits>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "decoder/tokens.hpp"
#include "nprf/decoder/decoder.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/t5.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::decoder_decoder_arguments {

namespace {

constexpr Index d = 4, d_v = 3, n = 30;
using T = float;
const AttentionOptions causal{.direction = Direction::causal};

// a user's own map, which throws for a query or key with a large first channel
struct Throwing {
  using Scalar = T;
  static constexpr bool estimates_exp = false, is_positive = true;
  Index input_dim() const { return d; }
  Index output_dim() const { return d; }
  Matrix<T> queries(const MatrixView<T>& x) const {
    if ((x.col(0).array() > 100).any()) throw std::runtime_error("too large");
    return x.array().square() + T(0.1);
  }
  Matrix<T> keys(const MatrixView<T>& x) const { return queries(x); }
  Matrix<T> backward(const MatrixView<T>& x, const MatrixView<T>&, const MatrixView<T>& dphi) const {
    return 2 * x.cwiseProduct(dphi);
  }
};

// a poll that throws at the given call, and its number of calls so far
thread_local int polls = 0, stop_at = 0;

struct Stopped {};

void count_or_stop() {
  if (++polls == stop_at) throw Stopped();
}

}  // namespace

TEST_CASE("arguments: what a decoder cannot be built for", "[decoder]") {
  const auto map = orf<T>(d, 6, 1);
  check_invalid([&] { Decoder(MultiHeadAttention(map)); }, {"attention", "Direction::causal", "bidirectional"});
  const MultiHeadAttention grid(map, GridPosition<T>(3, 4, Matrix<T>::Zero(5, 7)), causal);
  check_invalid([&] { Decoder{grid}; }, {"position", "grid"});
  const MultiHeadAttention attention(map, causal);
  check_invalid([&] { Decoder(attention, {.batch = 0}); }, {"batch", "at least 1", "got 0"});
}

TEST_CASE("arguments: calls that are refused change nothing", "[decoder]") {
  const std::vector<PositiveFeatures<T>> maps(4, orf<T>(d, 6, 1));
  Decoder decoder(MultiHeadAttention(maps, causal), {.batch = 2});
  TokenBatch<T> x(2, 4, 2, n, d, d_v), three(2, 3, 3, n, d, d_v), ungrouped(2, 4, 3, n, d, d_v),
      wide(2, 4, 2, n, d, d_v + 1), deep(2, 4, 2, n, d + 1, d_v), long_batch(3, 4, 2, n, d, d_v),
      other(2, 4, 4, n, d, d_v);
  check_invalid([&] { three.step(decoder, 0, 1); }, {"queries", "expected 4 heads", "got 3"});
  check_invalid([&] { ungrouped.step(decoder, 0, 1); }, {"keys", "multiple", "got 3"});
  check_invalid([&] { deep.step(decoder, 0, 1); }, {"queries", "expected 2 x 4 x 1 x 4", "got 2 x 4 x 1 x 5"});
  check_invalid([&] { long_batch.prefill(decoder, 0, 1); }, {"queries", "got 3 x"});
  const auto check_nothing_is_refused = [&] {
    check_invalid([&] { decoder.step(HeadsView<T>{}, HeadsView<T>{}, HeadsView<T>{}, HeadsView<T>{}); }, {"queries"});
  };
  check_nothing_is_refused();
  check_invalid([&] { wide.prefill(decoder, 0, 1, {.softmax_samples = 1}); }, {"softmax_samples", "without a report"});
  CHECK(decoder.bytes() == 0);
  x.prefill(decoder, 0, 10);
  std::stringstream file;
  decoder.save(file);
  decoder.load(file);
  check_nothing_is_refused();
  const std::size_t bytes = decoder.bytes();
  CHECK(bytes > 0);
  check_invalid([&] { wide.step(decoder, 0, 1); }, {"3 channels", "got 4, 2 and 4"});
  check_invalid([&] { other.step(decoder, 0, 1); }, {"2 heads", "got 4, 4 and 3"});
  const bool mask[2] = {true, true};
  check_invalid([&] { x.step(decoder, 10, 1, {.key_mask = std::span(mask)}); }, {"key_mask", "none"});
  check_invalid([&] { x.step(decoder, 10, 1, {.offset = 1}); }, {"offset", "got 1"});
  check_invalid([&] { x.step(decoder, 10, 1, {.tolerance = -1}); }, {"tolerance", "got -1"});
  check_invalid([&] { x.step(decoder, 10, 1, {.softmax_samples = 1}); }, {"softmax_samples", "got 1"});
  const std::vector<Index> one{1}, negative{0, -1}, more{0, 2}, cumulative{0, 1};
  check_invalid([&] { x.step(decoder, 10, 1, {.lengths = one}); }, {"lengths", "expected 2", "got 1"});
  check_invalid([&] { x.step(decoder, 10, 1, {.lengths = negative}); }, {"lengths[1]", "got -1"});
  check_invalid([&] { x.step(decoder, 10, 1, {.lengths = more}); }, {"lengths[1]", "expected 0 to 1", "got 2"});
  check_invalid([&] { x.step(decoder, 10, 1, {.cumulative_lengths = cumulative}); }, {"cumulative_lengths"});
  check_invalid([&] { decoder.step(x.q.part(10, 1), x.k.part(10, 2), x.v.part(10, 2), x.y.part(10, 1)); }, {"keys"});
  check_invalid([&] { decoder.step(x.q.part(10, 1), x.k.part(10, 1), x.v.part(10, 1), x.v.part(10, 1)); }, {"y"});
  CHECK(decoder.tokens(0) == 10);
  CHECK(decoder.tokens(1) == 10);
  CHECK(decoder.bytes() == bytes);
  x.step(decoder, 10, 0);
  CHECK(decoder.tokens(0) == 10);
}

TEST_CASE("arguments: a feature map that throws", "[decoder]") {
  for (const Index rollback : {0, 3}) {
    AttentionOptions options = causal;
    options.normalization = Normalization::none();
    Decoder decoder(MultiHeadAttention(Throwing(), AlibiPosition<T>(0.1f), options),
                    {.batch = 2, .rollback = rollback});
    TokenBatch<T> x(2, 2, 2, n, d, d_v);
    x.prefill(decoder, 0, 10);
    const T key = x.k(1, 1)(11, 0);
    x.k(1, 1)(11, 0) = 1000;
    CHECK_THROWS_AS(x.step(decoder, 10, 2), std::runtime_error);
    // sequence 0 has appended its tokens: what cannot be taken back is reset
    CHECK(decoder.tokens(0) == (rollback == 0 ? 0 : 10));
    CHECK(decoder.tokens(1) == 10);
    x.k(1, 1)(11, 0) = key;
    x.step(decoder, 10, 2);
    CHECK(x.y(1, 1).row(11).allFinite());
  }
}

TEST_CASE("arguments: a poll that ends a step", "[decoder]") {
  const CallOptions call{.poll = count_or_stop};
  for (const Index rollback : {0, 200}) {
    const MultiHeadAttention attention(orf<T>(d, 6, 1), AlibiPosition<T>(0.1f), causal);
    Decoder decoder(attention, {.batch = 2, .rollback = rollback}), other(attention, {.batch = 2});
    TokenBatch<T> x(2, 2, 2, 210, d, d_v), y(2, 2, 2, 210, d, d_v);
    x.step(decoder, 0, 10), y.step(other, 0, 10);
    polls = 0, stop_at = 1;
    x.step(decoder, 10, 64, call), y.step(other, 10, 64);
    CHECK(polls == 0);
    for (stop_at = 1; stop_at <= 2; ++stop_at) {
      polls = 0;
      CHECK_THROWS_AS(x.step(decoder, 74, 136, call), Stopped);
      const Index tokens = rollback == 0 ? 0 : 74;
      CHECK(decoder.tokens(0) == tokens);
      CHECK(decoder.tokens(1) == tokens);
      if (rollback == 0) x.step(decoder, 0, 74);
    }
    polls = stop_at = 0;
    const std::vector<Index> lengths{136, 100};
    Report of_x, of_y;
    x.step(decoder, 74, 136, {.lengths = lengths, .report = &of_x, .poll = count_or_stop});
    y.step(other, 74, 136, {.lengths = lengths, .report = &of_y});
    CHECK(polls == 2);
    CHECK(decoder.tokens(1) == 174);
    if (rollback == 0) {  // with another ring, the same tokens are summed in another order
      CHECK(same_bits(x.y.values, y.y.values));
      CHECK(of_x.error_bound == of_y.error_bound);
    }
    polls = 0, stop_at = 1;
    decoder.reset();
    CHECK_THROWS_AS(x.prefill(decoder, 0, 210, call), Stopped);
    CHECK(decoder.tokens(0) == 0);
  }
}

TEST_CASE("arguments: grouped queries, and heads of different models", "[decoder]") {
  // as four heads with their own copies of the keys
  const std::vector<AlibiPosition<T>> slopes{AlibiPosition<T>(0.1f), AlibiPosition<T>(0.2f), AlibiPosition<T>(0.3f),
                                             AlibiPosition<T>(0.4f)};
  const auto map = orf<T>(d, 6, 1);
  const auto check = [&](const auto& attention) {
    TokenBatch<T> x(2, 4, 2, n, d, d_v), y(2, 4, 4, n, d, d_v);
    for (Index b = 0; b < 2; ++b)
      for (Index h = 0; h < 4; ++h) y.q(b, h) = x.q(b, h), y.k(b, h) = x.k(b, h / 2), y.v(b, h) = x.v(b, h / 2);
    Decoder grouped(attention, {.batch = 2}), copied(attention, {.batch = 2});
    x.prefill(grouped, 0, 10), y.prefill(copied, 0, 10);
    x.step(grouped, 10, n - 10), y.step(copied, 10, n - 10);
    CHECK(same_bits(x.y.values, y.y.values));
  };
  check(MultiHeadAttention(map, AlibiPosition<T>(0.1f), causal));
  check(MultiHeadAttention(map, slopes, causal));
}

TEST_CASE("arguments: tokens before heads, and rows after a sequence's length", "[decoder]") {
  const MultiHeadAttention attention(orf<T>(d, 6, 1), AlibiPosition<T>(0.1f), causal);
  TokenBatch<T> x(2, 2, 2, n, d, d_v);
  Decoder decoder(attention, {.batch = 2}), other(attention, {.batch = 2});
  const std::vector<Index> lengths{7, 10};
  x.prefill(decoder, 0, 10, {.lengths = lengths});
  CHECK(all_zero(x.y(0, 1).middleRows(7, 3)));
  CHECK_FALSE(all_zero(x.y(1, 1).middleRows(7, 3)));
  // [batch, tokens, heads, channels]
  const auto transposed = [](TokenArray<T>& a, Matrix<T>& values) {
    const auto [data, batch, heads, tokens, channels, strides] = a.view;
    values.resize(batch * tokens * heads, channels);
    const HeadsView<T> view = tokens_first(values.data(), batch, tokens, heads, channels);
    for (Index b = 0; b < batch; ++b)
      for (Index h = 0; h < heads; ++h) view(b, h) = a(b, h);
    return view;
  };
  Matrix<T> q, k, v, y;
  const HeadsView<T> tq = transposed(x.q, q), tk = transposed(x.k, k), tv = transposed(x.v, v), ty = transposed(x.y, y);
  other.step(tq, tk, tv, ty);
  decoder.reset();
  x.step(decoder, 0, n);
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 2; ++h) CHECK(same_bits(Matrix<T>(ty(b, h)), Matrix<T>(x.y(b, h))));
}

TEST_CASE("arguments: y beside queries, keys and values in one array", "[decoder]") {
  const MultiHeadAttention attention(orf<T>(d, 6, 1), AlibiPosition<T>(0.1f), causal);
  Decoder decoder(attention, {.batch = 2}), other(attention, {.batch = 2});
  constexpr Index heads = 2, of_head = n * d;  // [batch, heads, 4, tokens, channels]
  Matrix<T> all = normal<T>(2 * heads * 4 * n, d, 7), y(2 * heads * n, d);
  const auto part = [&](Index at) {
    return HeadsView<T>{all.data() + at * of_head, 2, heads, n, d, {d, 4 * of_head, 4 * heads * of_head}};
  };
  const HeadsView<T> apart{y.data(), 2, heads, n, d};
  other.step(part(0), part(1), part(2), apart);
  decoder.step(part(0), part(1), part(2), part(3));
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < heads; ++h) CHECK(same_bits(Matrix<T>(part(3)(b, h)), Matrix<T>(apart(b, h))));
  check_invalid([&] { decoder.step(part(0), part(1), part(2), part(1)); }, {"y", "shares no memory"});
}

}  // namespace nprf::test::decoder_decoder_arguments
