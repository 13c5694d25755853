// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>

#include "nprf/core/engine.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/cost.hpp"
#include "nprf/toeplitz/factors.hpp"

/// The concept of an engine: a class that computes Y = ((A B^T) o C) U and its gradients for one set of weights, and
/// states its properties. To add one, write a class that models ToeplitzEngine and add it to EngineList (engines.hpp).
/// It may start with contract() and its names alone: derived from another engine, it takes the gradients and all else
/// from that one, whose rounding and error bounds must hold for its products too. FftwEngine does so.
namespace nprf::toeplitz {

/// What the rounding errors of a row of Y are relative to: to the terms of the row; to the largest row of its block and
/// of the blocks before it, so that no later token changes a bit of it; to the largest row of Y.
enum class Rounding { per_row, per_block, global };

/// Bounds of the rounding errors of the rows of Y and of the sums, (n_q) each. If `by_norms`, the bounds have
/// |A_i|_2 |x|_2 in place of the sum of |A_ir| |x_r| over r, which holds for features of both signs too.
struct RowErrorBounds {
  double *Y, *sums;
  bool by_norms = false;
};

/// Bounds of rounding errors: `keys` of dU_j, and, multiplied by |U_j|_1, of sum_r |B_jr dB_jr|; `key_sizes` of the sum
/// K_j, (n_k) each; `lags` of dc, and `lag_sizes` of the sums S_l, (num_lags) each. K and S as in GradientSizes.
struct GradientErrorBounds {
  double *keys, *key_sizes, *lags, *lag_sizes;
  Index num_lags;         // 0 if the bounds of lags are not requested
  bool by_norms = false;  // as in RowErrorBounds
};

/// The arguments of the bounds of gradients besides the factors: the sizes s_i of rows (n_q), |U_j|_2 of keys (n_k),
/// and the sums S_l of lags (num_lags).
template <Real T>
struct GradientScales {
  const T *sizes, *values, *lags;
};

/// Bounds of rounding errors, which an engine needs unless its rounding is per row.
template <class E, class T>
concept HasErrorBounds =
    requires(const E& engine, const Factors<T>& x, const T* sizes, RowErrorBounds bounds, const Team& team) {
      engine.row_error_bounds(x, sizes, bounds, team);
    } && requires(const E& engine, const Factors<T>& x, const GradientScales<T>& scales, GradientErrorBounds bounds,
                  const Team& team) { engine.gradient_error_bounds(x, scales, bounds, team); };

/// An engine is built from the weights, for queries in slots 0..n_q-1 and keys in slots 0..n_k-1 of a span; its tables
/// are in the workspace of the team that it is built with.
///
///     names                               the names by which users may choose it
///     is_automatic                        whether Engine::automatic may choose it
///     cost(inputs)                        its cost (cost.hpp)
///     longest_plain_sum(n_k)              the largest number of keys that it sums without compensation (long_sums.hpp)
///     contract(x, Y, team, sums)          Y (n_q,p), and sums (n_q), unless it is null, the same for a column of ones
///     gradients(x, G, out, sizes, team)   the gradients, and the sums of `sizes`, unless they are empty
template <class E, class T>
concept ToeplitzEngine =
    std::constructible_from<E, LagWeightsView<T>, const ProductShape&, const Team&> &&
    requires(const E& engine, const CostInputs<T>& inputs) {
      { E::names[0] } -> std::same_as<const Engine&>;
      { E::rounding } -> std::convertible_to<Rounding>;
      { E::accepts_key_log_scales } -> std::convertible_to<bool>;
      { E::is_automatic } -> std::convertible_to<bool>;
      { E::cost(inputs) } -> std::same_as<double>;
      { engine.longest_plain_sum(Index{}) } -> std::same_as<Index>;
    } &&
    requires(const E& engine, const Factors<T>& x, MatrixRef<T> Y, T* sums, const Team& team) {
      engine.contract(x, Y, team, sums);
    } &&
    requires(const E& engine, const Factors<T>& x, const MatrixView<T>& G, GradientRefs<T> out,
             const GradientSizes<T>& sizes, const Team& team) { engine.gradients(x, G, out, sizes, team); } &&
    (E::rounding == Rounding::per_row || HasErrorBounds<E, T>);

/// Whether this is one of the names of an engine.
template <class E>
constexpr bool has_name(Engine name) {
  return std::ranges::find(E::names, name) != std::ranges::end(E::names);
}

}  // namespace nprf::toeplitz
