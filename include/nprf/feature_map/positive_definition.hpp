// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/gemm.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/feature_map_base_definition.hpp"
#include "nprf/feature_map/positive.hpp"
#include "nprf/feature_map/random_features_definition.hpp"

namespace nprf {

namespace detail {

template <Real T>
struct NoOffset {
  friend Pack<T> operator+(const Pack<T>& exponent, NoOffset) { return exponent; }
};

}  // namespace detail

// the next three are inline, because g++ otherwise calls them for each row

// calls use(f, offset) for each pack of features f, f + 1, ..., where `offset` is the pack of their offsets, or
// NoOffset without a tilt
template <Real T, Index signs>
template <class Use>
inline void ExponentialFeatures<T, signs>::for_each_pack(Use&& use) const {
  const Index m = this->num_features();
  const auto offsets = this->offsets();
  if (offsets.size() == 0)
    for (Index f = 0; f < m; f += Pack<T>::size) use(f, detail::NoOffset<T>());
  else
    for (Index f = 0; f < m; f += Pack<T>::size) use(f, Pack<T>::load(offsets.data() + f));
}

// the largest entry of [z + o], or of [z + o, -z + o] if signs is 2, with the offsets o; ignores NaN
template <Real T, Index signs>
inline T ExponentialFeatures<T, signs>::largest_exponent(const T* z) const {
  auto largest = Pack<T>::all(-std::numeric_limits<T>::infinity());
  for_each_pack([&](Index f, const auto& offset) {
    const auto exponent = Pack<T>::load(z + f);
    largest = larger(exponent + offset, largest);
    if constexpr (signs == 2) largest = larger(-exponent + offset, largest);
  });
  return largest.largest();
}

// phi = f([z + o]), or f([z + o, -z + o]) if signs is 2, with the offsets o
template <Real T, Index signs>
template <class F>
inline void ExponentialFeatures<T, signs>::map_exponents(const T* z, T* phi, F&& f) const {
  const Index m = this->num_features();
  for_each_pack([&](Index k, const auto& offset) {
    const auto exponent = Pack<T>::load(z + k);
    f(exponent + offset).store(phi + k, m - k);
    if constexpr (signs == 2) f(-exponent + offset).store(phi + m + k, m - k);
  });
}

template <Real T, Index signs>
T ExponentialFeatures<T, signs>::log_sqrt_r() const {
  return std::log(static_cast<T>(output_dim())) / 2;
}

template <Real T, Index signs>
void ExponentialFeatures<T, signs>::set_features(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi,
                                                 const Team& team, T* log_factor) const {
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
T ExponentialFeatures<T, signs>::set_keys(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi,
                                          const Team& team) const {
  const Workspace::Scope scope(team.workspace());
  auto tile_maxima =
      team.workspace().template vector<T>((x.rows() + detail::projected_rows<T> - 1) / detail::projected_rows<T>);
  this->project(x, scale, team, [&](Index i0, const auto& z, const auto& h) {
    T& tile_max = tile_maxima[i0 / detail::projected_rows<T>];
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
  return largest - log_sqrt_r();
}

// phi_s = exp(s w.x - |x|^2/2): dphi_s/dx = phi_s (s w - x), so with g = dphi and the entrywise product o
// dx = sum_s s W^T (g_s o phi_s) - (g.phi) x
template <Real T, Index signs>
void ExponentialFeatures<T, signs>::set_gradient(const MatrixView<T>& x, const MatrixView<T>& phi,
                                                 const MatrixView<T>& dphi, MatrixRef<T> dx, const Team& team) const {
  const Index m = this->num_features();
  team.run_tiles(x.rows(), [&](Index i0, Index rows, Workspace& scratch) {
    auto g = scratch.matrix<T>(rows, output_dim()), z = scratch.matrix<T>(rows, m);  // (rows,r) (rows,m)
    for (Index i = 0; i < rows; ++i) {
      const T *a = row_of(dphi, i0 + i).data(), *b = row_of(phi, i0 + i).data();
      T *c = &g(i, 0), *difference = &z(i, 0);
      for (Index f = 0; f < output_dim(); f += Pack<T>::size)
        (Pack<T>::load(a + f, output_dim() - f) * Pack<T>::load(b + f, output_dim() - f))
            .store(c + f, output_dim() - f);
      std::copy_n(c, m, difference);
      if constexpr (signs == 2) add_scaled<T>(writable_row(z, i), T(-1), row_of(g, i).last(row_of(z, i).size()));
    }
    auto out = dx.middleRows(i0, rows);
    set_product(out, z, this->projection());  // (rows,d)
    for (Index i = 0; i < rows; ++i) add_scaled<T>(writable_row(dx, i0 + i), -sum(row_of(g, i)), row_of(x, i0 + i));
  });
}

}  // namespace nprf
