// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdlib>

#include "nprf/attention/options.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/lag_bias.hpp"
#include "nprf/core/lag_problem.hpp"
#include "nprf/core/lower_lags.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/position/position_view.hpp"

namespace nprf {

namespace detail {

// the slots of all n tokens
template <Real T>
Placement place_tokens(const PositionView<T>& position, Index n, Index offset, const char* name, Workspace& workspace) {
  if (!position.is_placed()) return Slots{n};
  position.check_tokens(n, offset, name);
  const Index E = position.extra().rows();
  Index* at = workspace.take<Index>(n - E);
  for (Index cell = 0; cell < n - E; ++cell) at[cell] = position.slot(cell);
  return Placement({n - E, 0, at}, E);
}

// c w of the lags of `reach`, for the tangent w of a smooth position
template <Real T>
const T* tangents(const PositionView<T>& position, const LagProblem<T>& x, Workspace& workspace) {
  T* values = workspace.take<T>(x.reach.size());
  const Workspace::Scope scope(workspace);
  double* w = workspace.take<double>(x.reach.size());
  position.tangent({x.reach.first - x.offset, x.reach.last - x.offset}, w);
  for (Index k = 0; k < x.reach.size(); ++k) values[k] = static_cast<T>(w[k]) * x.weight_values[k];
  return values;
}

}  // namespace detail

/// Lowers a position, an offset, and the direction, the near field, the sinks and the salient keys of `options` to the
/// tables of a LagProblem, for n_q queries and n_k keys. The tables are in the workspace. Throws InvalidArgument if the
/// position is for other numbers of tokens, or if it has slots of its own and no pitch() for a near field. O(n_q + n_k
/// + E^2) for E tokens without a slot, with one exponential for each lag.
template <Real T>
LagProblem<T> lower(const PositionView<T>& position, const AttentionOptions& options, Index offset, Index n_q,
                    Index n_k, Pass pass, Workspace& workspace) {
  const LagBias<T>& bias = position.bias();
  const Placement queries = detail::place_tokens(position, n_q, offset, "queries", workspace),
                  keys = detail::place_tokens(position, n_k, offset, "keys", workspace);
  LagProblem<T> x = problem_without_biases<T>(queries, keys, options.direction, offset, {bias.first, bias.last()});
  x.has_own_slots = position.is_placed();
  require(options.near == 0 || !x.has_own_slots || position.pitch() > 0,
          "near: expected 0 for a position with slots but without pitch(), got ", options.near);
  const Index farthest = x.query_slots + x.key_slots + std::abs(offset);  // so that no sum with the width overflows
  x.near = {std::min(options.near, farthest), x.has_own_slots ? position.pitch() : 0, offset};
  x.sinks = options.sinks, x.salient = options.salient;
  add_biases_and_weights(x, bias.view(), position.extra().data(), pass, workspace);
  if (pass == Pass::backward && position.is_smooth()) x.weights.tangents = detail::tangents(position, x, workspace);
  return x;
}

}  // namespace nprf
