// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "differential/bias.hpp"
#include "differential/draw.hpp"
#include "nprf/core/types.hpp"

namespace nprf::test::differential {

enum class Map { prf, orf, sphere_prf, trf, hyperbolic, elu, own_rows, long_row, taylor, centred_taylor };
enum class Padding { none, lengths, mask, packed };
enum class Masked { none, random, every_second, all_but_one, prefix };
enum class Tokens { normal, alike, along_rows, opposed, one_long, few_long, some_tiny, some_zero };
enum class Scaled { all, one_column, one_row, half_of_rows, first_rows, last_rows, nothing };
enum class NonFiniteIn { none, query, key, value, gradient };

/// Which entries of a matrix of values or of dy, N(0,1), are multiplied by what.
struct Scaling {
  Scaled what = Scaled::nothing;
  double by = 1;
};

/// A call, without its arrays, which are drawn from the same seed (inputs.hpp).
struct Case {
  std::uint64_t seed = 0;
  bool in_double = false;
  Map map = Map::orf;
  Index d = 4, m = 8, d_v = 3, n_q = 1, n_k = 1, batch = 1, heads = 1;
  bool by_heads = false;  // MultiHeadAttention
  bool own_map = false;   // one for each head
  bool causal = false;
  Index offset = 0;
  Index near = 0;               // the width of the near field
  Index sinks = 0;              // the number of attention sinks
  double radius = 0, norm = 1;  // rows are scaled to `radius`; if it is 0, their norm is about `norm`
  double q_scale = 1, k_scale = 1;
  Tokens queries = Tokens::normal, keys = Tokens::normal;
  bool values_are_steps = false;  // two sizes, so that terms are equal and rounding errors correlated
  Scaling values, gradients;
  Padding padding = Padding::none;
  Masked masked = Masked::none;
  bool has_non_finite_padding = false;  // some of the masked keys and values
  NonFiniteIn non_finite_in = NonFiniteIn::none;
  double non_finite_value = 0;
  double tolerance = 0;                     // 0: the default
  Index gradient_rows = 0;                  // 0: all
  std::vector<Bias> biases;                 // one, or one for each head
  std::vector<Index> query_ends, key_ends;  // packed: 0, ..., n
  std::vector<Index> lengths;               // one for each sequence of the batch

  bool is_series() const { return map == Map::taylor || map == Map::centred_taylor; }
  bool has_signs() const { return map == Map::trf || is_series(); }
  bool has_exact_pairs() const { return near > 0 || sinks > 0; }
  /// Whether rows whose terms cancel are those of exact softmax.
  bool replaces_cancelled_rows() const { return has_exact_pairs() || is_series(); }
  /// Whether rows whose features underflow are those of exact softmax.
  bool falls_back_to_softmax() const { return map != Map::elu; }
  /// Of a series: the coordinates with second-order features.
  Index directions() const { return std::min({m, d, Index{12}}); }

  std::string name() const {
    static const char* const maps[] = {"prf", "orf",      "sphere_prf", "trf",    "hyperbolic",
                                       "elu", "own rows", "a long row", "taylor", "centred taylor"};
    static const char* const masks[] = {"", ", mask random", ", mask every second", ", mask all but one",
                                        ", mask prefix"};
    static const char* const tokens[] = {"normal",   "alike",    "along rows", "opposed",
                                         "one long", "few long", "some tiny",  "some zero"};
    static const char* const scaled[] = {"all x ", "column x ", "row x ", "half x ", "first x ", "last x ", ""};
    static const char* const inputs[] = {"", "query", "key", "value", "dy"};
    std::ostringstream out;
    out << (in_double ? "double " : "float ") << maps[static_cast<int>(map)] << " d " << d << " m " << m << " d_v "
        << d_v << " n_q " << n_q << " n_k " << n_k;
    if (by_heads) out << " batch " << batch << " heads " << heads << (own_map ? " with a map for each" : "");
    out << (causal ? " causal" : " bidirectional") << ", offset " << offset;
    if (near > 0) out << ", near " << near;
    if (sinks > 0) out << ", sinks " << sinks;
    radius > 0 ? out << ", unit " << radius : out << ", norms " << norm;
    out << ", queries " << tokens[static_cast<int>(queries)] << " x " << q_scale << ", keys "
        << tokens[static_cast<int>(keys)] << " x " << k_scale;
    for (const auto& [what, of] : {std::pair{", values ", values}, std::pair{", dy ", gradients}}) {
      out << what << scaled[static_cast<int>(of.what)];
      of.what == Scaled::nothing ? out << "plain" : out << of.by;
    }
    if (values_are_steps) out << ", values of two sizes";
    out << masks[static_cast<int>(masked)] << (has_non_finite_padding ? " of non-finite padding" : "");
    if (padding == Padding::lengths) list(out, ", lengths", lengths);
    if (padding == Padding::packed) list(out, ", queries end", query_ends), list(out, ", keys end", key_ends);
    if (non_finite_in != NonFiniteIn::none)
      out << ", a " << inputs[static_cast<int>(non_finite_in)] << " is " << non_finite_value;
    if (tolerance > 0) out << ", tolerance " << tolerance;
    if (gradient_rows > 0) out << ", " << gradient_rows << " rows have a gradient";
    for (const Bias& bias : biases) out << ", " << bias.name;
    return out.str();
  }

 private:
  static void list(std::ostringstream& out, const char* what, const std::vector<Index>& of) {
    out << what;
    for (const Index x : of) out << " " << x;
  }
};

}  // namespace nprf::test::differential
