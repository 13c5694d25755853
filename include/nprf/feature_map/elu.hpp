// SPDX-License-Identifier: MIT
#pragma once

#include <limits>

#include <cmath>

#include "nprf/core/error.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// phi(x) = elu(x) + 1, d features, O(n d): x + 1 for x > 0, otherwise exp(x). It defines a kernel of its own and does
/// not estimate exp(x.y) (Katharopoulos et al. 2020).
template <OnlyReal T>
class EluFeatures {
 public:
  using Scalar = T;
  static constexpr bool estimates_exp = false;
  static constexpr bool is_positive = true;

  /// Throws InvalidArgument unless input_dim is at least 1.
  explicit EluFeatures(Index input_dim) : m_d(input_dim) {
    require(input_dim >= 1, "input_dim: expected at least 1, got ", input_dim);
  }

  Index input_dim() const { return m_d; }
  Index output_dim() const { return m_d; }

  /// A bound on the relative error of each feature, for rows of at most that norm.
  double relative_error(double norm) const {
    return static_cast<double>(std::numeric_limits<T>::epsilon()) / 2 * (4 + 2 * norm);
  }

  /// The features of the rows of x: (n,d) -> (n,d). Throws InvalidArgument unless x has input_dim columns.
  Matrix<T> queries(const MatrixView<T>& x) const;
  Matrix<T> keys(const MatrixView<T>& x) const;

  /// The features of the rows scale_i x_i, into the caller's phi (n,d), by a team.
  void queries(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team) const;
  void keys(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team) const;

  /// dL/dx (n,d) from x, phi and dL/dphi (n,d). Throws InvalidArgument for other shapes.
  Matrix<T> backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi) const;

  /// The same into the caller's dx, by a team.
  void backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi, MatrixRef<T> dx,
                const Team& team) const;

 private:
  Index m_d;
};

// not inline: see instances.hpp
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
  require(x.cols() == m_d, "x: expected ", m_d, " columns (input_dim), got ", x.cols());
  require(phi.rows() == x.rows() && phi.cols() == m_d, "phi: expected ", x.rows(), " x ", m_d, ", got ", phi.rows(),
          " x ", phi.cols());
  require(scale.empty() || static_cast<Index>(scale.size()) == x.rows(), "scale: expected ", x.rows(),
          " factors (rows of x), got ", scale.size());
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
  require(
      x.cols() == m_d && phi.rows() == x.rows() && phi.cols() == m_d && dphi.rows() == x.rows() && dphi.cols() == m_d,
      "x, phi, dphi: expected ", x.rows(), " x ", m_d, " each, got ", x.rows(), " x ", x.cols(), ", ", phi.rows(),
      " x ", phi.cols(), ", ", dphi.rows(), " x ", dphi.cols());
  require(dx.rows() == x.rows() && dx.cols() == m_d, "dx: expected ", x.rows(), " x ", m_d, ", got ", dx.rows(), " x ",
          dx.cols());
  team.run_tiles(x.rows(), [&](Index i0, Index rows, Workspace&) {
    const auto f = phi.middleRows(i0, rows).array(), g = dphi.middleRows(i0, rows).array();
    dx.middleRows(i0, rows) = (x.middleRows(i0, rows).array() > 0).select(g, g * f);
  });
}

}  // namespace nprf
