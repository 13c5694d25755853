// SPDX-License-Identifier: MIT
//
// Rollback, fork, reorder and reset; differential/lives.test.cpp has random calls.
#include <algorithm>
#include <sstream>
#include <vector>

#include "decoder/tokens.hpp"
#include "nprf/decoder/decoder.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/t5.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::decoder_decoder_sequences {

namespace {

constexpr Index d = 5, d_v = 3, heads = 2;
using T = float;
using Held = HeldPosition<T>;

std::vector<Held> positions() { return kinds_of_positions<T>(8, 14, 11, 500); }

}  // namespace

// running sums keep the tokens that are taken back
TEST_CASE("sequences: after a rollback no token is weighed twice", "[decoder]") {
  using E = double;
  constexpr Index most = 130, taken_back = 11, later = 20;
  const auto map = orf<E>(d, 5, 3);
  const AttentionOptions options{.direction = Direction::causal};
  Vector<E> falling = random_table<E>(most + later, 4);
  for (Index l = 0; l < most; ++l) falling[l] = E(0.5) * static_cast<E>(l - most - later);  // a line, the tail
  for (const HeldPosition<E>& position :
       {HeldPosition<E>{t5_position<E>(normal_vector<E>(32, 5), Direction::causal, 40).bias()},
        HeldPosition<E>{RelativePosition<E>(random_table<E>(50, 6)).bias()},
        HeldPosition<E>{RelativePosition<E>(falling).bias()}}) {
    const MultiHeadAttention attention(map, position, options);
    TokenBatch<E> x(1, 1, 1, most + later, d, d_v);
    const Matrix<E> v = x.v(0, 0),
                    expected = reference::kernelized_attention(Attention(map, position, options), Matrix<E>(x.q(0, 0)),
                                                               Matrix<E>(x.k(0, 0)), v);
    double worst = 0;
    for (Index n = 40; n <= most; n += 3)
      for (const Index first_part : {0, 3, 7}) {
        Decoder decoder(attention, {.rollback = taken_back, .most_tokens = most + later});
        x.step(decoder, 0, n);
        std::stringstream file;
        decoder.save(file);
        if (n % 2 == 0) decoder.load(file);
        decoder.rollback(0, first_part), decoder.rollback(0, taken_back - first_part);
        Report report;
        x.step(decoder, n - taken_back, taken_back + later, {.report = &report});
        CHECK(report.failing_rows == 0);
        worst = std::max(
            worst, ratio_to_bound<E>(x.y(0, 0).middleRows(n - taken_back, taken_back + later),
                                     expected.middleRows(n - taken_back, taken_back + later), report.error_bound, v));
      }
    CHECK(worst <= 1);
  }
}

// the places where chunks of 64 tokens begin, and several chunks that are taken back
TEST_CASE("sequences: after a rollback sums of chunks have no token that was taken back", "[decoder]") {
  constexpr Index most = 1300, later = 150;
  const auto map = orf<T>(d, 6, 3);
  const AttentionOptions options{.direction = Direction::causal};
  const HeldPosition<T> position{RelativePosition<T>(waving_table<T>(most)).bias()};
  const MultiHeadAttention attention(map, position, options);
  TokenBatch<T> x(1, 1, 1, most, d, d_v), other(1, 1, 1, most, d, d_v, 7);
  const Matrix<T> v = x.v(0, 0), expected = reference::kernelized_attention(
                                     Attention(map, position, options), Matrix<T>(x.q(0, 0)), Matrix<T>(x.k(0, 0)), v);
  double worst = 0;
  for (const Index taken_back : {1, 63, 64, 130, 300}) {
    StepModel<T> model(FeatureMapView<T>(map), PositionView<T>(position), options, taken_back, most);
    model.set_chunks(d_v);
    REQUIRE(model.chunks.any());
    for (const Index n : {128, 192, 320, 321, 383, 384, 385, 400}) {
      if (taken_back > n) continue;
      Decoder decoder(attention, {.rollback = taken_back, .most_tokens = most});
      const Index from = n - taken_back, count = std::min(taken_back + later, most - from);
      for (Index i = 0; i < from; i += 32) x.step(decoder, i, std::min<Index>(32, from - i));
      for (Index i = from; i < n; ++i) other.step(decoder, i, 1);
      const auto save_and_load = [&] {
        std::stringstream file;
        decoder.save(file);
        decoder.load(file);
      };
      if (n % 2 == 0) save_and_load();
      const Index first_part = taken_back / 3;
      decoder.rollback(0, first_part), decoder.rollback(0, taken_back - first_part);
      if (n % 3 != 0) save_and_load();
      Report report;
      for (Index i = 0; i < count; ++i) {
        x.step(decoder, from + i, 1, {.report = &report});
        worst =
            std::max(worst, ratio_to_bound<T>(x.y(0, 0).row(from + i), expected.row(from + i), report.error_bound, v));
      }
    }
  }
  // all tokens, and then a prompt of as many
  constexpr Index n = 300;
  Decoder decoder(attention, {.rollback = n, .most_tokens = most});
  other.step(decoder, 0, n);
  decoder.rollback(0, n);
  x.prefill(decoder, 0, n);
  Report report;
  x.step(decoder, n, 1, {.report = &report});
  worst = std::max(worst, ratio_to_bound<T>(x.y(0, 0).row(n), expected.row(n), report.error_bound, v));
  CHECK(worst <= 1);
}

