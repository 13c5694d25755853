// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>

#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// phi(x) = elu(x) + 1, d features: x + 1 for x > 0, exp(x) else; a kernel of its own (Katharopoulos et al. 2020).
template <Real T>
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

  /// (n,d) -> (n,d). Throws InvalidArgument unless x has input_dim columns.
  Matrix<T> queries(const MatrixView<T>& x) const {
    require(x.cols() == m_d, "x: expected ", m_d, " columns (input_dim), got ", x.cols());
    return x.unaryExpr([](T t) { return t > 0 ? t + 1 : std::exp(t); });
  }
  Matrix<T> keys(const MatrixView<T>& x) const { return queries(x); }

  // dphi/dx = 1 for x > 0, phi else
  Matrix<T> backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi) const {
    require(
        x.cols() == m_d && phi.rows() == x.rows() && phi.cols() == m_d && dphi.rows() == x.rows() && dphi.cols() == m_d,
        "x, phi, dphi: expected ", x.rows(), " x ", m_d, " each, got ", x.rows(), " x ", x.cols(), ", ", phi.rows(),
        " x ", phi.cols(), ", ", dphi.rows(), " x ", dphi.cols());
    return (x.array() > 0).select(dphi.array(), dphi.array() * phi.array());
  }

 private:
  Index m_d;
};

}  // namespace nprf
