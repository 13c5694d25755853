// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>

#include "nprf/core/lag_problem.hpp"
#include "nprf/core/lags.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/feature_map_view.hpp"
#include "nprf/toeplitz/block_causal/running_key_max.hpp"

/// The features of each key are scaled by a factor of its own: they are e^(log-scale) times a row of B
/// (toeplitz/factors.hpp).
namespace nprf {

/// Sets B (n,r) to the features of the keys x (n,d), whose normalisation factors are `scale` (n). Returns the
/// log-scales of the keys (n), in the team's workspace; or null if the feature map reports no log-factors, and then all
/// rows of B have one common factor.
template <Real T>
double* scaled_key_features(const FeatureMapView<T>& features, const MatrixView<T>& x, RowScale<T> scale,
                            MatrixRef<T> B, const Team& team) {
  if (!features.has_log_factors()) {
    features.keys(x, scale, B, team);
    return nullptr;
  }
  double* log_scales = team.workspace().template take<double>(x.rows());
  const Workspace::Scope scope(team.workspace());
  auto log_factor = team.workspace().template vector<T>(x.rows());
  features.keys_with_log_factors(x, scale, B, log_factor.data(), team);
  std::copy(log_factor.begin(), log_factor.end(), log_scales);
  return log_scales;
}

/// `scaled` becomes the rows of B (n,r) times e^(log-scale - the largest log-scale). `scaled` may be B.
template <Real T>
void scale_by_log_scales(const MatrixView<T>& B, const double* log_scales, MatrixRef<T> scaled, const Team& team) {
  if (B.rows() == 0) return;
  const double largest = *std::max_element(log_scales, log_scales + B.rows());
  team.run_tiles(B.rows(), [&](Index j0, Index rows, Workspace&) {
    for (Index j = j0; j < j0 + rows; ++j)
      set_scaled(writable_row(scaled, j), static_cast<T>(toeplitz::ratio(log_scales[j], largest)), row_of(B, j));
  });
}

/// Returns the result of scale_by_log_scales() in the team's workspace, for an engine that does not accept log-scales.
template <Real T>
MatrixView<T> with_log_scales(const MatrixView<T>& B, const double* log_scales, const Team& team) {
  auto scaled = team.workspace().template matrix<T>(B.rows(), B.cols());
  scale_by_log_scales<T>(B, log_scales, scaled, team);
  return scaled;
}

/// If the log-scales are close to each other, applies scale_by_log_scales() to B, which loses no precision then, and
/// returns null. Otherwise returns the log-scales. Log-scales of -infinity are not compared: their rows are zero.
template <Real T>
double* merge_close_log_scales(MatrixRef<T> B, double* log_scales, const Team& team) {
  constexpr double max_difference = sizeof(T) == sizeof(float) ? 20 : 200,
                   none = -std::numeric_limits<double>::infinity();
  if (!log_scales || B.rows() == 0) return nullptr;
  double least = -none, largest = none;
  for (Index j = 0; j < B.rows(); ++j)
    if (log_scales[j] > none) least = std::min(least, log_scales[j]), largest = std::max(largest, log_scales[j]);
  if (largest - least > max_difference) return log_scales;
  scale_by_log_scales<T>(B, log_scales, B, team);
  return nullptr;
}

/// Adds to of_rows[i] (n_q) the log-scale of the factor by which the engine's row i is divided. If the engine accepts
/// log-scales of keys, this is the largest log-scale of the keys that it counts for the row (M_i,
/// toeplitz/factors.hpp); otherwise the largest of all keys. If the product is zero, any log-scale is right; then M_i
/// is added, because it does not depend on later keys. O(n_q + n_k).
template <Real T>
void add_largest_log_scales(const LagProblem<T>& problem, const Placement& keys, const double* log_scales,
                            bool engine_accepts_them, double* of_rows) {
  const LagRange support = problem.weights.support();
  const Index n_q = problem.queries.count(), n_k = keys.count();
  double running = -std::numeric_limits<double>::infinity();
  if (!engine_accepts_them && (support.size() > 0 || problem.border.count > 0)) {
    for (Index j = 0; j < n_k; ++j) running = std::max(running, log_scales[j]);
    for (Index i = 0; i < n_q; ++i) of_rows[i] += running;
    return;
  }
  const Slots &query_slots = problem.queries.slots, &key_slots = keys.slots;
  for (Index i = 0, j = 0; i < n_q; ++i) {
    for (; j < n_k && key_slots[j] <= query_slots[i] + support.last; ++j) running = std::max(running, log_scales[j]);
    of_rows[i] += running;
  }
}

}  // namespace nprf
