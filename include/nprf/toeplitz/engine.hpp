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
#include "nprf/toeplitz/gradients.hpp"

/// What an engine is: a class that computes Y = ((A B^T) o C) U and its gradients for one set of weights, and states
/// what it can do. To add one, write a class that models ToeplitzEngine and add it to EngineList (engines.hpp).
namespace nprf::toeplitz {

/// What the rounding error of a row of Y is relative to: the row's own terms; the largest row of its block and of the
/// blocks before it, so that no later token changes a bit of it; the largest row of Y.
enum class Rounding { per_row, per_block, global };

/// Bounds of the rounding errors of the rows of Y and of the column of sums, (n_q) each. By norms: with
/// |A_i|_2 |x|_2 in place of the sum of |A_ir| |x_r| over r, where errors of features of both signs enter later sums.
struct RowErrorBounds {
  double *Y, *sums;
  bool by_norms = false;
};

/// Bounds of the rounding errors of dU_j (times |U_j|_1: of dB_j), and of the sum K_j (GradientSizes), (n_k) each; of
/// dc, and of the sums S_l, (num_lags) each.
struct GradientErrorBounds {
  double *keys, *key_sizes, *lags, *lag_sizes;
  Index num_lags;         // 0: those of lags are not requested
  bool by_norms = false;  // as RowErrorBounds
};

/// What the bounds of gradients depend on besides the factors: the sizes s_i of rows (n_q), |U_j|_2 of keys (n_k), and
/// the sums S_l of lags (num_lags).
template <Real T>
struct GradientScales {
  const T *sizes, *values, *lags;
};

/// Engines whose rows share their rounding state bounds of it.
template <class E, class T>
concept HasErrorBounds = requires(const E& engine, const Factors<T>& x, const T* sizes, RowErrorBounds rows,
                                  const GradientScales<T>& scales, GradientErrorBounds bounds, const Team& team) {
  engine.row_error_bounds(x, sizes, rows, team);
  engine.gradient_error_bounds(x, scales, bounds, team);
};

/// An engine is built from the weights, for queries in slots 0..n_q-1 and keys in slots 0..n_k-1 of a span; its tables
/// lie in the workspace of the team that it is built with. E::names are the names that a user may choose it by.
template <class E, class T>
concept ToeplitzEngine =
    std::constructible_from<E, LagWeightsView<T>, const ProductShape&, const Team&> &&
    requires(const E& engine, const Factors<T>& x, const MatrixView<T>& G, MatrixRef<T> Y, T* sums, GradientRefs<T> out,
             const GradientSizes<T>& sizes, const CostInputs<T>& inputs, const Team& team) {
      { E::names[0] } -> std::same_as<const Engine&>;
      { E::rounding } -> std::convertible_to<Rounding>;
      { E::accepts_key_log_scales } -> std::convertible_to<bool>;
      { E::is_automatic } -> std::convertible_to<bool>;  // whether Engine::automatic may choose it
      { E::cost(inputs) } -> std::same_as<double>;
      { engine.longest_plain_sum(Index{}) } -> std::same_as<Index>;
      engine.contract(x, Y, team, sums);         // sums (n_q), unless null: the same for a column of ones
      engine.gradients(x, G, out, sizes, team);  // sizes: GradientSizes, or none
    } &&
    (E::rounding == Rounding::per_row || HasErrorBounds<E, T>);

/// Whether a user may choose an engine by this name.
template <class E>
constexpr bool has_name(Engine name) {
  return std::ranges::find(E::names, name) != std::ranges::end(E::names);
}

}  // namespace nprf::toeplitz
