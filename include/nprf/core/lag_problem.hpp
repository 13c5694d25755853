// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>

#include "nprf/core/engine.hpp"
#include "nprf/core/index.hpp"
#include "nprf/core/lags.hpp"
#include "nprf/core/slots.hpp"

namespace nprf {

/// The slots of the queries and keys of a call (slots.hpp), which keys each query attends to, and with which bias: a
/// position, a direction and an offset, lowered to tables. Engines, error bounds and fallbacks all work from these
/// tables. A LagProblem needs no matrix library, and refers to tables in the caller's storage. Masks and lengths are
/// not part of it: the keys of a product (toeplitz/factors.hpp) are the tokens of `keys` that are not padding.
///
/// Lags are differences of slots here: t - s for a key in slot t and a query in slot s. The lag for which the position
/// defines the bias is t - s - offset.
template <Real T>
struct LagProblem {
  static constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

  Direction direction = Direction::bidirectional;
  Index offset = 0;
  bool has_own_slots = false;            // the position assigns the slots, as a grid does
  Placement queries, keys;               // all tokens, masked keys too
  Index query_slots = 0, key_slots = 0;  // the number of slots up to the last one with a token
  LagRange lags;                         // between any two slots: 1 - query_slots .. key_slots - 1
  LagRange reach;                        // the lags that the direction allows
  const double* biases = nullptr;        // (lags) b; -infinity: not attended; this includes all lags outside `reach`
  double largest_bias = minus_infinity;  // the largest of `biases`
  const double* log_weights = nullptr;   // (lags) b - largest_bias; -infinity if all b are -infinity
  LagRange table;                        // before and after these lags b is linear
  double slope_before = 0, slope_after = 0;
  NearLags near;                        // lags whose pairs are computed exactly: `weights` are 0 there
  Index sinks = 0, salient = 0;         // how many first keys, and how many others, have exact pairs with all queries
  double weight_bias = minus_infinity;  // the bias of weight 1: the largest of `biases` and column 1 of the border
  LagWeightsView<T> weights;            // exp(b - weight_bias) of the lags of `reach`; 0 for near lags
  T* weight_values = nullptr;           // the same array as in `weights`, writable
  Border<T> border;                     // the weights of tokens without a slot
  Border<double> border_biases;         // their biases; -infinity where a query does not attend to a key

  /// The bias of a lag; -infinity if it is not attended.
  double bias(Index lag) const {
    return lag < reach.first || lag > reach.last ? minus_infinity : biases[lag - lags.first];
  }
  bool attends(Index lag) const { return bias(lag) > minus_infinity; }

  /// The bias of a query and a key, given by their token indices.
  double bias_between(Index query, Index key) const {
    if (query < queries.outside || key < keys.outside) return border_biases(query, key);
    return bias(keys.slots[key - keys.outside] - queries.slots[query - queries.outside]);
  }
  bool attends(Index query, Index key) const { return bias_between(query, key) > minus_infinity; }

  /// `weights` that an engine may change by up to `max_deviation`; by nothing if the position assigns the slots.
  LagWeightsView<T> weights_within(double max_deviation) const {
    LagWeightsView<T> c = weights;
    c.max_deviation = has_own_slots ? 0 : max_deviation;
    return c;
  }

  /// Whether pairs of a near field, of attention sinks or of salient keys are computed exactly.
  bool has_exact_pairs() const { return near.width > 0 || sinks > 0 || salient > 0; }

  /// The bias at which a far weight of a query is 1: weight_bias or, for a query without a slot, its largest bias.
  double unit_bias(Index query) const {
    if (query >= queries.outside) return weight_bias;
    double largest = border_biases(query, border.count);
    for (Index key = 0; key < border.count; ++key) largest = std::max(largest, border_biases(query, key));
    return largest;
  }

  /// bias(lag) - bias(from), as precise as LagBiasView::difference(). -infinity if `lag` is not attended; `from` must
  /// be attended.
  double bias_difference(Index lag, Index from) const {
    const double b = bias(lag);
    if (b == minus_infinity) return b;
    if (lag < table.first && from < table.first) return static_cast<double>(from - lag) * slope_before;
    if (lag > table.last && from > table.last) return static_cast<double>(lag - from) * slope_after;
    return b - bias(from);
  }

  /// The largest difference of two finite biases.
  double bias_spread() const {
    double least = -minus_infinity, most = minus_infinity;
    const auto count = [&](double b) {
      if (b > minus_infinity) least = std::min(least, b), most = std::max(most, b);
    };
    for (Index lag = reach.first; lag <= reach.last; ++lag) count(bias(lag));
    for (Index at = 0; at < border_biases.size(); ++at) count(border_biases.values[at]);
    return std::max(most - least, 0.0);
  }

  /// Raises the weight of the last lag that is attended and not near to at least the smallest normal number. Engines
  /// with log-scales of keys scale a row by the keys up to that lag (toeplitz/factors.hpp), even if its weight
  /// underflows.
  void keep_last_weight() {
    Index last = reach.last;
    const auto has_weight = [this](Index lag) { return attends(lag) && !near.contains(lag); };
    while (last > reach.first && !has_weight(last)) --last;
    if (reach.size() == 0 || !has_weight(last)) return;
    T& weight = weight_values[last - reach.first];
    weight = std::max(weight, std::numeric_limits<T>::min());
  }
};

}  // namespace nprf
