// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "nprf/core/lag_bias.hpp"
#include "nprf/core/lag_problem.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/position/position_view.hpp"

namespace nprf {

/// In the forward pass, runs of equal weights at the ends of a table count as tails. In the backward pass each weight
/// of the table has a gradient of its own.
enum class Pass { forward, backward };

namespace detail {

// where all n tokens stand
template <Real T>
Placement place_tokens(const PositionView<T>& position, Index n, Index offset, const char* name, Workspace& workspace) {
  if (!position.is_placed()) return Slots{n};
  const Index E = position.extra().rows();
  require(n == position.tokens(), name, ": expected ", position.tokens(), " rows (the position's tokens), got ", n);
  require(offset == 0, "offset: expected 0 for a position that assigns slots, got ", offset);
  Index* at = workspace.take<Index>(n - E);
  for (Index cell = 0; cell < n - E; ++cell) at[cell] = position.slot(cell);
  return Placement({n - E, 0, at}, E);
}

// the biases of the border; in causal attention a token attends to itself and to those before it, and all tokens
// without a slot come before those with one
template <Real T>
Border<double> border_biases(const Matrix<T>& extra, Direction direction, Workspace& workspace) {
  const Index E = extra.rows();
  double* b = workspace.take<double>(E * (E + 2));
  for (Index e = 0; e < E; ++e)
    for (Index f = 0; f < E + 2; ++f) {
      const bool is_later = direction == Direction::causal && (f == 0 || f - 2 > e);
      b[e * (E + 2) + f] = is_later ? LagProblem<T>::minus_infinity : extra(e, f);
    }
  return {E, b};
}

// exp(b - largest), but the row of a query without a slot is relative to its own largest
template <Real T>
Border<T> border_weights(const Border<double>& biases, double largest, Workspace& workspace) {
  const Index E = biases.count;
  T* weights = workspace.take<T>(biases.size());
  for (Index e = 0; e < E; ++e) {
    const double* b = biases.values + e * (E + 2);
    const double row = E > 0 ? std::max(b[0], *std::max_element(b + 2, b + E + 2)) : 0;
    for (Index f = 0; f < E + 2; ++f)
      weights[e * (E + 2) + f] =
          b[f] > LagProblem<T>::minus_infinity ? static_cast<T>(std::exp(b[f] - (f == 1 ? largest : row))) : T(0);
  }
  return {E, weights};
}

}  // namespace detail

/// Lowers a position, a direction and an offset to the tables of a LagProblem, for n_q queries and n_k keys. The tables
/// are in the workspace. Throws InvalidArgument if the position is for other numbers of tokens. O(n_q + n_k + E^2) for
/// E tokens without a slot, with one exponential for each lag.
template <Real T>
LagProblem<T> lower(const PositionView<T>& position, Direction direction, Index offset, Index n_q, Index n_k, Pass pass,
                    Workspace& workspace) {
  const LagBias<T>& bias = position.bias();
  const auto slots_of = [](const Placement& x) { return x.slots.count == 0 ? 0 : x.slots[x.slots.count - 1] + 1; };
  LagProblem<T> x;
  x.direction = direction, x.offset = offset;
  x.has_own_slots = position.is_placed();
  x.queries = detail::place_tokens(position, n_q, offset, "queries", workspace);
  x.keys = detail::place_tokens(position, n_k, offset, "keys", workspace);
  x.query_slots = slots_of(x.queries), x.key_slots = slots_of(x.keys);
  x.lags = {1 - x.query_slots, x.key_slots - 1};
  const LagRange distances = reachable_lags(x.query_slots, x.key_slots, offset, direction);  // as the position has them
  x.reach = {distances.first + offset, distances.last + offset};
  x.table = {bias.first + offset, bias.last() + offset};
  x.slope_before = bias.slope_before, x.slope_after = bias.slope_after;

  double *biases = workspace.take<double>(x.lags.size()), *log_weights = workspace.take<double>(x.lags.size());
  for (double* values : {biases, log_weights}) std::fill_n(values, x.lags.size(), LagProblem<T>::minus_infinity);
  const Index from = x.reach.size() > 0 ? x.reach.first - x.lags.first : 0;
  bias.fill(distances, biases + from);
  x.biases = biases, x.log_weights = log_weights;
  const Index largest_at = bias.largest(distances);
  x.largest_bias = bias.max(distances);
  const bool any = x.largest_bias > LagProblem<T>::minus_infinity;
  if (any) bias.fill_differences(distances, largest_at, log_weights + from);

  x.border_biases = detail::border_biases(position.extra(), direction, workspace);
  double largest = x.largest_bias;
  for (Index e = 0; e < x.border_biases.count; ++e)
    largest = std::max(largest, x.border_biases.values[e * (x.border_biases.count + 2) + 1]);
  x.border = detail::border_weights<T>(x.border_biases, largest, workspace);
  x.weight_values = workspace.take<T>(x.reach.size());
  const double below = x.largest_bias - largest;
  for (Index k = 0; k < x.reach.size(); ++k)
    x.weight_values[k] = any ? static_cast<T>(std::exp(log_weights[from + k] + below)) : T(0);
  x.weights = {x.reach.first, x.weight_values, x.reach.size(), tails(bias, distances)};
  if (pass == Pass::forward) x.weights = x.weights.with_equal_ends();
  return x;
}

}  // namespace nprf
