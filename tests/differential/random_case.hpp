// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>

#include "differential/case.hpp"
#include "differential/draw.hpp"
#include "differential/random_bias.hpp"

namespace nprf::test::differential {

namespace detail {

inline void draw_sizes(Draw& draw, Case& c, Place place, Bias& grid) {
  const Index kind = draw.below(1000);
  const Index most = kind < 500 ? 24 : kind < 780 ? 80 : kind < 940 ? 200 : kind < 997 ? 600 : 5000;
  const Index most_channels = most == 24 ? 70 : most == 80 ? 40 : most == 200 ? 20 : most == 600 ? 17 : 6;
  c.d = draw.size(most_channels), c.m = draw.size(most_channels), c.d_v = draw.size(most_channels);
  c.n_q = draw.between(1, most);
  c.n_k = draw.one_in(4) ? draw.between(1, most) : c.n_q;
  if (most == 600 && draw.one_in(2)) c.gradient_rows = 40;
  if (most == 5000) c.gradient_rows = 5;
  c.by_heads = most <= 80 && draw.one_in(3);
  if (c.by_heads) {
    c.batch = draw.between(1, 3), c.heads = draw.between(1, 3);
    if (most == 80 && c.batch * c.heads > 4) c.batch = 1;
  }
  if (place != Place::grid) return;
  grid.place = Place::grid;
  grid.extra_tokens = draw.one_in(2) ? 0 : draw.between(1, 3);
  const Index side = most == 24 ? 5 : most == 80 ? 9 : most == 200 ? 14 : most == 600 ? 24 : 50;
  grid.height = draw.between(1, side), grid.width = draw.between(1, side);
  c.n_q = c.n_k = grid.tokens();
}

// enough tokens for chunks of slots
inline void draw_long_sizes(Draw& draw, Case& c) {
  c.d = draw.size(8), c.m = draw.size(8), c.d_v = draw.size(20);
  const Index kind = draw.below(20), most = kind < 14 ? 260 : kind < 19 ? 800 : 2000;
  c.n_q = draw.between(100, most);
  c.n_k = draw.one_in(4) ? draw.between(100, most) : c.n_q;
  c.gradient_rows = 20;
}

inline void draw_padding(Draw& draw, Case& c, const Bias& grid) {
  const auto cuts = [&](Index n, Index sequences) {
    std::vector<Index> ends{0, n};
    for (Index s = 1; s < sequences; ++s) ends.push_back(draw.between(0, n));
    std::sort(ends.begin(), ends.end());
    return ends;
  };
  if (draw.one_in(6)) {
    c.padding = Padding::packed;
    const Index sequences = draw.between(1, 4);
    if (grid.place == Place::grid) {
      for (Index s = 0; s <= sequences; ++s) c.query_ends.push_back(s * grid.tokens());
      c.n_q = c.n_k = c.query_ends.back();
      c.key_ends = c.query_ends;
    } else {
      c.query_ends = cuts(c.n_q, sequences);
      c.key_ends = c.n_q == c.n_k && draw.one_in(2) ? c.query_ends : cuts(c.n_k, sequences);
    }
  } else if (draw.one_in(6)) {
    c.padding = Padding::lengths;
    for (Index b = 0; b < c.batch; ++b) c.lengths.push_back(draw.between(0, c.n_k));
  }
  if (draw.one_in(3)) c.masked = static_cast<Masked>(draw.between(1, 4));
  c.has_non_finite_padding = (c.masked != Masked::none || c.padding == Padding::lengths) && draw.one_in(3);
}

inline void draw_tokens(Draw& draw, Case& c) {
  const bool small = c.has_signs();  // or cancellation makes denominators imprecise
  if (draw.one_in(3))
    c.norm = small ? draw.one_of({0.1, 0.3, 1., 2.}) : draw.one_of({0.3, 1., 3., 6., 9., 12.});
  else
    c.radius = small ? draw.one_of({0.3, 1., 2., 3.}) : draw.one_of({0.3, 1., 2., 3., 6., 8., 12.});
  const auto kind = [&] { return draw.one_in(2) ? Tokens::normal : static_cast<Tokens>(draw.below(8)); };
  c.queries = kind(), c.keys = kind();
  const auto scale = [&] {
    if (!draw.one_in(6)) return 1.;
    const double tiny = c.in_double ? 1e-300 : 1e-35, subnormal = c.in_double ? 1e-310 : 1e-40;
    const double chosen = draw.one_of({0.1, 1e-2, 1e-4, 1e-8, 1e-20, tiny, subnormal, 1e4, 1e18});
    return c.radius == 0 ? std::min(chosen, 1.) : chosen;
  };
  c.q_scale = scale(), c.k_scale = scale();
}

inline Scaling draw_scaling(Draw& draw, bool in_double) {
  if (draw.one_in(2)) return {};
  Scaling scaling{static_cast<Scaled>(draw.below(6)),
                  draw.one_of({0., 1e-30, 1e-20, 1e-18, 1e-6, 1e6, 1e10, 1e20, 1e30})};
  if (in_double && draw.one_in(2)) scaling.by = draw.one_of({1e-290, 1e-200, 1e-150, 1e150, 1e200, 1e290});
  return scaling;
}

// replaces the map and the width of the near field, by choices that do not change the others
inline void draw_softmax_pairs(Draw& draw, Case& c) {
  if (draw.one_in(3)) {
    c.map = draw.one_in(2) ? Map::taylor : Map::centred_taylor;
    // else the terms of most rows cancel
    if (!draw.one_in(3)) (c.radius > 0 ? c.radius : c.norm) = draw.one_of({0.1, 0.3, 1., 1.5});
    if (draw.one_in(2)) return;
  }
  if (c.map == Map::elu) c.map = Map::orf;
  const Index n = std::max(c.n_q, c.n_k);
  switch (draw.below(4)) {
    case 0: c.near = draw.between(1, 3); break;
    case 1: c.near = draw.between(1, 1 + n / 2); break;
    case 2: c.near = draw.between(1, std::min<Index>(n, 20)); break;
    default: c.near = draw.one_of({n - 1, n, n + 1, 3 * n, std::numeric_limits<Index>::max()}); break;
  }
  c.near = std::max<Index>(c.near, 1);
}

// adds sinks, and in half of the cases removes the near field
inline void draw_sinks(Draw& draw, Case& c) {
  if (draw.one_in(2)) c.near = 0;
  const Index n = c.n_k;
  c.sinks = draw.one_in(2) ? draw.between(1, 4)
                           : draw.one_of({1 + n / 2, n - 1, n, n + 1, std::numeric_limits<Index>::max()});
  c.sinks = std::max<Index>(c.sinks, 1);
}

}  // namespace detail

/// Seeds from this one on give cases with exact pairs: with a near field or a map that is a series.
inline constexpr std::uint64_t first_seed_of_softmax_pairs = std::uint64_t{1} << 40;
/// From this one on with attention sinks.
inline constexpr std::uint64_t first_seed_of_sinks = std::uint64_t{1} << 41;
/// From this one on with biases far from each other; most with exact pairs, some with other tolerances.
inline constexpr std::uint64_t first_seed_of_far_biases = std::uint64_t{3} << 40;

/// From this one on with tables that are smooth functions of the lag far from lag 0, and with more tokens.
inline constexpr std::uint64_t first_seed_of_smooth_tables = std::uint64_t{7} << 39;

/// A random case; the same seed gives the same case on every platform.
inline Case random_case(std::uint64_t seed) {
  Draw draw(seed);
  Case c;
  c.seed = seed;
  c.in_double = draw.one_in(2);
  c.map = draw.one_in(4) ? Map::orf : static_cast<Map>(draw.below(8));
  const bool is_smooth = seed >= first_seed_of_smooth_tables;
  const Place drawn = draw.one_in(3) ? Place::table : static_cast<Place>(draw.below(5));
  const Place place = is_smooth ? Place::table : drawn;
  c.causal = draw.one_in(2);
  Bias grid;
  is_smooth ? detail::draw_long_sizes(draw, c) : detail::draw_sizes(draw, c, place, grid);
  if (place != Place::grid && draw.one_in(4))
    c.offset = draw.one_in(2) ? draw.between(-c.n_q, c.n_k)
                              : draw.one_of<Index>({1000, 100000, 1000000, Index{1} << 30, Index{1} << 40}) *
                                    (draw.one_in(2) ? 1 : -1);
  detail::draw_padding(draw, c, grid);
  detail::draw_tokens(draw, c);
  c.values_are_steps = draw.one_in(8);
  c.values = detail::draw_scaling(draw, c.in_double);
  c.gradients = detail::draw_scaling(draw, c.in_double);
  if (draw.one_in(10)) {
    c.non_finite_in = static_cast<NonFiniteIn>(draw.between(1, 4));
    c.non_finite_value = draw.one_of({std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                                      -std::numeric_limits<double>::infinity()});
  }
  c.own_map = c.heads > 1 && draw.one_in(2);
  const bool own_bias = c.heads > 1 && draw.one_in(2);
  for (Index h = 0; h < (own_bias ? c.heads : 1); ++h)
    c.biases.push_back(is_smooth ? detail::random_smooth_table(draw, std::max(c.n_q, c.n_k))
                                 : random_bias(draw, place, std::max(c.n_q, c.n_k), c.causal, grid));
  Draw more(seed * 0xbf58476d1ce4e5b9ULL + 3);
  if (is_smooth) {
    if (more.one_in(4)) detail::draw_softmax_pairs(more, c);
    if (more.one_in(8) && c.map != Map::elu) detail::draw_sinks(more, c);
    c.tolerance = c.in_double ? more.one_of({0., 1e-7, 1e-5, 1e-4, 1e-3}) : more.one_of({0., 0., 1e-5, 1e-3});
  } else if (seed >= first_seed_of_far_biases) {
    if (!more.one_in(3)) detail::draw_softmax_pairs(more, c);
    if (more.one_in(2) && c.map != Map::elu) detail::draw_sinks(more, c);
    const double lowest = c.in_double ? std::numeric_limits<double>::lowest() : std::numeric_limits<float>::lowest();
    for (Bias& bias : c.biases) detail::draw_far_biases(more, bias, lowest);
    if (more.one_in(4)) c.tolerance = more.one_of({1e-12, 1e-6, 1e-2});
  } else if (seed >= first_seed_of_softmax_pairs) {
    detail::draw_softmax_pairs(more, c);
    if (seed >= first_seed_of_sinks) detail::draw_sinks(more, c);
  }
  return c;
}

}  // namespace nprf::test::differential
