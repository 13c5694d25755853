// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/gemm.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/random_features.hpp"

namespace nprf {

/// phi(x) = exp(-|x|^2/2) / sqrt(r) [exp(s w_1.x) ... exp(s w_m.x)], r = signs m. s is +1 if signs is 1, and +1 and -1
/// if signs is 2. With a tilt (tilt.hpp) rows are w' and exponents s w'.x + o.
///
/// E[phi(x).phi(y)] = exp(x.y), and every feature is positive (Choromanski et al. 2021).
template <Real T, Index signs>
class ExponentialFeatures : public RandomFeatures<T> {
 public:
  static constexpr bool is_positive = true, estimates_exp = true;

  using RandomFeatures<T>::RandomFeatures;

  Index output_dim() const { return signs * this->num_features(); }

  /// (n,d) -> (n,r). Each row is scaled so that its largest feature is 1: phi(scale_i x_i) = exp(log_factor_i) times
  /// the returned row. O(n d m). Throws InvalidArgument unless x has input_dim columns.
  Matrix<T> queries(const MatrixView<T>& x, RowScale<T> scale = {}, Vector<T>* log_factor = nullptr) const;

  /// The same into the caller's phi (n,r), and log_factor (n) where it is not null, by a team.
  void queries(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team,
               T* log_factor = nullptr) const;

  /// (n,d) -> (n,r). All rows are scaled so that the largest feature of the call is 1: phi(scale_j x_j) =
  /// exp(log_factor) times the returned row.
  Matrix<T> keys(const MatrixView<T>& x, RowScale<T> scale = {}, T* log_factor = nullptr) const;

  /// The same into the caller's phi (n,r), by a team.
  void keys(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team,
            T* log_factor = nullptr) const;

  /// dL/dx (n,d) from x (n,d), phi (n,r) as queries or keys returned it, and dL/dphi (n,r). O(n d m). Throws
  /// InvalidArgument for other shapes.
  Matrix<T> backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi) const;

  /// The same into the caller's dx, by a team.
  void backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi, MatrixRef<T> dx,
                const Team& team) const;

 private:
  static_assert(signs == 1 || signs == 2);

  // calls use(f, offset) for each pack of features from feature f on, with their offsets
  template <class Use>
  void for_each_pack(Use&& use) const {
    const Index m = this->num_features();
    const auto offsets = this->offsets();
    if (offsets.size() == 0)
      for (Index f = 0; f < m; f += Pack<T>::size) use(f, NoOffset());
    else
      for (Index f = 0; f < m; f += Pack<T>::size) use(f, Pack<T>::load(offsets.data() + f));
  }
  struct NoOffset {
    friend Pack<T> operator+(const Pack<T>& exponent, NoOffset) { return exponent; }
  };

  // the largest entry of [z + o] or [z + o, -z + o], ignoring NaN
  T largest_exponent(const T* z) const {
    auto largest = Pack<T>::all(-std::numeric_limits<T>::infinity());
    for_each_pack([&](Index f, const auto& offset) {
      const auto exponent = Pack<T>::load(z + f);
      largest = larger(exponent + offset, largest);
      if constexpr (signs == 2) largest = larger(-exponent + offset, largest);
    });
    return largest.largest();
  }

  // phi = f([z + o]) or f([z + o, -z + o])
  template <class F>
  void map_exponents(const T* z, T* phi, F&& f) const {
    const Index m = this->num_features();
    for_each_pack([&](Index k, const auto& offset) {
      const auto exponent = Pack<T>::load(z + k);
      f(exponent + offset).store(phi + k, m - k);
      if constexpr (signs == 2) f(-exponent + offset).store(phi + m + k, m - k);
    });
  }

  T log_sqrt_r() const { return std::log(static_cast<T>(output_dim())) / 2; }
};

// not inline: see instances.hpp
template <Real T, Index signs>
Matrix<T> ExponentialFeatures<T, signs>::queries(const MatrixView<T>& x, RowScale<T> scale,
                                                 Vector<T>* log_factor) const {
  if (log_factor) log_factor->resize(x.rows());
  return filled<T>(x.rows(), output_dim(), [&](auto& phi, const Team& team) {
    queries(x, scale, phi, team, log_factor ? log_factor->data() : nullptr);
  });
}

template <Real T, Index signs>
void ExponentialFeatures<T, signs>::queries(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi,
                                            const Team& team, T* log_factor) const {
  this->check_phi(phi, x.rows(), output_dim());
  this->project(x, scale, team, [&](Index i0, const auto& z, const auto& h) {
    for (Index i = 0; i < z.rows(); ++i) {
      // -|x|^2/2 is the same for the whole row and is part of the omitted factor
      const T largest = largest_exponent(&z(i, 0));
      const auto row_max = Pack<T>::all(largest);
      map_exponents(&z(i, 0), &phi(i0 + i, 0), [=](const Pack<T>& exponent) { return exp(exponent - row_max); });
      if (log_factor) log_factor[i0 + i] = largest - h[i] - log_sqrt_r();
    }
  });
}

