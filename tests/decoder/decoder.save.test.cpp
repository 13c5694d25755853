// SPDX-License-Identifier: MIT
//
// Saved states continue with the same bits; files of other decoders, cut and changed files are refused.
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "decoder/tokens.hpp"
#include "nprf/decoder/decoder.hpp"
#include "nprf/decoder/sequence_states.hpp"
#include "nprf/decoder/state_stream.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/t5.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::decoder_decoder_save {

namespace {

constexpr Index d = 4, d_v = 3, heads = 2, n = 60;
using T = float;
using Held = HeldPosition<T>;

Held t5() { return {t5_position<T>(normal<T>(1, 8, 2).row(0), Direction::causal, 14).bias()}; }

template <class F>
MultiHeadAttention<F, Held> attention_of(const F& map, const Held& position = t5(), Index near = 0) {
  return {map, position, {.direction = Direction::causal, .near = near}};
}

std::string saved(const Decoder<T>& decoder) {
  std::ostringstream out;
  decoder.save(out);
  return out.str();
}

void load(Decoder<T>& decoder, const std::string& file) {
  std::istringstream in(file);
  decoder.load(in);
}

}  // namespace

TEST_CASE("save: a loaded decoder continues with the same bits", "[decoder]") {
  const auto check = [](const auto& attention, Index most = n, const std::vector<Index>& prompts = {0, 5, 40}) {
    const DecoderOptions options{.batch = 2, .rollback = 2, .most_tokens = 2 * most};
    for (const Index prompt : prompts) {
      TokenBatch<T> x(2, heads, 1, most, d, d_v), y(2, heads, 1, most, d, d_v);
      Decoder decoder(attention, options), other(attention, options);
      const std::vector<Index> lengths{prompt, prompt / 2};
      x.prefill(decoder, 0, prompt, {.lengths = lengths});
      decoder.reorder(std::vector<Index>{1, 0});
      y.prefill(other, 0, 30);  // is replaced
      load(other, saved(decoder));
      CHECK(other.tokens(0) == prompt / 2);
      CHECK(other.tokens(1) == prompt);
      CHECK(saved(other) == saved(decoder));
      if (prompt >= 40) other.rollback(0, 2), decoder.rollback(0, 2);
      const Index rest = most - std::max<Index>(prompt, 40);
      for (Index i = most - rest; i < most; ++i) x.step(decoder, i, 1), y.step(other, i, 1);
      for (Index b = 0; b < 2; ++b)
        for (Index h = 0; h < heads; ++h)
          CHECK(same_bits(Matrix<T>(x.y(b, h).bottomRows(rest)), Matrix<T>(y.y(b, h).bottomRows(rest))));
    }
  };
  check(attention_of(orf<T>(d, 6, 1)));
  check(attention_of(orf<T>(d, 6, 1), {AlibiPosition<T>(0.1f).bias()}, 5));
  check(attention_of(TaylorFeatures<T>({.input_dim = d}), {RelativePosition<T>(random_table<T>(50, 3)).bias()}));
  Vector<T> level = waving_table<T>(800);  // biases are equal from age 350 on, which is a tail without chunks
  level.head(450).setConstant(level[450]);
  for (const Vector<T>& table : {waving_table<T>(800), level})
    check(attention_of(orf<T>(d, 6, 1), {RelativePosition<T>(table).bias()}), 400, {256, 320, 330});
}

