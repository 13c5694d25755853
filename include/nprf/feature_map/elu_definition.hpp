// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>

#include "nprf/core/error.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/feature_map_base_definition.hpp"

namespace nprf {

template <OnlyReal T>
EluFeatures<T>::EluFeatures(Index input_dim) : m_d(input_dim) {
  require(input_dim >= 1, "input_dim: expected at least 1, got ", input_dim);
}

template <OnlyReal T>
double EluFeatures<T>::relative_error(double norm) const {
  return static_cast<double>(std::numeric_limits<T>::epsilon()) / 2 * (4 + 2 * norm);
}

template <OnlyReal T>
Matrix<T> EluFeatures<T>::queries(const MatrixView<T>& x) const {
  return filled<T>(x.rows(), m_d, [&](auto& phi, const Team& team) { queries(x, {}, phi, team); });
}

template <OnlyReal T>
Matrix<T> EluFeatures<T>::keys(const MatrixView<T>& x) const {
  return queries(x);
}

template <OnlyReal T>
void EluFeatures<T>::queries(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team) const {
  detail::check_features<T>(m_d, m_d, x, scale, phi);
  team.run_tiles(x.rows(), [&](Index i0, Index rows, Workspace&) {
    for (Index i = i0; i < i0 + rows; ++i) {
      const T s = scale.empty() ? T(1) : scale[static_cast<std::size_t>(i)];
      phi.row(i) = (s * x.row(i)).unaryExpr([](T t) { return t > 0 ? t + 1 : std::exp(t); });
    }
  });
}

template <OnlyReal T>
void EluFeatures<T>::keys(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team) const {
  queries(x, scale, phi, team);
}

template <OnlyReal T>
Matrix<T> EluFeatures<T>::backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi) const {
  return filled<T>(x.rows(), x.cols(), [&](auto& dx, const Team& team) { backward(x, phi, dphi, dx, team); });
}

// dphi/dx = 1 for x > 0, otherwise phi
template <OnlyReal T>
void EluFeatures<T>::backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi,
                              MatrixRef<T> dx, const Team& team) const {
  detail::check_gradient<T>(m_d, m_d, x, phi, dphi, dx);
  team.run_tiles(x.rows(), [&](Index i0, Index rows, Workspace&) {
    const auto f = phi.middleRows(i0, rows).array(), g = dphi.middleRows(i0, rows).array();
    dx.middleRows(i0, rows) = (x.middleRows(i0, rows).array() > 0).select(g, g * f);
  });
}

}  // namespace nprf
