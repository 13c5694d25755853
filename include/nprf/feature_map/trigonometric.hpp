// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>

#include "nprf/core/types.hpp"
#include "nprf/feature_map/random_features.hpp"

namespace nprf {

/// TRF: phi(x) = exp(|x|^2/2) / sqrt(m) [sin(w.x)..., cos(w.x)...], 2m features.
///
/// E[phi(x).phi(y)] = exp(x.y) (Peng et al. 2021). Features have both signs: a denominator can come out negative.
/// Variance over K^2: exp(|x|^2 + |y|^2 - 2 x.y) (1 - exp(-|x-y|^2))^2 / 2m.
template <Real T>
class TrigonometricFeatures : public RandomFeatures<T> {
 public:
  static constexpr bool is_positive = false;

  using RandomFeatures<T>::RandomFeatures;

  Index output_dim() const { return 2 * this->num_features(); }

  /// (n,d) -> (n,2m), without exp(|x|^2/2). phi(scale_i x_i) = exp(log_factor_i) times the row returned.
  /// O(n d m). Throws InvalidArgument unless x has input_dim columns.
  Matrix<T> queries(const MatrixView<T>& x, RowScale<T> scale = {}, Vector<T>* log_factor = nullptr) const {
    Vector<T> half_square;
    Matrix<T> phi = waves(x, scale, half_square);  // (n,2m)
    if (log_factor) *log_factor = half_square.array() - log_sqrt_m();
    return phi;
  }

  /// (n,d) -> (n,2m), relative to the longest key. phi(scale_j x_j) = exp(log_factor) times the row returned.
  Matrix<T> keys(const MatrixView<T>& x, RowScale<T> scale = {}, T* log_factor = nullptr) const {
    Vector<T> half_square;
    Matrix<T> phi = waves(x, scale, half_square);  // (n,2m)
    T largest = x.rows() == 0 ? T(0) : half_square.template maxCoeff<Eigen::PropagateNumbers>();
    if (!std::isfinite(largest)) largest = 0;
    phi.array().colwise() *= (half_square.array() - largest).exp();
    if (log_factor) *log_factor = largest - log_sqrt_m();
    return phi;
  }

  // phi = a [sin, cos] with a ~ exp(|x|^2/2): dphi_sin/dx = phi_cos w + phi_sin x, dphi_cos/dx = -phi_sin w + phi_cos
  // x, so dx = W^T (g_sin o phi_cos - g_cos o phi_sin) + (g.phi) x
  Matrix<T> backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi) const {
    this->check_backward(x, phi, dphi, this->input_dim(), output_dim());
    if (x.rows() == 0) return x;
    const Index m = this->num_features();
    const Matrix<T> z =
        dphi.leftCols(m).cwiseProduct(phi.rightCols(m)) - dphi.rightCols(m).cwiseProduct(phi.leftCols(m));  // (n,m)
    Matrix<T> dx = z * this->projection();                                                                  // (n,d)
    dx.array() += x.array().colwise() * dphi.cwiseProduct(phi).rowwise().sum().array();
    return dx;
  }

 private:
  // [sin(w.x)..., cos(w.x)...] (n,2m) and |x|^2/2 (n)
  Matrix<T> waves(const MatrixView<T>& x, RowScale<T> scale, Vector<T>& half_square) const {
    Matrix<T> phi(x.rows(), output_dim());
    half_square.resize(x.rows());
    this->project(x, scale, [&](Index i0, const Matrix<T>& z, const Vector<T>& h) {
      phi.block(i0, 0, z.rows(), z.cols()) = z.array().sin();
      phi.block(i0, z.cols(), z.rows(), z.cols()) = z.array().cos();
      half_square.segment(i0, h.size()) = h;
    });
    return phi;
  }

  T log_sqrt_m() const { return std::log(static_cast<T>(this->num_features())) / 2; }
};

}  // namespace nprf