TEST_CASE("save: a file of another decoder is refused", "[decoder]") {
  const auto attention = attention_of(orf<T>(d, 6, 1));
  Decoder decoder(attention, {.batch = 2, .rollback = 2});
  TokenBatch<T> x(2, heads, heads, n, d, d_v);
  x.prefill(decoder, 0, 30);
  const std::string file = saved(decoder);
  const auto refused = [&](auto other, std::string_view piece) {
    check_invalid([&] { load(other, file); }, {"expected", piece});
  };
  refused(Decoder(attention, {.batch = 1, .rollback = 2}), "sequences");
  refused(Decoder(attention, {.batch = 2, .rollback = 3}), "options");
  refused(Decoder(attention_of(orf<T>(d, 6, 2)), {.batch = 2, .rollback = 2}), "feature map");
  refused(Decoder(attention_of(orf<T>(d, 7, 1)), {.batch = 2, .rollback = 2}), "sizes");
  refused(Decoder(attention_of(orf<T>(d, 6, 1), {AlibiPosition<T>(0.1f).bias()}), {.batch = 2, .rollback = 2}),
          "biases");
  for (const AttentionOptions& options : {AttentionOptions{.near = 1}, AttentionOptions{.sinks = 1},
                                          AttentionOptions{.normalization = Normalization::unit(2)}}) {
    AttentionOptions causal = options;
    causal.direction = Direction::causal;
    refused(Decoder(MultiHeadAttention(orf<T>(d, 6, 1), t5(), causal), {.batch = 2, .rollback = 2}), "options");
  }
  for (const Index k : {1, 2, 5}) {  // a map with two features exchanged
    Matrix<T> exchanged = orf<T>(d, 6, 1).projection();
    exchanged.row(0).swap(exchanged.row(k));
    refused(Decoder(attention_of(PositiveFeatures<T>(exchanged)), {.batch = 2, .rollback = 2}), "feature map");
  }
  refused(Decoder(MultiHeadAttention(std::vector(heads, orf<T>(d, 6, 1)), t5(), attention.options()),
                  {.batch = 2, .rollback = 2}),
          "feature maps");
  Held changed = t5();
  changed.held.table[2] += T(1e-3);
  refused(Decoder(attention_of(orf<T>(d, 6, 1), changed), {.batch = 2, .rollback = 2}), "biases");
  const auto with_slope = [](T slope) {
    return Decoder(attention_of(orf<T>(d, 6, 1), {AlibiPosition<T>(slope).bias()}), {.batch = 2});
  };
  Decoder other_slope = with_slope(T(0.1));
  check_invalid([&] { load(other_slope, saved(with_slope(T(0.11)))); }, {"expected", "biases"});
  check_invalid([&] { load(decoder, "a text that is longer than the head of a file"); }, {"stream", "another file"});
  check_invalid([&] { load(decoder, ""); }, {"stream", "got 0"});
  StateWriter of_other_version;
  of_other_version(std::uint64_t{2});
  std::ostringstream other_version;
  of_other_version.write(other_version);
  check_invalid([&] { load(decoder, other_version.str()); }, {"version 5", "got 2"});
  std::ostringstream full;
  full.setstate(std::ios::badbit);
  check_invalid([&] { decoder.save(full); }, {"stream", "fails"});
  CHECK(saved(decoder) == file);
}

namespace {

// Files that are cut at the positions 0, step, 2 step, ..., or changed there, are refused and change nothing.
template <class F>
void check_changed_files(const MultiHeadAttention<F, Held>& attention, const DecoderOptions& options, Index tokens,
                         std::size_t step) {
  Decoder decoder(attention, options), other(attention, options);
  TokenBatch<T> x(1, heads, 1, tokens, d, d_v), y(1, heads, 1, tokens, d, d_v, 9);
  x.prefill(decoder, 0, tokens);
  y.prefill(other, 0, tokens - 1);
  const std::string file = saved(decoder), before = saved(other);
  const auto refused = [&](const std::string& changed) {
    try {
      load(other, changed);
    } catch (const InvalidArgument&) {
      return saved(other) == before;
    }
    return false;
  };
  CHECK(file.size() > 20 * step);
  for (std::size_t at = 0; at < file.size(); at += step) {
    CHECK(refused(file.substr(0, at)));
    for (const int bit : {0, 3, 7}) {
      std::string changed = file;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      CHECK(refused(changed));
    }
  }
  CHECK_FALSE(refused(file));
  CHECK(saved(other) == file);
}

}  // namespace

TEST_CASE("save: changed and cut files are refused and change nothing", "[decoder]") {
  const auto map = orf<T>(d, 2, 1);
  const Held dense{RelativePosition<T>(random_table<T>(100, 3)).bias()};
  check_changed_files(attention_of(map, {AlibiPosition<T>(0.1f).bias()}), {.rollback = 1}, 3, 1);
  // a ring, sums and keys; a table; sums of chunks
  check_changed_files(attention_of(map, t5(), 5), {.rollback = 2}, 40, 41);
  check_changed_files(attention_of(map, dense), {}, 60, 83);
  check_changed_files(attention_of(map, {RelativePosition<T>(waving_table<T>(400)).bias()}), {.most_tokens = 400}, 300,
                      397);
}

}  // namespace nprf::test::decoder_decoder_save
