// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "nprf/core/engine.hpp"
#include "nprf/core/lag_problem.hpp"
#include "nprf/core/lags.hpp"
#include "nprf/core/slots.hpp"

/// Builds a LagProblem from the slots of tokens and the biases of a position, without a matrix library. The CPU's
/// attention uses it through attention/weights/lower.hpp, and a GPU's plan through cuda/plan/device_model.cuh.
namespace nprf {

/// In the forward pass, runs of equal weights at the ends of a table count as tails. In the backward pass they do not,
/// because each weight of the table has a gradient of its own.
enum class Pass { forward, backward };

/// The part of a LagProblem that does not depend on the values of biases: the slots of tokens, the range of their lags,
/// the lags of this range that the direction allows, and the range outside of which b is linear. The argument `table`
/// is the range of the position's own table, whose lags do not include the offset.
template <Real T>
LagProblem<T> problem_without_biases(const Placement& queries, const Placement& keys, Direction direction, Index offset,
                                     LagRange table) {
  const auto slots_of = [](const Placement& x) { return x.slots.count == 0 ? 0 : x.slots[x.slots.count - 1] + 1; };
  LagProblem<T> x;
  x.direction = direction, x.offset = offset;
  x.queries = queries, x.keys = keys;
  x.query_slots = slots_of(queries), x.key_slots = slots_of(keys);
  x.lags = {1 - x.query_slots, x.key_slots - 1};
  const LagRange position_lags = reachable_lags(x.query_slots, x.key_slots, offset, direction);  // without the offset
  x.reach = {position_lags.first + offset, position_lags.last + offset};
  x.table = {table.first + offset, table.last + offset};
  return x;
}

namespace detail {

// the biases of the border, from `extra` (E,E+2) with the columns of Border (slots.hpp); -infinity for later keys: in
// causal attention a token attends to itself and to those before it, and all tokens without a slot come before those
// with one
template <Real T, class Storage>
Border<double> border_biases(const T* extra, Index E, Direction direction, Storage& storage) {
  double* b = storage.template take<double>(E * (E + 2));
  for (Index e = 0; e < E; ++e)
    for (Index f = 0; f < E + 2; ++f) {
      const bool is_later = direction == Direction::causal && is_later_in_border(e, f);
      b[e * (E + 2) + f] = is_later ? LagProblem<T>::minus_infinity : extra[e * (E + 2) + f];
    }
  return {E, b};
}

// the tails of the weights of `reach`, shortened so that neither they nor the next lag inwards are near
inline Tails tails_outside(LagRange near, LagRange reach, Tails tails) {
  if (near.size() == 0 || near.last < reach.first || near.first > reach.last) return tails;
  tails.before = std::min(tails.before, std::max<Index>(near.first - 1 - reach.first, 0));
  tails.after = std::min(tails.after, std::max<Index>(reach.last - near.last - 1, 0));
  if (tails.before == 0) tails.slope_before = 0;
  if (tails.after == 0) tails.slope_after = 0;
  return tails;
}

// the weights of the border; `largest` is the bias at which the weight of a query with a slot is 1
template <Real T, class Storage>
Border<T> border_weights(const Border<double>& biases, double largest, Storage& storage) {
  const Index E = biases.count;
  T* weights = storage.template take<T>(biases.size());
  for (Index e = 0; e < E; ++e) {
    const double* b = biases.values + e * (E + 2);
    double row = LagProblem<T>::minus_infinity;
    for (Index f = 0; f < E + 2; ++f)
      if (is_own_in_border(f)) row = std::max(row, b[f]);
    for (Index f = 0; f < E + 2; ++f) weights[e * (E + 2) + f] = border_weight<T>(b[f], f, largest, row);
  }
  return {E, weights};
}

}  // namespace detail

/// Adds the biases and the weights to a LagProblem from problem_without_biases, whose `near` may have been set. `extra`
/// (E,E+2) has the biases of the E tokens without a slot, in the columns of Border (slots.hpp). The tables are taken
/// from the storage: storage.take<U>(n) returns n uninitialised objects, as Workspace does. O(lags + E^2), with one
/// exponential for each lag.
template <Real T, class Storage>
void add_biases_and_weights(LagProblem<T>& x, const LagBiasView<T>& bias, const T* extra, Pass pass, Storage& storage) {
  const LagRange position_lags{x.reach.first - x.offset, x.reach.last - x.offset};
  x.slope_before = bias.slope_before, x.slope_after = bias.slope_after;

  double *biases = storage.template take<double>(x.lags.size()),
         *log_weights = storage.template take<double>(x.lags.size());
  for (double* values : {biases, log_weights}) std::fill_n(values, x.lags.size(), LagProblem<T>::minus_infinity);
  const Index from = x.reach.size() > 0 ? x.reach.first - x.lags.first : 0;
  bias.fill(position_lags, biases + from);
  x.biases = biases, x.log_weights = log_weights;
  const Index largest_at = bias.largest(position_lags);
  x.largest_bias = bias.max(position_lags);
  const bool any = x.largest_bias > LagProblem<T>::minus_infinity;
  if (any) bias.fill_differences(position_lags, largest_at, log_weights + from);

  const Index E = x.keys.outside;
  x.border_biases = detail::border_biases(extra, E, x.direction, storage);
  x.weight_bias = x.largest_bias;
  for (Index e = 0; e < E; ++e) x.weight_bias = std::max(x.weight_bias, x.border_biases.values[e * (E + 2) + 1]);
  x.border = detail::border_weights<T>(x.border_biases, x.weight_bias, storage);
  x.weight_values = storage.template take<T>(x.reach.size());
  const double below = x.largest_bias - x.weight_bias;
  for (Index k = 0; k < x.reach.size(); ++k) {
    const bool has_weight = any && !x.near.contains(x.reach.first + k);
    x.weight_values[k] = has_weight ? static_cast<T>(std::exp(log_weights[from + k] + below)) : T(0);
  }
  x.weights = {x.reach.first, x.weight_values, x.reach.size(),
               detail::tails_outside(x.near.range(), x.reach, tails(bias, position_lags))};
  if (pass == Pass::forward) x.weights = x.weights.with_equal_ends();
}

}  // namespace nprf
