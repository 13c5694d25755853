// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/cost.hpp"
#include "nprf/toeplitz/engines.hpp"
#include "nprf/toeplitz/plan/row_balance.hpp"

namespace nprf::toeplitz {

/// The cost of a product alone by an engine; NaN for Engine::automatic.
template <Real T>
double product_cost(Engine engine, const CostInputs<T>& x) {
  double cost = std::numeric_limits<double>::quiet_NaN();
  with_engine<T>(engine, [&]<class E>(std::type_identity<E>) { cost = E::cost(x); });
  return cost;
}

/// The same with the bounds of its rounding errors, unless its rounding is per row.
template <Real T>
double cost_of(Engine engine, const CostInputs<T>& x) {
  const bool is_per_row = properties_of(engine).rounding == Rounding::per_row;
  return product_cost(engine, x) + (is_per_row ? 0 : error_bound_cost(x.tokens));
}

/// The cost of a product with a weight for every lag, by tiles or by FFT.
template <Real T>
double dense_cost(const ProductShape& shape) {
  if (shape.empty()) return 0;
  return std::min(DirectEngine<T>::dense_cost(shape), FftEngine<T>::cost({{}, shape, shape}));
}

/// The rounding that the weights allow besides per row: global for bidirectional weights; per block for one-sided
/// weights, so that no row depends on later keys.
inline Rounding allowed_rounding(const LagRange& support) {
  return support.first < 0 && support.last > 0 ? Rounding::global : Rounding::per_block;
}

/// The cheapest engine whose rounding is per row or `allowed`.
template <Real T>
Engine cheapest(const CostInputs<T>& x, Rounding allowed) {
  Engine best = Engine::automatic;
  double least = std::numeric_limits<double>::infinity();
  EngineList<T>::for_each([&]<class E>(std::type_identity<E>) {
    if (!E::is_automatic || (E::rounding != Rounding::per_row && E::rounding != allowed)) return;
    const Engine engine = E::name_for(x.weights);
    if (const double cost = cost_of(engine, x); cost < least) best = engine, least = cost;
  });
  return best;
}

/// The use of an engine: the rows of the product alone, or its gradients too, which are sums over queries.
enum class Use { rows, gradients };

/// The predicted share of rows that have to be recomputed after an engine of such rounding; infinity for an FFT by
/// blocks in which the rounding errors of some rows would be large beside others.
template <Real T>
double recomputed_share(Rounding rounding, LagWeightsView<T> lags, const Slots& queries, const Slots& keys,
                        Workspace& workspace) {
  switch (rounding) {
    case Rounding::global: return failing_share(lags, queries, keys, workspace);
    case Rounding::per_block:
      if (block_balance(lags, queries, keys, workspace) >= least_balance<T>()) break;
      return std::numeric_limits<double>::infinity();
    case Rounding::per_row: break;
  }
  return 0;
}

/// The same for a use. The gradients of keys are rows of the product with queries and keys exchanged and both axes
/// reversed; the larger share counts.
template <Real T>
double recomputed_share(Rounding rounding, LagWeightsView<T> lags, const Slots& queries, const Slots& keys, Use use,
                        Workspace& workspace) {
  const double of_rows = recomputed_share(rounding, lags, queries, keys, workspace);
  if (use == Use::rows || queries.count == 0 || keys.count == 0) return of_rows;
  const Workspace::Scope scope(workspace);
  const auto reversed = [&](const Slots& x) {
    Index* at = workspace.take<Index>(x.count);
    const Index last = x[x.count - 1];
    for (Index i = 0; i < x.count; ++i) at[i] = last - x[x.count - 1 - i];
    return Slots{x.count, 0, at};
  };
  lags.first += queries[queries.count - 1] - keys[keys.count - 1];
  return std::max(of_rows, recomputed_share(rounding, lags, reversed(keys), reversed(queries), workspace));
}

/// Whether an engine, with the rows that have to be recomputed after it, costs no more than `least`.
template <Real T>
bool is_admissible(Engine engine, const CostInputs<T>& x, double least, const Slots& queries, const Slots& keys,
                   Use use, Workspace& workspace) {
  const double share = recomputed_share(properties_of(engine).rounding, x.weights, queries, keys, use, workspace);
  return cost_of(engine, x) + share * recomputation_cost(x.tokens, product_cost(Engine::direct, x)) <= least;
}

/// The cheapest admissible engine for these tokens.
template <Real T>
Engine choose(LagWeightsView<T> lags, const ProductShape& tokens, const Slots& queries, const Slots& keys,
              Rounding allowed, Use use, Workspace& workspace) {
  const auto slots_of = [](const Slots& x) { return x.count == 0 ? 0 : x[x.count - 1] + 1; };
  const CostInputs<T> inputs{lags, tokens, {slots_of(queries), slots_of(keys), tokens.r, tokens.p}};
  const Engine engine = cheapest(inputs, allowed), per_row = cheapest(inputs, Rounding::per_row);
  if (engine == per_row) return engine;
  return is_admissible(engine, inputs, cost_of(per_row, inputs), queries, keys, use, workspace) ? engine : per_row;
}

/// The engine that Engine::automatic stands for.
template <Real T>
Engine choose(LagWeightsView<T> lags, const ProductShape& tokens, const Slots& queries, const Slots& keys,
              Workspace& workspace) {
  return choose(lags, tokens, queries, keys, allowed_rounding(lags.support()), Use::rows, workspace);
}

}  // namespace nprf::toeplitz