template <Real T, Index signs>
Matrix<T> ExponentialFeatures<T, signs>::keys(const MatrixView<T>& x, RowScale<T> scale, T* log_factor) const {
  return filled<T>(x.rows(), output_dim(), [&](auto& phi, const Team& team) { keys(x, scale, phi, team, log_factor); });
}

template <Real T, Index signs>
void ExponentialFeatures<T, signs>::keys(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team,
                                         T* log_factor) const {
  this->check_phi(phi, x.rows(), output_dim());
  const Workspace::Scope scope(team.workspace());
  auto tile_maxima = team.workspace().template vector<T>((x.rows() + this->tile - 1) / this->tile);
  this->project(x, scale, team, [&](Index i0, const auto& z, const auto& h) {
    T& tile_max = tile_maxima[i0 / this->tile];
    tile_max = -std::numeric_limits<T>::infinity();
    for (Index i = 0; i < z.rows(); ++i) {
      const auto half_square = Pack<T>::all(h[i]);
      map_exponents(&z(i, 0), &phi(i0 + i, 0), [=](const Pack<T>& exponent) { return exponent - half_square; });
      tile_max = std::max(tile_max, largest_exponent(&z(i, 0)) - h[i]);
    }
  });
  T largest = tile_maxima.size() == 0 ? T(0) : tile_maxima.maxCoeff();
  if (!std::isfinite(largest)) largest = 0;
  team.run_tiles(x.rows(), [&](Index i0, Index rows, Workspace&) {
    const auto max = Pack<T>::all(largest);
    for (Index i = i0; i < i0 + rows; ++i) {
      T* row = &phi(i, 0);
      for (Index f = 0; f < output_dim(); f += Pack<T>::size)
        exp(Pack<T>::load(row + f, output_dim() - f) - max).store(row + f, output_dim() - f);
    }
  });
  if (log_factor) *log_factor = largest - log_sqrt_r();
}

template <Real T, Index signs>
Matrix<T> ExponentialFeatures<T, signs>::backward(const MatrixView<T>& x, const MatrixView<T>& phi,
                                                  const MatrixView<T>& dphi) const {
  return filled<T>(x.rows(), x.cols(), [&](auto& dx, const Team& team) { backward(x, phi, dphi, dx, team); });
}

// phi_s = exp(s w.x - |x|^2/2): dphi_s/dx = phi_s (s w - x), so
// dx = sum_s s W^T (g_s o phi_s) - (g.phi) x
template <Real T, Index signs>
void ExponentialFeatures<T, signs>::backward(const MatrixView<T>& x, const MatrixView<T>& phi,
                                             const MatrixView<T>& dphi, MatrixRef<T> dx, const Team& team) const {
  this->check_backward(x, phi, dphi, dx, this->input_dim(), output_dim());
  const Index m = this->num_features();
  team.run_tiles(x.rows(), [&](Index i0, Index rows, Workspace& scratch) {
    auto g = scratch.matrix<T>(rows, output_dim()), z = scratch.matrix<T>(rows, m);
    g = dphi.middleRows(i0, rows).cwiseProduct(phi.middleRows(i0, rows));  // (rows,r)
    z = g.leftCols(m);                                                     // (rows,m)
    if constexpr (signs == 2) z -= g.rightCols(m);
    auto out = dx.middleRows(i0, rows);
    set_product(out, z, this->projection());  // (rows,d)
    for (Index i = 0; i < rows; ++i) out.row(i) -= g.row(i).sum() * x.row(i0 + i);
  });
}

/// PRF: phi(x) = exp(-|x|^2/2) / sqrt(m) [exp(w.x)...], m features. With K = exp(x.y), the variance of phi(x).phi(y) is
/// K^2 (exp(|x+y|^2) - 1) / m for independent Gaussian rows.
template <OnlyReal T>
class PositiveFeatures : public ExponentialFeatures<T, 1> {
  using ExponentialFeatures<T, 1>::ExponentialFeatures;
};

/// phi(x) = exp(-|x|^2/2) / sqrt(2m) [exp(w.x)..., exp(-w.x)...], 2m features. With K = exp(x.y), the variance of
/// phi(x).phi(y) is K^2 (cosh(|x+y|^2) - 1) / m for independent Gaussian rows.
template <OnlyReal T>
class HyperbolicFeatures : public ExponentialFeatures<T, 2> {
  using ExponentialFeatures<T, 2>::ExponentialFeatures;
};

}  // namespace nprf