TEST_CASE("sequences: a fork has the bits of its origin", "[decoder]") {
  for (const Held& position : positions()) {
    const MultiHeadAttention attention(orf<T>(d, 10, 3), position, {.direction = Direction::causal});
    Decoder decoder(attention, {.batch = 3, .rollback = 2});
    TokenBatch<T> x(3, heads, heads, 60, d, d_v);
    x.prefill(decoder, 0, 40);
    decoder.fork(1, 0);
    decoder.reorder(std::vector<Index>{1, 0, 0});
    for (Index h = 0; h < heads; ++h)
      for (Index b = 1; b < 3; ++b)
        x.q(b, h) = x.q(0, h).eval(), x.k(b, h) = x.k(0, h).eval(), x.v(b, h) = x.v(0, h).eval();
    for (Index i = 40; i < 60; ++i) x.step(decoder, i, 1);
    for (Index h = 0; h < heads; ++h)
      for (Index b = 1; b < 3; ++b)
        CHECK(same_bits(Matrix<T>(x.y(b, h).bottomRows(20)), Matrix<T>(x.y(0, h).bottomRows(20))));
  }
}

TEST_CASE("sequences: reorder changes their number", "[decoder]") {
  constexpr Index n = 60, prompt = 40;
  for (const Held& position : positions()) {
    const MultiHeadAttention attention(orf<T>(d, 10, 3), position, {.direction = Direction::causal});
    TokenBatch<T> two(2, heads, heads, n, d, d_v), three(3, heads, heads, n, d, d_v);
    Decoder decoder(attention, {.batch = 2}), other(attention, {.batch = 3});
    other.reorder(std::vector<Index>{2, 0});  // without tokens
    CHECK(other.batch() == 2);
    two.prefill(decoder, 0, prompt), two.prefill(other, 0, prompt);
    for (Index i = prompt; i < n; ++i) two.step(other, i, 1);
    const std::vector<Index> from{1, 0, 1};
    decoder.reorder(from);
    CHECK(decoder.batch() == 3);
    for (Index h = 0; h < heads; ++h)
      for (Index b = 0; b < 3; ++b) {
        const Index of = from[static_cast<std::size_t>(b)];
        three.q(b, h) = two.q(of, h).eval(), three.k(b, h) = two.k(of, h).eval(), three.v(b, h) = two.v(of, h).eval();
      }
    for (Index i = prompt; i < prompt + 10; ++i) three.step(decoder, i, 1);
    std::stringstream file;
    decoder.save(file);
    Decoder loaded(attention, {.batch = 3});
    loaded.load(file);
    for (Index i = prompt + 10; i < n; ++i) three.step(loaded, i, 1);
    for (Index h = 0; h < heads; ++h)
      for (Index b = 0; b < 3; ++b)
        CHECK(same_bits(Matrix<T>(three.y(b, h).bottomRows(n - prompt)),
                        Matrix<T>(two.y(from[static_cast<std::size_t>(b)], h).bottomRows(n - prompt))));
  }
}

TEST_CASE("sequences: wrong arguments", "[decoder]") {
  const MultiHeadAttention attention(orf<T>(d, 10, 3), AlibiPosition<T>(0.1f), {.direction = Direction::causal});
  Decoder decoder(attention, {.batch = 2, .rollback = 3});
  check_invalid([&] { decoder.rollback(0, 1); }, {"tokens", "expected 0 to 0", "got 1"});
  TokenBatch<T> x(2, heads, heads, 30, d, d_v);
  x.prefill(decoder, 0, 20);
  check_invalid([&] { decoder.rollback(2, 1); }, {"sequence", "expected 0 to 1", "got 2"});
  check_invalid([&] { decoder.rollback(0, -1); }, {"tokens", "expected 0 to 20", "got -1"});
  check_invalid([&] { decoder.rollback(0, 4); }, {"tokens", "at most 3", "got 4"});
  decoder.rollback(0, 2);
  check_invalid([&] { decoder.rollback(0, 2); }, {"tokens", "at most 3", "got 2"});
  decoder.rollback(0, 1);
  CHECK(decoder.tokens(0) == 17);
  check_invalid([&] { decoder.fork(0, 5); }, {"to", "expected 0 to 1", "got 5"});
  check_invalid([&] { decoder.reset(-1); }, {"sequence", "got -1"});
  check_invalid([&] { decoder.reorder({}); }, {"from", "expected at least 1", "got 0"});
  check_invalid([&] { decoder.reorder(std::vector<Index>{0, 2}); }, {"from", "got 2"});
  check_invalid([&] { (void)decoder.tokens(7); }, {"sequence", "got 7"});
  CHECK(decoder.tokens(1) == 20);
}

}  // namespace nprf::test::decoder_decoder_sequences
