// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/error.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/feature_map_base.hpp"

namespace nprf {

/// Multiplies row j of phi (n,r) by exp(log_factors_j - g), where g is the largest finite log-factor, or 0 if none is
/// finite. Returns g. O(n r).
template <Real T>
T scale_to_largest(const VectorMap<T>& log_factors, MatrixRef<T> phi, const Team& team) {
  T largest = -std::numeric_limits<T>::infinity();
  for (const T g : log_factors)
    if (std::isfinite(g)) largest = std::max(largest, g);
  if (!std::isfinite(largest)) largest = 0;
  team.run_tiles(phi.rows(), [&](Index j0, Index rows, Workspace&) {
    for (Index j = j0; j < j0 + rows; ++j) scale(writable_row(phi, j), std::exp(log_factors[j] - largest));
  });
  return largest;
}

namespace detail {

// throw InvalidArgument unless the arguments of a map from d channels to r features have the right shapes
inline void check_shape(const char* name, Index rows, Index cols, Index got_rows, Index got_cols) {
  require(got_rows == rows && got_cols == cols, name, ": expected ", rows, " x ", cols, ", got ", got_rows, " x ",
          got_cols);
}
inline void check_columns(Index d, Index got) {
  require(got == d, "x: expected ", d, " columns (input_dim), got ", got);
}
template <Real T>
void check_features(Index d, Index r, const MatrixView<T>& x, RowScale<T> scale, const MatrixRef<T>& phi) {
  check_columns(d, x.cols());
  require(scale.empty() || static_cast<Index>(scale.size()) == x.rows(), "scale: expected ", x.rows(),
          " factors (rows of x), got ", scale.size());
  check_shape("phi", x.rows(), r, phi.rows(), phi.cols());
}
template <Real T>
void check_gradient(Index d, Index r, const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi,
                    const MatrixRef<T>& dx) {
  check_columns(d, x.cols());
  check_shape("phi", x.rows(), r, phi.rows(), phi.cols());
  check_shape("dphi", x.rows(), r, dphi.rows(), dphi.cols());
  check_shape("dx", x.rows(), d, dx.rows(), dx.cols());
}

// calls set(log_factors), which writes the rows of phi and their log-factors (n), and then scale_to_largest(), whose
// result it returns
template <Real T, class Set>
T scaled_to_largest(MatrixRef<T> phi, const Team& team, Set&& set) {
  const Workspace::Scope scope(team.workspace());
  auto log_factors = team.workspace().template vector<T>(phi.rows());
  set(log_factors.data());
  return scale_to_largest<T>(log_factors, phi, team);
}

}  // namespace detail

template <class F, Real T>
Matrix<T> FeatureMapBase<F, T>::queries(const MatrixView<T>& x, RowScale<T> scale, Vector<T>* log_factor) const {
  if (log_factor) log_factor->resize(x.rows());
  return filled<T>(x.rows(), map().output_dim(), [&](auto& phi, const Team& team) {
    queries(x, scale, phi, team, log_factor ? log_factor->data() : nullptr);
  });
}

template <class F, Real T>
void FeatureMapBase<F, T>::queries(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team,
                                   T* log_factor) const {
  detail::check_features<T>(map().input_dim(), map().output_dim(), x, scale, phi);
  map().set_features(x, scale, phi, team, log_factor);
}

template <class F, Real T>
Matrix<T> FeatureMapBase<F, T>::keys(const MatrixView<T>& x, RowScale<T> scale, T* log_factor) const {
  return filled<T>(x.rows(), map().output_dim(),
                   [&](auto& phi, const Team& team) { keys(x, scale, phi, team, log_factor); });
}

template <class F, Real T>
void FeatureMapBase<F, T>::keys(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team,
                                T* log_factor) const {
  detail::check_features<T>(map().input_dim(), map().output_dim(), x, scale, phi);
  const T largest = map().set_keys(x, scale, phi, team);
  if (log_factor) *log_factor = largest;
}

template <class F, Real T>
Matrix<T> FeatureMapBase<F, T>::backward(const MatrixView<T>& x, const MatrixView<T>& phi,
                                         const MatrixView<T>& dphi) const {
  return filled<T>(x.rows(), x.cols(), [&](auto& dx, const Team& team) { backward(x, phi, dphi, dx, team); });
}

template <class F, Real T>
void FeatureMapBase<F, T>::backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi,
                                    MatrixRef<T> dx, const Team& team) const {
  detail::check_gradient<T>(map().input_dim(), map().output_dim(), x, phi, dphi, dx);
  map().set_gradient(x, phi, dphi, dx, team);
}

template <class F, Real T>
T FeatureMapBase<F, T>::set_keys(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team) const {
  return detail::scaled_to_largest<T>(phi, team,
                                      [&](T* log_factor) { map().set_features(x, scale, phi, team, log_factor); });
}

}  // namespace nprf
