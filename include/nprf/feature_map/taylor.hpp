// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "nprf/core/error.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/quadratic_row.hpp"
#include "nprf/feature_map/row_factors.hpp"

namespace nprf {

/// The feature map of QuadraticRow: constants, first-order and second-order features of the coordinates of x. It is
/// deterministic, and its features have both signs.
template <OnlyReal T>
class QuadraticFeatures {
 public:
  using Scalar = T;
  static constexpr bool is_positive = false, estimates_exp = true, is_series = true, has_independent_rows = true;

  /// Throws InvalidArgument if the sizes of the terms do not fit together.
  QuadraticFeatures(Index input_dim, QuadraticTerms<T> terms) : m_d(input_dim), m_terms(std::move(terms)) {
    require(m_d >= 1, "input_dim: expected at least 1, got ", m_d);
    require(m_terms.first >= 0 && m_terms.first <= m_d, "first: expected 0 to ", m_d, " (input_dim), got ",
            m_terms.first);
    require(m_terms.second >= 0 && m_terms.second <= m_terms.first, "directions: expected 0 to ", m_terms.first,
            ", got ", m_terms.second);
    require(m_terms.mean_square.size() == m_terms.second, "mean_square: expected ", m_terms.second, " scalars, got ",
            m_terms.mean_square.size());
    require(m_terms.curvature.size() == 0 || m_terms.curvature.size() == m_d, "curvature: expected ", m_d,
            " scalars or none, got ", m_terms.curvature.size());
    require(m_terms.mean_square.allFinite() && m_terms.curvature.allFinite() && std::isfinite(m_terms.log_scale),
            "terms: expected finite scalars, got a NaN or an infinity");
  }

  Index input_dim() const { return m_d; }
  Index output_dim() const { return m_terms.output_dim(); }
  const QuadraticTerms<T>& terms() const { return m_terms; }

  /// A bound on the rounding error of the features of rows of at most that norm, relative to |phi|: scaling x, a
  /// product, a difference, and the factor of a row.
  double relative_error(double norm) const {
    const double curvature =
        m_terms.curvature.size() > 0 ? static_cast<double>(m_terms.curvature.cwiseAbs().maxCoeff()) : 0;
    const double log_scale = std::abs(static_cast<double>(m_terms.log_scale));
    return static_cast<double>(std::numeric_limits<T>::epsilon()) / 2 * (4 + 3 * curvature * norm * norm + log_scale);
  }

  /// (n,d) -> (n,r) without the factor of each row: phi(scale_i x_i) = exp(log_factor_i) times the returned row.
  /// O(n (d + r)). Throws InvalidArgument unless x has input_dim columns.
  Matrix<T> queries(const MatrixView<T>& x, RowScale<T> scale = {}, Vector<T>* log_factor = nullptr) const;

  /// The same into the caller's phi (n,r), and log_factor (n) where it is not null, by a team.
  void queries(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team,
               T* log_factor = nullptr) const;

  /// (n,d) -> (n,r), divided by the largest factor of a row: phi(scale_j x_j) = exp(log_factor) times the returned row.
  Matrix<T> keys(const MatrixView<T>& x, RowScale<T> scale = {}, T* log_factor = nullptr) const;

  /// The same into the caller's phi (n,r), by a team.
  void keys(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team,
            T* log_factor = nullptr) const;

  /// dL/dx (n,d) from x (n,d), phi (n,r) as queries or keys returned it, and dL/dphi (n,r). O(n (d + r)). Throws
  /// InvalidArgument for other shapes.
  Matrix<T> backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi) const;

  /// The same into the caller's dx, by a team.
  void backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi, MatrixRef<T> dx,
                const Team& team) const;

 private:
  Index m_d;
  QuadraticTerms<T> m_terms;
};

struct TaylorOptions {
  Index input_dim;
  Index directions = 0;  // coordinates 0..directions-1 have second-order features too
};

/// The Taylor series of exp(x.y) to first order, and to second order in some coordinates: 1 + d + s (s + 1) / 2
/// features.
///
///     phi(x).phi(y) = 1 + x.y + (x_1 y_1 + ... + x_s y_s)^2 / 2
///
/// The truncation error is at most |x.y|^2 / 2 exp(|x.y|), and to complete second order (s = d) |x.y|^3 / 6 exp(|x.y|).
/// Where |x.y| <= 1, as for rows of norm 1, phi(x).phi(y) >= 0 for every s. Else a product can be negative.
template <OnlyReal T>
class TaylorFeatures : public QuadraticFeatures<T> {
 public:
  /// Throws InvalidArgument unless input_dim is at least 1 and directions are 0 to input_dim.
  explicit TaylorFeatures(const TaylorOptions& options) : QuadraticFeatures<T>(options.input_dim, terms_of(options)) {}

