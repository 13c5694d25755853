// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <type_traits>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/row_quotient.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/block_causal/levels.hpp"
#include "nprf/toeplitz/cost.hpp"
#include "nprf/toeplitz/engines.hpp"
#include "nprf/toeplitz/fft/convolution_error.hpp"
#include "nprf/toeplitz/plan/failing_share.hpp"

namespace nprf::toeplitz {

/// Returns, for each query (n_q), the sum of the absolute values of its weights over all keys, in the workspace. It is
/// 0 only if all of these weights are 0. O(n_q + n_k): if the keys have many gaps, some queries get the sum of another
/// query near them instead. There must be at least one query and one key.
template <Real T>
std::span<const double> row_sums(LagWeightsView<T> c, const Slots& queries, const Slots& keys, Workspace& workspace) {
  double* sums = workspace.take<double>(queries.count);
  std::fill_n(sums, queries.count, 0.0);
  const Workspace::Scope scope(workspace);
  const Index last = queries[queries.count - 1], lags = last + keys[keys.count - 1] + 1;
  double* before = workspace.take<double>(lags + 1);  // the sum of |c| of the lags before k - last
  Index* nonzero = workspace.take<Index>(lags + 1);   // how many of these |c| are not 0
  before[0] = 0, nonzero[0] = 0;
  for (Index k = 0; k < lags; ++k) {
    before[k + 1] = before[k] + std::abs(static_cast<double>(c[k - last]));
    nonzero[k + 1] = nonzero[k] + (c[k - last] != T(0));
  }
  const auto run_end = [&](Index j) {
    Index end = j + 1;
    while (end < keys.count && keys[end] == keys[end - 1] + 1) ++end;
    return end;
  };
  Index runs = 0;
  for (Index j = 0; j < keys.count; j = run_end(j)) ++runs;
  const Index step = 1 + runs * queries.count / (16384 + 4 * lags);
  for (Index j = 0, end; j < keys.count; j = end) {
    end = run_end(j);
    const Index from = last + keys[j], to = last + keys[end - 1] + 1;
    for (Index i = 0; i < queries.count; i += step) {
      const Index at = queries[i];
      // weights whose sum is lost to rounding still count as non-zero
      if (nonzero[to - at] > nonzero[from - at])
        sums[i] += std::max(before[to - at] - before[from - at], std::numeric_limits<double>::min());
    }
  }
  for (Index i = 0; i < queries.count; ++i) sums[i] = sums[i - i % step];
  return {sums, static_cast<std::size_t>(queries.count)};
}

/// The predicted fraction of rows that fail the error bound after an FFT over all rows (failing_share.hpp), with the
/// default tolerance. Time and memory of row_sums().
template <Real T>
double failing_share(LagWeightsView<T> c, const Slots& queries, const Slots& keys, Workspace& workspace) {
  if (queries.count == 0 || keys.count == 0) return 0;
  const Workspace::Scope scope(workspace);
  const Index n_q = queries[queries.count - 1] + 1, n_k = keys[keys.count - 1] + 1;
  NormSums weights;
  for (Index lag = 1 - n_q; lag < n_k; ++lag) weights.add(static_cast<double>(c[lag]));
  const double N = 2 * static_cast<double>(std::max(n_q, n_k)), eps = std::numeric_limits<T>::epsilon();
  return failing_share(row_sums(c, queries, keys, workspace), weights, static_cast<double>(keys.count), N, eps,
                       default_tolerance<T>);
}

/// The balance of a block of rows is its smallest row sum divided by its largest one. Returns the smallest balance of
/// the blocks of rows that CausalLevels may use: blocks of 128 times any power of two, except the first of each size.
/// Rows without non-zero weights are left out. Time and memory of row_sums().
template <Real T>
double block_balance(LagWeightsView<T> c, const Slots& queries, const Slots& keys, Workspace& workspace) {
  if (queries.count == 0 || keys.count == 0) return 0;
  const Workspace::Scope scope(workspace);
  const auto sums = row_sums(c, queries, keys, workspace);
  const Index n_q = queries[queries.count - 1] + 1, n_k = keys[keys.count - 1] + 1;
  const Index ahead = CausalAxis(c.support(), {n_q, n_k, 1, 1}).queries.first, size = CausalLevels<T>::block;
  struct Range {
    double smallest = std::numeric_limits<double>::infinity(), largest = 0;

    void add(const Range& other) {
      smallest = std::min(smallest, other.smallest), largest = std::max(largest, other.largest);
    }
  };
  Index count = (n_q + ahead + size - 1) / size;
  Range* blocks = workspace.take<Range>(count + 1);
  std::fill_n(blocks, count + 1, Range{});
  for (Index i = 0; i < queries.count; ++i)
    if (const double sum = sums[static_cast<std::size_t>(i)]; sum > 0)
      blocks[(queries[i] + ahead) / size].add({sum, sum});
  double balance = 1;
  for (; count > 1; count = (count + 1) / 2) {
    for (Index block = 1; block < count; ++block)
      if (blocks[block].largest > 0) balance = std::min(balance, blocks[block].smallest / blocks[block].largest);
    blocks[count] = {};
    for (Index block = 0; block < (count + 1) / 2; ++block) {
      blocks[block] = blocks[2 * block];
      blocks[block].add(blocks[2 * block + 1]);
    }
  }
  return balance;
}

/// If block_balance() is less than this, Engine::automatic does not choose an FFT by blocks: the rows with the smallest
/// sums would lose more than a third of their digits.
template <Real T>
double least_balance() {
  return std::cbrt(static_cast<double>(std::numeric_limits<T>::epsilon()));
}

/// The cost of a product by an engine, without error bounds; NaN for Engine::automatic.
template <Real T>
double product_cost(Engine engine, const CostInputs<T>& x) {
  double cost = std::numeric_limits<double>::quiet_NaN();
  with_engine<T>(engine, [&]<class E>(std::type_identity<E>) { cost = E::cost(x); });
  return cost;
}

/// The cost of a product by an engine and, unless its rounding is per row, of the bounds of its rounding errors.
template <Real T>
double cost_of(Engine engine, const CostInputs<T>& x) {
  const bool is_per_row = properties_of(engine).rounding == Rounding::per_row;
  return product_cost(engine, x) + (is_per_row ? 0 : error_bound_cost(x.tokens));
}

/// The cost of a product in which all lags have weights, by tiles or by FFT, whichever is cheaper.
template <Real T>
double dense_cost(const ProductShape& shape) {
  if (shape.empty()) return 0;
  return std::min(DirectEngine<T>::dense_cost(shape), FftEngine<T>::cost({{}, shape, shape}));
}

/// The Rounding that an engine may have, besides per_row, for weights with this support. It is global if both negative
/// and positive lags have weights. Otherwise it is per_block, so that no row depends on later keys.
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

/// What an engine is used for: the rows of the product alone, or its gradients too, which are sums over queries.
enum class Use { rows, gradients };

/// The predicted fraction of rows that have to be recomputed after an engine with this rounding. Infinity for
/// Rounding::per_block if block_balance() is less than least_balance().
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

/// recomputed_share() for a use. The gradients of keys are rows of the product with queries and keys exchanged and both
/// axes reversed. If gradients are used, returns the larger of the two fractions.
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

/// Whether a product by an engine and the recomputation of its imprecise rows together cost at most `least`.
template <Real T>
bool is_admissible(Engine engine, const CostInputs<T>& x, double least, const Slots& queries, const Slots& keys,
                   Use use, Workspace& workspace) {
  const double share = recomputed_share(properties_of(engine).rounding, x.weights, queries, keys, use, workspace);
  return cost_of(engine, x) + share * recomputation_cost(x.tokens, product_cost(Engine::direct, x)) <= least;
}

/// Returns the cheapest engine whose rounding is per row or `allowed`; but the cheapest one whose rounding is per row,
/// if recomputed rows make the former cost more.
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
