// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "nprf/core/error.hpp"
#include "nprf/core/gemm.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/feature_map_base_definition.hpp"
#include "nprf/feature_map/random_features_definition.hpp"
#include "nprf/feature_map/trigonometric.hpp"

namespace nprf {

namespace detail {

// [sin(w.x)..., cos(w.x)...], by whole packs of each row: the last bits of Eigen's functions of arrays depend on the
// alignment of their result
template <Real T, class Z, class Phi>
void sin_cos(const Z& z, Phi phi) {
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

}  // namespace detail

template <OnlyReal T>
TrigonometricFeatures<T>::TrigonometricFeatures(const FeatureOptions& options) : RandomFeatures<T>(options) {
  require(options.tilt.axes.size() == 0, "tilt: expected none for trigonometric features, got one");
}

template <OnlyReal T>
T TrigonometricFeatures<T>::log_sqrt_m() const {
  return std::log(static_cast<T>(this->num_features())) / 2;
}

template <OnlyReal T>
void TrigonometricFeatures<T>::set_features(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi,
                                            const Team& team, T* log_factor) const {
  this->project(x, scale, team, [&](Index i0, const auto& z, const auto& h) {
    detail::sin_cos<T>(z, phi.middleRows(i0, z.rows()));
    for (Index i = 0; log_factor && i < h.size(); ++i) log_factor[i0 + i] = h[i] - log_sqrt_m();
  });
}

// the log-factors are compared without the constant log_sqrt_m(): adding it would round them
template <OnlyReal T>
T TrigonometricFeatures<T>::set_keys(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi,
                                     const Team& team) const {
  const auto set = [&](T* half_squares) {
    this->project(x, scale, team, [&](Index i0, const auto& z, const auto& h) {
      detail::sin_cos<T>(z, phi.middleRows(i0, z.rows()));
      std::copy_n(h.data(), h.size(), half_squares + i0);
    });
  };
  return detail::scaled_to_largest<T>(phi, team, set) - log_sqrt_m();
}

// phi = a [sin, cos] with a ~ exp(|x|^2/2): dphi_sin/dx = phi_cos w + phi_sin x, dphi_cos/dx = -phi_sin w + phi_cos x,
// so with g = dphi and the entrywise product o
// dx = W^T (g_sin o phi_cos - g_cos o phi_sin) + (g.phi) x
template <OnlyReal T>
void TrigonometricFeatures<T>::set_gradient(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi,
                                            MatrixRef<T> dx, const Team& team) const {
  const Index m = this->num_features();
  team.run_tiles(x.rows(), [&](Index i0, Index rows, Workspace& scratch) {
    auto z = scratch.matrix<T>(rows, m);  // (rows,m)
    for (Index i = 0; i < rows; ++i)
      for (Index k = 0; k < m; k += Pack<T>::size) {
        const T *f = row_of(phi, i0 + i).data() + k, *g = row_of(dphi, i0 + i).data() + k;
        const auto at = [&](const T* row) { return Pack<T>::load(row, m - k); };
        (at(g) * at(f + m) - at(g + m) * at(f)).store(&z(i, k), m - k);
      }
    auto out = dx.middleRows(i0, rows);
    set_product(out, z, this->projection());  // (rows,d)
    for (Index i = i0; i < i0 + rows; ++i)
      add_scaled(writable_row(dx, i), dot(row_of(dphi, i), row_of(phi, i)), row_of(x, i));
  });
}

}  // namespace nprf
