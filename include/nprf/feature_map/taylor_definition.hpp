// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "nprf/core/error.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/feature_map_base_definition.hpp"
#include "nprf/feature_map/quadratic_row.hpp"
#include "nprf/feature_map/taylor.hpp"

namespace nprf {

template <OnlyReal T>
QuadraticFeatures<T>::QuadraticFeatures(Index input_dim, QuadraticTerms<T> terms)
    : m_d(input_dim), m_terms(std::move(terms)) {
  require(m_d >= 1, "input_dim: expected at least 1, got ", m_d);
  require(m_terms.first >= 0 && m_terms.first <= m_d, "first: expected 0 to ", m_d, " (input_dim), got ",
          m_terms.first);
  require(m_terms.second >= 0 && m_terms.second <= m_terms.first, "directions: expected 0 to ", m_terms.first, ", got ",
          m_terms.second);
  require(m_terms.mean_square.size() == m_terms.second, "mean_square: expected ", m_terms.second, " scalars, got ",
          m_terms.mean_square.size());
  require(m_terms.curvature.size() == 0 || m_terms.curvature.size() == m_d, "curvature: expected ", m_d,
          " scalars or none, got ", m_terms.curvature.size());
  require(has_finite_entries(m_terms.mean_square) && has_finite_entries(m_terms.curvature) &&
              std::isfinite(m_terms.log_scale),
          "terms: expected finite scalars, got a NaN or an infinity");
}

template <OnlyReal T>
double QuadraticFeatures<T>::relative_error(double norm) const {
  const double curvature = static_cast<double>(largest_magnitude(entries_of(m_terms.curvature)));
  const double log_scale = std::abs(static_cast<double>(m_terms.log_scale));
  return static_cast<double>(std::numeric_limits<T>::epsilon()) / 2 * (4 + 3 * curvature * norm * norm + log_scale);
}

template <OnlyReal T>
QuadraticTerms<T> TaylorFeatures<T>::terms_of(const TaylorOptions& options) {
  const Index s = options.directions;
  return {options.input_dim, s, Vector<T>::Zero(std::max<Index>(s, 0)), {}};
}

template <OnlyReal T>
void QuadraticFeatures<T>::set_features(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team,
                                        T* log_factor) const {
  const QuadraticRow<T> row(m_terms);
  team.run_tiles(x.rows(), [&](Index i0, Index rows, Workspace& scratch) {
    auto z = scratch.vector<T>(m_d);
    for (Index i = i0; i < i0 + rows; ++i) {
      const T s = scale.empty() ? T(1) : scale[static_cast<std::size_t>(i)];
      set_scaled(std::span(z.data(), row_of(x, i).size()), s, row_of(x, i));
      const T g = row.features(z.data(), m_d, &phi(i, 0));
      if (log_factor) log_factor[i] = g;
    }
  });
}

// row i of phi is c exp(g(x_i)) times the features of x_i without exp(g), where c is a constant. Its first entry is
// c exp(g(x_i)), since the first feature is 1
template <OnlyReal T>
void QuadraticFeatures<T>::set_gradient(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi,
                                        MatrixRef<T> dx, const Team& team) const {
  const QuadraticRow<T> row(m_terms);
  team.run_tiles(x.rows(), [&](Index i0, Index rows, Workspace& scratch) {
    auto g = scratch.vector<T>(output_dim());
    for (Index i = i0; i < i0 + rows; ++i) {
      set_scaled(std::span(g.data(), row_of(dphi, i).size()), phi(i, 0), row_of(dphi, i));
      row.backward(row_of(x, i).data(), m_d, g.data(), dot(row_of(phi, i), row_of(dphi, i)), &dx(i, 0));
    }
  });
}

}  // namespace nprf
