// SPDX-License-Identifier: MIT
//
// The bits of the rows of steps do not depend on how the tokens were divided between calls, on the other sequences of
// the batch, or on the number of threads.
#include <algorithm>
#include <vector>

#include "decoder/tokens.hpp"
#include "nprf/decoder/decoder.hpp"
#include "nprf/feature_map/centred.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "support/catch.hpp"
#include "support/threads.hpp"

namespace nprf::test::decoder_decoder_bits {

namespace {

constexpr Index d = 6, d_v = 5, n = 120;
using T = float;
using Held = HeldPosition<T>;

std::vector<Held> positions() { return kinds_of_positions<T>(16, 40, 20, n + 20); }

// the rows from `from` on, of one sequence
Matrix<T> rows_from(const TokenBatch<T>& x, Index from) {
  const Index rest = x.y.view.tokens - from;
  Matrix<T> rows(x.y.view.heads * rest, d_v);
  for (Index h = 0; h < x.y.view.heads; ++h) rows.middleRows(h * rest, rest) = x.y.view(0, h).bottomRows(rest);
  return rows;
}

// of `tokens` tokens
template <class F>
void check_splits(const MultiHeadAttention<F, Held>& attention, Index tokens, Index most_tokens,
                  const std::vector<Index>& prompts) {
  const DecoderOptions options{.rollback = 5, .most_tokens = most_tokens};
  TokenBatch<T> x(1, 4, 2, tokens, d, d_v);
  Decoder by_one(attention, options);
  for (Index i = 0; i < tokens; ++i) x.step(by_one, i, 1);
  for (const Index prompt : prompts)
    for (const Index count : {1, 3, 20}) {
      TokenBatch<T> y(1, 4, 2, tokens, d, d_v);
      Decoder decoder(attention, options);
      y.prefill(decoder, 0, prompt);
      for (Index first = prompt; first < tokens; first += count)
        y.step(decoder, first, std::min(count, tokens - first));
      INFO("prompt " << prompt << " steps of " << count);
      CHECK(same_bits(rows_from(x, prompt), rows_from(y, prompt)));
      // a prompt in pieces, all but the first of which are steps
      TokenBatch<T> z(1, 4, 2, tokens, d, d_v);
      decoder.reset();
      z.prefill(decoder, 0, prompt);
      z.prefill(decoder, prompt, tokens - prompt);
      CHECK(same_bits(rows_from(x, prompt), rows_from(z, prompt)));
    }
}
template <class F>
void check_splits(const F& map, AttentionOptions options) {
  options.direction = Direction::causal;
  for (const Held& position : positions())
    check_splits(MultiHeadAttention(map, position, options), n, 0, {1, 17, 64, 100});
}

}  // namespace

TEST_CASE("bits: any division of the tokens", "[decoder]") {
  check_splits(orf<T>(d, 12, 3), {});
  check_splits(Centred(TaylorFeatures<T>({.input_dim = d, .directions = 3}), centring<T>(d)), {.near = 9});
}

TEST_CASE("bits: any division of the tokens, of which older ones are summed by chunks", "[decoder]") {
  constexpr Index tokens = 420;
  const Held position{RelativePosition<T>(waving_table<T>(tokens)).bias()};
  const auto map = orf<T>(d, 6, 3);
  for (const Index near : {0, 70}) {
    const MultiHeadAttention attention(map, position, {.direction = Direction::causal, .near = near});
    StepModel<T> model(FeatureMapView<T>(map), PositionView<T>(position), attention.options(), 5, tokens);
    model.set_chunks(d_v);
    REQUIRE(model.chunks.levels() >= 2);
    check_splits(attention, tokens, tokens, {1, 127, 130, 300});
  }
}

TEST_CASE("bits: any batch and number of threads", "[decoder][threads]") {
  constexpr Index batch = 3, heads = 4;
  for (const Held& position : positions()) {
    // steps of 40 tokens with 200 features are worth three threads
    const std::vector<PositiveFeatures<T>> maps(heads, orf<T>(d, 200, 3));
    const MultiHeadAttention attention(maps, position, {.direction = Direction::causal});
    TokenBatch<T> x(batch, heads, 2, n, d, d_v);
    const std::vector<Index> prompts{40, 7, 0};
    // sequences of different lengths, by three threads
    Matrix<T> all(batch * heads * (n - 40), d_v);
    for (const Index threads : {1, 3}) {
      const Threads some(threads);
      Decoder decoder(attention, {.batch = batch});
      x.prefill(decoder, 0, 40, {.lengths = prompts});
      for (Index i = 40; i < n; i += 40) x.step(decoder, i, 40);
      CHECK(decoder.tokens(1) == n - 33);
      Matrix<T> rows(all.rows(), d_v);
      for (Index b = 0; b < batch; ++b)
        for (Index h = 0; h < heads; ++h)
          rows.middleRows((b * heads + h) * (n - 40), n - 40) = x.y(b, h).bottomRows(n - 40);
      if (threads == 1) all = rows;
      CHECK(same_bits(all, rows));
    }
    // each sequence alone
    for (Index b = 0; b < batch; ++b) {
      const Index prompt = prompts[static_cast<std::size_t>(b)];
      TokenBatch<T> alone(1, heads, 2, n, d, d_v);
      for (Index h = 0; h < heads; ++h) alone.q(0, h) = x.q(b, h);
      for (Index h = 0; h < 2; ++h) alone.k(0, h) = x.k(b, h), alone.v(0, h) = x.v(b, h);
      Decoder decoder(attention);
      alone.prefill(decoder, 0, prompt);
      for (Index i = 40; i < n; ++i) alone.step(decoder, i, 1);
      CHECK(same_bits(rows_from(alone, 40), Matrix<T>(all.middleRows(b * heads * (n - 40), heads * (n - 40)))));
    }
  }
}

TEST_CASE("bits: threads that share the states of a sequence", "[decoder][threads]") {
  // 24 states, 2 of which are a task of one of three threads, and all of a sequence one of a single thread
  constexpr Index batch = 12, heads = 2, tokens = 40, count = 8;
  const MultiHeadAttention attention(orf<T>(d, 200, 3), Held{RelativePosition<T>(random_table<T>(n, 4)).bias()},
                                     {.direction = Direction::causal});
  TokenBatch<T> x(batch, heads, heads, tokens, d, d_v);
  Matrix<T> by_one_thread;
  for (const Index threads : {1, 3}) {
    const Threads some(threads);
    Decoder decoder(attention, {.batch = batch});
    for (Index first = 0; first < tokens; first += count) x.step(decoder, first, count);
    if (threads == 1) by_one_thread = x.y.values;
    CHECK(same_bits(by_one_thread, x.y.values));
    x.y.values.setZero();
  }
}

}  // namespace nprf::test::decoder_decoder_bits
