// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/gemm.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/random_features.hpp"

namespace nprf {

/// TRF: phi(x) = exp(|x|^2/2) / sqrt(m) [sin(w.x)..., cos(w.x)...], 2m features.
///
/// E[phi(x).phi(y)] = K = exp(x.y) (Peng et al. 2021). Features have both signs, so a denominator can be negative. The
/// variance of phi(x).phi(y) is K^2 exp(|x|^2 + |y|^2 - 2 x.y) (1 - exp(-|x-y|^2))^2 / 2m for independent Gaussian
/// rows.
template <OnlyReal T>
class TrigonometricFeatures : public RandomFeatures<T> {
 public:
  static constexpr bool is_positive = false, estimates_exp = true;

  /// As those of RandomFeatures. Throws InvalidArgument for a tilt, too.
  explicit TrigonometricFeatures(const FeatureOptions& options) : RandomFeatures<T>(options) {
    require(options.tilt.axes.size() == 0, "tilt: expected none for trigonometric features, got one");
  }
  template <class Rows>
  explicit TrigonometricFeatures(const Eigen::MatrixBase<Rows>& rows) : RandomFeatures<T>(rows) {}

  Index output_dim() const { return 2 * this->num_features(); }

  /// (n,d) -> (n,2m), without the factor exp(|x|^2/2): phi(scale_i x_i) = exp(log_factor_i) times the returned row.
  /// O(n d m). Throws InvalidArgument unless x has input_dim columns.
  Matrix<T> queries(const MatrixView<T>& x, RowScale<T> scale = {}, Vector<T>* log_factor = nullptr) const;

  /// The same into the caller's phi (n,2m), and log_factor (n) where it is not null, by a team.
  void queries(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team,
               T* log_factor = nullptr) const;

  /// (n,d) -> (n,2m), divided by the factor exp(|x|^2/2) of the longest key: phi(scale_j x_j) = exp(log_factor) times
  /// the returned row.
  Matrix<T> keys(const MatrixView<T>& x, RowScale<T> scale = {}, T* log_factor = nullptr) const;

  /// The same into the caller's phi (n,2m), by a team.
  void keys(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team,
            T* log_factor = nullptr) const;

  /// dL/dx (n,d) from x (n,d), phi (n,r) as queries or keys returned it, and dL/dphi (n,r). O(n d m). Throws
  /// InvalidArgument for other shapes.
  Matrix<T> backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi) const;

  /// The same into the caller's dx, by a team.
  void backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi, MatrixRef<T> dx,
                const Team& team) const;

 private:
  // [sin(w.x)..., cos(w.x)...], by whole packs of each row: the last bits of Eigen's functions of arrays depend on the
  // alignment of their result
  template <class Z, class Phi>
  static void sin_cos(const Z& z, Phi phi) {
    using P = Pack<T>;
    using Traits = Eigen::internal::packet_traits<T>;
    const Index m = z.cols();
    for (Index i = 0; i < z.rows(); ++i)
      for (Index k = 0; k < m; k += P::size) {
        if constexpr (Traits::HasSin && Traits::HasCos) {
          const P x = P::load(&z(i, k));  // rows of z are padded to whole packs
          P{Eigen::internal::psin(x.x)}.store(&phi(i, k), m - k);
          P{Eigen::internal::pcos(x.x)}.store(&phi(i, m + k), m - k);
        } else {
          for (Index f = k; f < std::min(m, k + P::size); ++f)
            phi(i, f) = std::sin(z(i, f)), phi(i, m + f) = std::cos(z(i, f));
        }
      }
  }

  T log_sqrt_m() const { return std::log(static_cast<T>(this->num_features())) / 2; }
};

// not inline: see instances.hpp
template <OnlyReal T>
Matrix<T> TrigonometricFeatures<T>::queries(const MatrixView<T>& x, RowScale<T> scale, Vector<T>* log_factor) const {
  if (log_factor) log_factor->resize(x.rows());
  return filled<T>(x.rows(), output_dim(), [&](auto& phi, const Team& team) {
    queries(x, scale, phi, team, log_factor ? log_factor->data() : nullptr);
  });
}

template <OnlyReal T>
void TrigonometricFeatures<T>::queries(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team,
                                       T* log_factor) const {
  this->check_phi(phi, x.rows(), output_dim());
  this->project(x, scale, team, [&](Index i0, const auto& z, const auto& h) {
    sin_cos(z, phi.middleRows(i0, z.rows()));
    for (Index i = 0; log_factor && i < h.size(); ++i) log_factor[i0 + i] = h[i] - log_sqrt_m();
  });
}

template <OnlyReal T>
Matrix<T> TrigonometricFeatures<T>::keys(const MatrixView<T>& x, RowScale<T> scale, T* log_factor) const {
  return filled<T>(x.rows(), output_dim(), [&](auto& phi, const Team& team) { keys(x, scale, phi, team, log_factor); });
}

template <OnlyReal T>
void TrigonometricFeatures<T>::keys(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team,
                                    T* log_factor) const {
  this->check_phi(phi, x.rows(), output_dim());
  const Workspace::Scope scope(team.workspace());
  auto half_square = team.workspace().template vector<T>(x.rows());  // |x|^2/2
  this->project(x, scale, team, [&](Index i0, const auto& z, const auto& h) {
    sin_cos(z, phi.middleRows(i0, z.rows()));
    half_square.segment(i0, h.size()) = h;
  });
  T largest = x.rows() == 0 ? T(0) : half_square.template maxCoeff<Eigen::PropagateNumbers>();
  if (!std::isfinite(largest)) largest = 0;
  team.run_tiles(x.rows(), [&](Index i0, Index rows, Workspace&) {
    for (Index i = i0; i < i0 + rows; ++i) phi.row(i) *= std::exp(half_square[i] - largest);
  });
  if (log_factor) *log_factor = largest - log_sqrt_m();
}

template <OnlyReal T>
Matrix<T> TrigonometricFeatures<T>::backward(const MatrixView<T>& x, const MatrixView<T>& phi,
                                             const MatrixView<T>& dphi) const {
  return filled<T>(x.rows(), x.cols(), [&](auto& dx, const Team& team) { backward(x, phi, dphi, dx, team); });
}

// phi = a [sin, cos] with a ~ exp(|x|^2/2): dphi_sin/dx = phi_cos w + phi_sin x, dphi_cos/dx = -phi_sin w + phi_cos
// x, so dx = W^T (g_sin o phi_cos - g_cos o phi_sin) + (g.phi) x
template <OnlyReal T>
void TrigonometricFeatures<T>::backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi,
                                        MatrixRef<T> dx, const Team& team) const {
  this->check_backward(x, phi, dphi, dx, this->input_dim(), output_dim());
  const Index m = this->num_features();
  team.run_tiles(x.rows(), [&](Index i0, Index rows, Workspace& scratch) {
    const auto f = phi.middleRows(i0, rows), g = dphi.middleRows(i0, rows);  // (rows,2m)
    auto z = scratch.matrix<T>(rows, m);
    z = g.leftCols(m).cwiseProduct(f.rightCols(m)) - g.rightCols(m).cwiseProduct(f.leftCols(m));  // (rows,m)
    auto out = dx.middleRows(i0, rows);
    set_product(out, z, this->projection());  // (rows,d)
    for (Index i = 0; i < rows; ++i) out.row(i) += g.row(i).dot(f.row(i)) * x.row(i0 + i);
  });
}

}  // namespace nprf
