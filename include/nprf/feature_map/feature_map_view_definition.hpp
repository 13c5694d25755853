// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>

#include "nprf/core/error.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/feature_map_view.hpp"

namespace nprf {

namespace detail {

template <Real T>
void propagate_non_finite(const MatrixView<T>& x, MatrixRef<T>& phi, const Team& team) {
  team.run_tiles(x.rows(), [&](Index i0, Index rows, Workspace&) {
    for (Index i = i0; i < i0 + rows; ++i)
      if (!all_finite(row_of(x, i).data(), x.cols()))
        std::ranges::fill(writable_row(phi, i), std::numeric_limits<T>::quiet_NaN());
  });
}

// a user's own map may return a matrix of a wrong shape
template <Real T>
void set_checked(MatrixRef<T>& x, const Matrix<T>& returned) {
  require(returned.rows() == x.rows() && returned.cols() == x.cols(), "feature map: expected to return ", x.rows(),
          " x ", x.cols(), ", got ", returned.rows(), " x ", returned.cols());
  x = returned;
}

// sets phi by `function`, which writes into phi, or if it is null by `plain`, which returns a matrix
template <Real T, class Function, class Plain>
void set_features(Function* function, Plain* plain, const void* map, const MatrixView<T>& x, RowScale<T> scale,
                  MatrixRef<T>& phi, const Team& team) {
  if (function) {
    function(map, x, scale, phi, team);
  } else if (scale.empty()) {
    set_checked<T>(phi, plain(map, x));
  } else {
    const Workspace::Scope scope(team.workspace());
    auto xs = team.workspace().template matrix<T>(x.rows(), x.cols());
    scale_rows<T>(x, scale, xs, team);
    set_checked<T>(phi, plain(map, xs));
  }
  propagate_non_finite<T>(x, phi, team);
}

}  // namespace detail

template <Real T>
void FeatureMapView<T>::queries(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team) const {
  detail::set_features<T>(m_functions->queries, m_functions->plain_queries, m_map, x, scale, phi, team);
}

template <Real T>
void FeatureMapView<T>::keys(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team) const {
  detail::set_features<T>(m_functions->keys, m_functions->plain_keys, m_map, x, scale, phi, team);
}

template <Real T>
void FeatureMapView<T>::with_log_factors(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, T* log_factor,
                                         const Team& team) const {
  m_functions->with_log_factors(m_map, x, scale, phi, log_factor, team);
  detail::propagate_non_finite<T>(x, phi, team);
}

template <Real T>
void FeatureMapView<T>::keys_with_log_factors(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi,
                                              T* log_factor, const Team& team) const {
  m_functions->keys_with_log_factors(m_map, x, scale, phi, log_factor, team);
  detail::propagate_non_finite<T>(x, phi, team);
}

template <Real T>
void FeatureMapView<T>::backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi,
                                 MatrixRef<T> dx, const Team& team) const {
  if (m_functions->backward)
    m_functions->backward(m_map, x, phi, dphi, dx, team);
  else
    detail::set_checked<T>(dx, m_functions->plain_backward(m_map, x, phi, dphi));
}

template <Real T>
void FeatureMapView<T>::backward_keys(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi,
                                      MatrixRef<T> dx, const Team& team) const {
  if (m_functions->backward_keys)
    m_functions->backward_keys(m_map, x, phi, dphi, dx, team);
  else
    backward(x, phi, dphi, dx, team);
}

}  // namespace nprf
