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
/// states its properties. To add an engine, write a class that models ToeplitzEngine and add it to EngineList
/// (engines.hpp). A class that derives from another engine, as FftwEngine does, may start with contract() and its names
/// alone and inherit the gradients and all else. The rounding and the error bounds of the base must then hold for the
/// products of the derived class too.
namespace nprf::toeplitz {

/// What the rounding errors of a row of Y are relative to. per_row: the magnitudes of what is summed in this row.
/// per_block: the largest row of the same block and of the blocks before it; no later token changes a bit of the row.
/// global: the largest row of Y.
enum class Rounding { per_row, per_block, global };

/// Bounds of the rounding errors of the rows of Y and of the sums, (n_q) each. The bound of row i is eps times
/// the sum of |A_ir| e_r over the features r, where e_r estimates the error of the convolution of feature r
/// (fft/error_bound.hpp). If `by_norms`, |A_i|_2 |e|_2 replaces the sum, which holds for features of both signs too.
struct RowErrorBounds {
  double *Y, *sums;
  bool by_norms = false;
};

/// Bounds of the rounding errors of gradients and of the sums K_j and S_l (GradientSizes). For each key (n_k), `keys`
/// bounds the error of dU_j, keys[j] * |U_j|_1 bounds that of sum_r |B_jr dB_jr|, and `key_sizes` bounds that of K_j.
/// For each lag (num_lags), `lags` bounds the error of dc, and `lag_sizes` bounds that of S_l.
struct GradientErrorBounds {
  double *keys, *key_sizes, *lags, *lag_sizes;
  Index num_lags;         // 0 if the bounds of lags are not requested
  bool by_norms = false;  // as in RowErrorBounds
};

/// What the bounds of gradients depend on besides the factors: `sizes` are the s_i of the rows (n_q), and `lags` the
/// sums S_l (num_lags), both as in GradientSizes. `values` are the norms |U_j|_2 of the keys (n_k).
template <Real T>
struct GradientScales {
  const T *sizes, *values, *lags;
};

/// Whether an engine has bounds of its rounding errors. An engine needs them unless its rounding is per row.
template <class E, class T>
concept HasErrorBounds =
    requires(const E& engine, const Factors<T>& x, const T* sizes, RowErrorBounds bounds, const Team& team) {
      engine.row_error_bounds(x, sizes, bounds, team);
    } && requires(const E& engine, const Factors<T>& x, const GradientScales<T>& scales, GradientErrorBounds bounds,
                  const Team& team) { engine.gradient_error_bounds(x, scales, bounds, team); };

/// An engine is constructed from the weights, a span and a team. The n_q and n_k of the span count slots: queries are
/// in slots 0..n_q-1, keys in slots 0..n_k-1, and slots may be empty. The engine's tables are in the team's workspace.
///
///     names                               the names by which users may choose it
///     is_automatic                        whether Engine::automatic may choose it
///     cost(inputs)                        its cost (cost.hpp)
///     longest_plain_sum(n_k)              the largest number of keys that it sums without compensation (long_sums.hpp)
///     contract(x, Y, team, sums)          writes Y (n_q,p); also ((A B^T) o C) 1 to sums (n_q), if sums is not null
///     gradients(x, G, out, sizes, team)   writes the gradients to `out`; also the sums of `sizes`, if it is not empty
///                                         and the rounding is not per row
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

template <class E>
constexpr bool has_name(Engine name) {
  return std::ranges::find(E::names, name) != std::ranges::end(E::names);
}

}  // namespace nprf::toeplitz
