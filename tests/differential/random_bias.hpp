// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <sstream>

#include "differential/bias.hpp"
#include "differential/draw.hpp"

namespace nprf::test::differential {

namespace detail {

inline constexpr double amplitudes[] = {0, 0.1, 0.5, 1, 2, 4, 8};

inline double amplitude(Draw& draw) { return amplitudes[draw.below(7)]; }

/// A table for the lags -R..R: N(0,size^2), with ramps, peaks and entries of -infinity.
inline Bias random_table(Draw& draw, Index n) {
  Bias bias;
  bias.place = Place::table;
  const Index reach = draw.one_in(3)   ? draw.between(0, std::max<Index>(n / 4, 1))
                      : draw.one_in(3) ? draw.between(0, 2 * n)
                                       : n - 1;
  const double size = amplitude(draw);
  const Index kind = draw.below(18);
  const double step = draw.one_of({0.002, 0.01, 0.03, 0.1, 0.5}) * (draw.one_in(2) ? 1 : -1);
  const double height = draw.one_of({5., 20., 40., 60.});
  const Index near = draw.between(0, 6), start = draw.between(-n, n), length = draw.between(1, n), stride = 1 + near;
  const Index most = std::max<Index>(reach, 1);
  for (Index lag = -reach; lag <= reach; ++lag) {
    Exact b = size * draw.normal();
    switch (kind) {
      case 0:
      case 1: b += step * static_cast<double>(lag); break;
      case 2: b += lag == start ? height : 0; break;
      case 3: b += lag == -near ? height : 0; break;
      case 4: b = std::abs(lag) <= near ? b : minus_infinity; break;                 // a window
      case 5: b = start <= lag && lag < start + length ? minus_infinity : b; break;  // a hole
      case 6: b = lag % 2 != 0 ? minus_infinity : b; break;
      case 7: b = draw.one_in(4) ? b : minus_infinity; break;
      case 8: b = lag == -near || lag == start ? b : minus_infinity; break;                   // two lags
      case 9: b = lag == start ? height : std::abs(lag) <= near ? b : minus_infinity; break;  // a window beside a peak
      case 10: b = lag > near ? minus_infinity : b; break;                                    // causal by the table
      case 11: b -= 4 * std::floor(std::log2(static_cast<double>(std::abs(lag) + 1))); break;
      case 12: b = std::abs(lag) >= most ? minus_infinity : b; break;  // nothing beyond the table
      case 13: b += lag % stride == 0 ? height / 2 : 0; break;
      case 14: b = -step * static_cast<double>(std::abs(lag)); break;  // ALiBi, written out
      default: break;
    }
    bias.weights.push_back(b);
  }
  static const char* const kinds[] = {
      "ramp",           "ramp",        "peak at",       "peak near",          "window",        "hole from",
      "every second",   "one of four", "two lags",      "window and peak at", "nothing later", "steps at powers of two",
      "nothing beyond", "comb",        "straight lines"};
  std::ostringstream name;
  name << "table R " << reach << " N(0," << size << "^2)";
  if (kind < 15)
    name << " " << kinds[kind] << " (step " << step << ", height " << height << ", near " << near << ", start " << start
         << ", length " << length << ")";
  bias.name = name.str();
  return bias;
}

inline Bias random_t5(Draw& draw, bool causal) {
  Bias bias;
  bias.place = Place::t5;
  const bool both = !causal;
  bias.direction = both ? Direction::bidirectional : Direction::causal;
  const Index buckets = both ? 2 * draw.between(2, 16) : draw.between(2, 32);
  const Index near = (both ? buckets / 2 : buckets) / 2;
  bias.max_distance = std::max(near + 1, draw.one_of<Index>({1, 20, 128, 1000}));
  const double size = amplitude(draw);
  const bool has_holes = draw.one_in(6);
  for (Index l = 0; l < buckets; ++l)
    bias.weights.push_back(has_holes && draw.one_in(4) ? minus_infinity : size * draw.normal());
  std::ostringstream name;
  name << "t5 " << (both ? "bidirectional" : "causal") << " of " << buckets << " to " << bias.max_distance << " N(0,"
       << size << "^2)" << (has_holes ? ", some -infinity" : "");
  bias.name = name.str();
  return bias;
}

inline Bias random_alibi(Draw& draw) {
  Bias bias;
  bias.place = Place::alibi;
  bias.slope = draw.one_of({1e-3, 0.01, 0.05, 0.2, 0.37, 0.5, 1., 3., 10., 100., 1e4});
  if (draw.one_in(8)) bias.slope = -draw.one_of({1e-3, 0.05, 0.3, 2.});
  if (draw.one_in(4)) bias.slope *= 1 - std::ldexp(1., -static_cast<int>(draw.between(8, 45)));
  std::ostringstream name;
  name << "alibi " << bias.slope;
  bias.name = name.str();
  return bias;
}

inline Bias random_grid(Draw& draw, const Bias& shape) {
  Bias bias = shape;
  const double size = amplitude(draw), extra_size = amplitude(draw);
  const bool has_holes = draw.one_in(6), extra_has_holes = draw.one_in(6);
  for (Index l = 0; l < (2 * bias.height - 1) * (2 * bias.width - 1); ++l)
    bias.weights.push_back(has_holes && draw.one_in(3) ? minus_infinity : size * draw.normal());
  for (Index l = 0; l < bias.extra_tokens * (bias.extra_tokens + 2); ++l)
    bias.extra.push_back(extra_has_holes && draw.one_in(3) ? minus_infinity : extra_size * draw.normal());
  std::ostringstream name;
  name << "grid " << bias.height << " x " << bias.width << " and " << bias.extra_tokens << " N(0," << size
       << "^2) and N(0," << extra_size << "^2)" << (has_holes || extra_has_holes ? ", some -infinity" : "");
  bias.name = name.str();
  return bias;
}

/// A table for the lags -(n-1)..n-1 that is a smooth function of the lag far from lag 0; or is but for a kink, a step,
/// a hole, noise or a rough middle.
inline Bias random_smooth_table(Draw& draw, Index n) {
  Bias bias;
  bias.place = Place::table;
  const Index kind = draw.below(6), change = draw.below(9), at = draw.between(-n, n), length = draw.between(1, n);
  const double size = draw.one_of({0.1, 0.5, 1., 3., 10.}), wide = draw.one_of({0.01, 0.1, 1., 10.}) * double(n),
               noise = draw.one_of({1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.1}), second = draw.one_of({0., 0.3, 1.});
  for (Index lag = 1 - n; lag < n; ++lag) {
    const double x = static_cast<double>(std::abs(lag)), before = lag < 0 ? 1 : second;
    double b = 0;
    switch (kind) {
      case 0: b = -size * std::log1p(x * before); break;
      case 1: b = -size * std::pow(x, 0.1 + 0.4 * before); break;
      case 2: b = std::log(std::exp(-size * x) + 0.1 * std::exp(-x / wide)); break;
      case 3: b = size * std::sin(static_cast<double>(lag) / wide); break;
      case 4: b = -size * static_cast<double>(lag * lag) / (wide * wide); break;
      default: b = -size * std::log1p(x / wide) * before; break;
    }
    switch (change) {
      case 0: b += lag > at ? static_cast<double>(lag - at) / wide : 0; break;  // a kink
      case 1: b += lag > at ? 1 : 0; break;                                     // a step
      case 2: b += std::floor(2 * std::log2(1 + x)); break;                     // steps
      case 3: b += noise * draw.normal(); break;                                // everywhere
      case 4: b += x < 20 ? draw.normal() : 0; break;                           // a rough middle
      case 5: b = at <= lag && lag < at + length ? -HUGE_VAL : b; break;        // a hole
      case 6: b += lag == at ? 10 * noise : 0; break;                           // one entry
      default: break;
    }
    bias.weights.push_back(b);
  }
  std::ostringstream name;
  name << "smooth table " << kind << " size " << size << " width " << wide << " second side " << second << " change "
       << change << " at " << at << ", length " << length << ", noise " << noise;
  bias.name = name.str();
  return bias;
}

// moves some of the biases far from the others, as where a large negative number stands for "masked"
inline void draw_far_biases(Draw& draw, Bias& bias, double lowest) {
  const double low = draw.one_of({-1e2, -1e3, -1e5, -1e9, -1e16, -1e30, lowest});
  const Index kind = draw.below(7);
  std::ostringstream name;
  name << ", far " << kind << " by " << low;
  bias.name += name.str();
  if (bias.place == Place::alibi) bias.slope *= std::min(1e20, -low);
  for (auto* all : {&bias.weights, &bias.extra}) {
    const Index n = static_cast<Index>(all->size()), chosen = draw.below(n + 1);
    for (Index l = 0; l < n; ++l) {
      Exact& b = (*all)[static_cast<std::size_t>(l)];
      switch (kind) {
        case 0: b = l >= chosen ? low : b; break;
        case 1: b = l < chosen ? low : b; break;
        case 2: b = draw.one_in(4) ? low : b; break;
        case 3: b += draw.one_in(4) ? 0 : low; break;
        case 4: b = l == chosen ? -low : b; break;
        case 5: b += low; break;
        default: b *= std::min(1e16, -low); break;
      }
    }
  }
}

}  // namespace detail

/// A position of a kind for n tokens; a grid has the shape of `grid`.
inline Bias random_bias(Draw& draw, Place place, Index n, bool causal, const Bias& grid) {
  switch (place) {
    case Place::none: return {};
    case Place::table: return detail::random_table(draw, n);
    case Place::t5: return detail::random_t5(draw, causal);
    case Place::alibi: return detail::random_alibi(draw);
    case Place::grid: return detail::random_grid(draw, grid);
  }
  return {};
}

}  // namespace nprf::test::differential
