// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string>

#include "differential/draw.hpp"
#include "differential/life.hpp"
#include "differential/random_bias.hpp"
#include "differential/random_case.hpp"

namespace nprf::test::differential {

namespace detail {

// Some biases of another size: far below the others, as where "masked" is written as a number, or all far larger.
inline void draw_extremes(Draw& draw, Bias& bias) {
  const Index kind = draw.below(8), part = draw.between(2, 6);
  const Exact low = draw.one_of<Exact>({-100, -1e4L, -1e9L, -1e30L, minus_infinity});
  const auto size = static_cast<Index>(bias.weights.size());
  if (size == 0) return;
  for (Index l = 0; l < size; ++l) {
    Exact& b = bias.weights[static_cast<std::size_t>(l)];
    const bool is_first = l < size / 2 - size / (2 * part);  // of a table: the oldest keys
    if (kind == 0 ? draw.one_in(part) : kind == 1 ? is_first : kind == 2 && !is_first) b = low;
    if (kind == 3) b *= 1000;
  }
  std::ostringstream name;
  if (kind <= 2) name << ", " << (kind == 0 ? "some" : kind == 1 ? "the first" : "all but the first") << " " << low;
  if (kind == 3) name << ", times 1000";
  bias.name += name.str();
}

inline Bias random_bias_of_life(Draw& draw, Index longest) {
  const Place place = draw.one_in(2) ? Place::table : static_cast<Place>(draw.below(4));
  Bias bias = random_bias(draw, place, std::max<Index>(longest / draw.between(1, 4), 1), true, {});
  if (place == Place::t5 && draw.one_in(2)) {
    bias.max_distance = static_cast<Index>(bias.weights.size()) / 2 + draw.between(1, 80);
    bias.name += ", to " + std::to_string(bias.max_distance);
  }
  if (draw.one_in(3)) draw_extremes(draw, bias);
  return bias;
}

inline void draw_attention(Draw& draw, Life& life) {
  Case& c = life.of;
  c.causal = c.by_heads = true;
  c.in_double = draw.one_in(2);
  c.map = draw.one_in(3) ? Map::orf : static_cast<Map>(draw.below(10));
  const bool is_long = life.longest > 1000;
  const Index most_channels = is_long ? 3 : 12;
  c.d = draw.size(most_channels), c.m = draw.size(most_channels), c.d_v = draw.size(is_long ? 2 : 20);
  c.n_q = c.n_k = life.longest + draw.between(1, 60);
  if (!is_long && draw.one_in(3)) {
    life.kv_heads = draw.between(1, 2);
    c.heads = life.kv_heads * draw.between(1, 2);
  }
  draw_tokens(draw, c);
  c.values_are_steps = draw.one_in(8);
  if (draw.one_in(3)) c.values = {static_cast<Scaled>(draw.below(6)), draw.one_of({0., 1e-20, 1e-6, 1e6, 1e20})};
  if (draw.one_in(12)) {
    c.non_finite_in = static_cast<NonFiniteIn>(draw.between(1, 3));
    c.non_finite_value = draw.one_of({std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                                      -std::numeric_limits<double>::infinity()});
  }
  if (c.map != Map::elu && draw.one_in(3))
    c.near = draw.one_of<Index>({1, 2, 5, 12, 40, life.longest, std::numeric_limits<Index>::max()});
  if (c.map != Map::elu && draw.one_in(5))
    c.sinks = draw.one_of<Index>({1, 2, 4, 20, life.longest, std::numeric_limits<Index>::max()});
  c.own_map = c.heads > 1 && draw.one_in(3);
  const bool own_bias = c.heads > 1 && draw.one_in(3);
  for (Index h = 0; h < (own_bias ? c.heads : 1); ++h) c.biases.push_back(random_bias_of_life(draw, life.longest));
}

inline void draw_options(Draw& draw, Life& life) {
  DecoderOptions& x = life.options;
  x.batch = draw.one_in(2) ? 1 : draw.between(2, 3);
  x.rollback = draw.one_of<Index>({0, 1, 3, 7, 11, 15, life.longest, Index{1} << 24});
  if (draw.one_in(4)) x.most_tokens = draw.one_of<Index>({life.longest, std::numeric_limits<Index>::max()});
}

inline Event random_event(Draw& draw, const Life& life, bool is_first) {
  using What = Event::Kind;
  const Index batch = life.options.batch, kind = is_first ? 0 : draw.below(16);
  Event x;
  x.kind = kind < 8    ? (draw.one_in(3) ? What::prefill : What::step)
           : kind < 11 ? What::rollback
                       : draw.one_of({What::any_rollback, What::reorder, What::fork, What::save_and_load, What::move});
  x.sequence = draw.below(batch), x.from = draw.below(batch);
  if (x.kind == What::move && draw.one_in(2)) x.kind = What::reset;
  const Index most = is_first || draw.one_in(4) ? life.longest : draw.one_in(4) ? 20 : 3, all = draw.between(1, most);
  const bool differ = draw.one_in(3);
  for (Index b = 0; b < batch; ++b) {
    if (x.adds_tokens()) x.tokens.push_back(differ ? draw.between(0, most) : all);
    if (x.kind == What::reorder) x.sequences.push_back(draw.below(batch));
  }
  x.count =
      draw.between(1, x.kind == What::rollback ? std::min(life.longest, life.options.rollback + 1) : life.longest);
  return x;
}

}  // namespace detail

/// Seeds from this one on are those of lives of decoders.
inline constexpr std::uint64_t first_seed_of_lives = std::uint64_t{1} << 42;
/// From this one on with smooth tables that sequences do not outgrow.
inline constexpr std::uint64_t first_seed_of_smooth_lives = std::uint64_t{3} << 41;

/// A random life; the same seed gives the same one on every platform.
inline Life random_life(std::uint64_t seed) {
  Draw draw(seed);
  Life life;
  life.of.seed = seed;
  life.longest = draw.one_in(100) ? 3000 : draw.one_in(2) ? draw.between(1, 70) : draw.between(70, 220);
  const bool is_smooth = seed >= first_seed_of_smooth_lives;
  if (is_smooth) life.longest = draw.between(400, 1500);
  detail::draw_attention(draw, life);
  detail::draw_options(draw, life);
  if (is_smooth) {
    for (Bias& bias : life.of.biases) bias = detail::random_smooth_table(draw, life.longest);
    life.options.most_tokens = life.longest;
  }
  const Index events = draw.between(2, 24);
  for (Index at = 0; at < events; ++at) life.events.push_back(detail::random_event(draw, life, at == 0));
  return life;
}

}  // namespace nprf::test::differential