  Index directions() const { return this->terms().second; }

 private:
  static QuadraticTerms<T> terms_of(const TaylorOptions& options) {
    const Index s = options.directions;
    return {options.input_dim, s, Vector<T>::Zero(std::max<Index>(s, 0)), {}};
  }
};

// not inline: see instances.hpp
template <OnlyReal T>
Matrix<T> QuadraticFeatures<T>::queries(const MatrixView<T>& x, RowScale<T> scale, Vector<T>* log_factor) const {
  if (log_factor) log_factor->resize(x.rows());
  return filled<T>(x.rows(), output_dim(), [&](auto& phi, const Team& team) {
    queries(x, scale, phi, team, log_factor ? log_factor->data() : nullptr);
  });
}

template <OnlyReal T>
void QuadraticFeatures<T>::queries(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team,
                                   T* log_factor) const {
  require(x.cols() == m_d, "x: expected ", m_d, " columns (input_dim), got ", x.cols());
  require(scale.empty() || static_cast<Index>(scale.size()) == x.rows(), "scale: expected ", x.rows(),
          " factors (rows of x), got ", scale.size());
  require(phi.rows() == x.rows() && phi.cols() == output_dim(), "phi: expected ", x.rows(), " x ", output_dim(),
          ", got ", phi.rows(), " x ", phi.cols());
  const QuadraticRow<T> row(m_terms);
  team.run_tiles(x.rows(), [&](Index i0, Index rows, Workspace& scratch) {
    auto z = scratch.vector<T>(m_d);
    for (Index i = i0; i < i0 + rows; ++i) {
      z = x.row(i).transpose() * (scale.empty() ? T(1) : scale[static_cast<std::size_t>(i)]);
      const T g = row.features(z.data(), m_d, &phi(i, 0));
      if (log_factor) log_factor[i] = g;
    }
  });
}

template <OnlyReal T>
Matrix<T> QuadraticFeatures<T>::keys(const MatrixView<T>& x, RowScale<T> scale, T* log_factor) const {
  return filled<T>(x.rows(), output_dim(), [&](auto& phi, const Team& team) { keys(x, scale, phi, team, log_factor); });
}

template <OnlyReal T>
void QuadraticFeatures<T>::keys(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team,
                                T* log_factor) const {
  const Workspace::Scope scope(team.workspace());
  auto g = team.workspace().template vector<T>(x.rows());
  queries(x, scale, phi, team, g.data());
  const T largest = scale_to_largest<T>(g, phi, team);
  if (log_factor) *log_factor = largest;
}

template <OnlyReal T>
Matrix<T> QuadraticFeatures<T>::backward(const MatrixView<T>& x, const MatrixView<T>& phi,
                                         const MatrixView<T>& dphi) const {
  return filled<T>(x.rows(), x.cols(), [&](auto& dx, const Team& team) { backward(x, phi, dphi, dx, team); });
}

// a row of phi is a constant times e^g(x) times the features of x, and its first entry is that factor
template <OnlyReal T>
void QuadraticFeatures<T>::backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi,
                                    MatrixRef<T> dx, const Team& team) const {
  const Index r = output_dim();
  require(x.cols() == m_d, "x: expected ", m_d, " columns (input_dim), got ", x.cols());
  for (const MatrixView<T>* one : {&phi, &dphi})
    require(one->rows() == x.rows() && one->cols() == r, one == &phi ? "phi" : "dphi", ": expected ", x.rows(), " x ",
            r, ", got ", one->rows(), " x ", one->cols());
  require(dx.rows() == x.rows() && dx.cols() == m_d, "dx: expected ", x.rows(), " x ", m_d, ", got ", dx.rows(), " x ",
          dx.cols());
  const QuadraticRow<T> row(m_terms);
  team.run_tiles(x.rows(), [&](Index i0, Index rows, Workspace& scratch) {
    auto g = scratch.vector<T>(r), z = scratch.vector<T>(m_d), dz = scratch.vector<T>(m_d);
    for (Index i = i0; i < i0 + rows; ++i) {
      g = dphi.row(i).transpose() * phi(i, 0);
      z = x.row(i).transpose();
      row.backward(z.data(), m_d, g.data(), phi.row(i).dot(dphi.row(i)), dz.data());
      dx.row(i) = dz.transpose();
    }
  });
}

}  // namespace nprf
