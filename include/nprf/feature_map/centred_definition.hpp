// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "nprf/core/block_product.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/gemm.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/centred.hpp"
#include "nprf/feature_map/feature_map_base_definition.hpp"

namespace nprf {

template <Real T>
CentredCore<T>::CentredCore(Index d, Centring<T> constants) : m_constants(std::move(constants)) {
  const auto& [nu, mu, A, A_inverse] = m_constants;
  for (const Vector<T>* mean : {&nu, &mu})
    require(mean->size() == d, mean == &nu ? "query_mean" : "key_mean", ": expected ", d, " scalars (input_dim), got ",
            mean->size());
  for (const Matrix<T>* axes : {&A, &A_inverse})
    require(axes->rows() == d && axes->cols() == d, axes == &A ? "query_axes" : "key_axes", ": expected ", d, " x ", d,
            ", got ", axes->rows(), " x ", axes->cols());
  require(has_finite_entries(nu) && has_finite_entries(mu) && has_finite_entries(A) && has_finite_entries(A_inverse),
          "constants: expected finite scalars, got a NaN or an infinity");
  m_query_axes = transposed_in_packs(A), m_key_axes = transposed_in_packs(A_inverse);
}

// z = axes (x - mean), and the logarithm of the row's factor is linear.x + offset
template <Real T>
struct CentredCore<T>::Coordinates {
  const Vector<T>&mean, &linear;
  const Matrix<T>&axes, &axes_in_packs;
  T offset;

  T log_factor(const MatrixView<T>& x, RowScale<T> scale, Index i) const {
    const T product = dot_by_packs(x.data() + i * x.outerStride(), linear.data(), x.cols());
    return product * (scale.empty() ? T(1) : scale[static_cast<std::size_t>(i)]) + offset;
  }
};

template <Real T>
typename CentredCore<T>::Coordinates CentredCore<T>::coordinates(Side side) const {
  const auto& [nu, mu, A, A_inverse] = m_constants;
  if (side == Side::query) return {nu, mu, A, m_query_axes, T(0)};
  return {mu, nu, A_inverse, m_key_axes, -dot(entries_of(nu), entries_of(mu))};
}

// calls emit(i0, rows, z, scratch) for each tile of `rows` rows from row i0 on, with their coordinates z (rows,d)
template <Real T>
template <class Emit>
void CentredCore<T>::run_coordinates(const Coordinates& of, const MatrixView<T>& x, RowScale<T> scale, const Team& team,
                                     Emit&& emit) {
  team.run_tiles(x.rows(), [&](Index i0, Index rows, Workspace& scratch) {
    const Index packs = packs_for<T>(x.cols());
    auto centred = scratch.matrix<T>(rows, x.cols()), z = scratch.matrix<T>(rows, packs * Pack<T>::size);
    for (Index i = 0; i < rows; ++i) {
      const T s = scale.empty() ? T(1) : scale[static_cast<std::size_t>(i0 + i)];
      const T *row = row_of(x, i0 + i).data(), *mean = of.mean.data();
      for (Index l = 0; l < x.cols(); l += Pack<T>::size)
        (Pack<T>::all(s) * Pack<T>::load(row + l, x.cols() - l) - Pack<T>::load(mean + l, x.cols() - l))
            .store(&centred(i, l), x.cols() - l);
    }
    const auto axes = RightFactor<T>::in_place(of.axes_in_packs.data(), of.axes_in_packs.cols());
    multiply_each_row<T>(centred, packs, axes, z, scratch);
    emit(i0, rows, z.leftCols(x.cols()), scratch);
  });
}

template <Real T>
void CentredCore<T>::features(const FeatureMapView<T>& map, Side side, const MatrixView<T>& x, RowScale<T> scale,
                              MatrixRef<T> phi, const Team& team, T* log_factors) const {
  detail::check_features<T>(map.input_dim(), map.output_dim(), x, scale, phi);
  const Coordinates of = coordinates(side);
  run_coordinates(of, x, scale, team, [&](Index i0, Index rows, const auto& z, Workspace& scratch) {
    T* logs = log_factors ? log_factors + i0 : nullptr;
    map.with_log_factors(z, {}, phi.middleRows(i0, rows), logs, Team(scratch));
    for (Index i = 0; logs && i < rows; ++i) logs[i] += of.log_factor(x, scale, i0 + i);
  });
}

template <Real T>
T CentredCore<T>::keys(const FeatureMapView<T>& map, const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi,
                       const Team& team) const {
  return detail::scaled_to_largest<T>(
      phi, team, [&](T* log_factors) { features(map, Side::key, x, scale, phi, team, log_factors); });
}

template <Real T>
Matrix<T> CentredCore<T>::queries(const FeatureMapView<T>& map, const MatrixView<T>& x, RowScale<T> scale,
                                  Vector<T>* log_factor) const {
  if (log_factor) log_factor->resize(x.rows());
  return filled<T>(x.rows(), map.output_dim(), [&](auto& phi, const Team& team) {
    features(map, Side::query, x, scale, phi, team, log_factor ? log_factor->data() : nullptr);
  });
}

template <Real T>
Matrix<T> CentredCore<T>::keys(const FeatureMapView<T>& map, const MatrixView<T>& x, RowScale<T> scale,
                               T* log_factor) const {
  return filled<T>(x.rows(), map.output_dim(), [&](auto& phi, const Team& team) {
    const T largest = keys(map, x, scale, phi, team);
    if (log_factor) *log_factor = largest;
  });
}

// phi = e^(linear.x) F(axes (x - mean)) up to a constant: dx = axes^T dz + (dphi.phi) linear
template <Real T>
void CentredCore<T>::backward(const FeatureMapView<T>& map, Side side, const MatrixView<T>& x, const MatrixView<T>& phi,
                              const MatrixView<T>& dphi, MatrixRef<T> dx, const Team& team) const {
  detail::check_gradient<T>(map.input_dim(), map.output_dim(), x, phi, dphi, dx);
  const Coordinates of = coordinates(side);
  run_coordinates(of, x, {}, team, [&](Index i0, Index rows, const auto& z, Workspace& scratch) {
    auto dz = scratch.matrix<T>(rows, x.cols());
    map.backward(z, phi.middleRows(i0, rows), dphi.middleRows(i0, rows), dz, Team(scratch));
    auto out = dx.middleRows(i0, rows);
    set_product(out, dz, of.axes);  // (rows,d)
    for (Index i = i0; i < i0 + rows; ++i)
      add_scaled(writable_row(dx, i), dot(row_of(phi, i), row_of(dphi, i)), entries_of(of.linear));
  });
}

template <Real T>
Matrix<T> CentredCore<T>::backward(const FeatureMapView<T>& map, const MatrixView<T>& x, const MatrixView<T>& phi,
                                   const MatrixView<T>& dphi) const {
  return filled<T>(x.rows(), x.cols(),
                   [&](auto& dx, const Team& team) { backward(map, Side::query, x, phi, dphi, dx, team); });
}

template <Real T>
double CentredCore<T>::relative_error(const FeatureMapView<T>& map, double norm) const {
  const double d = static_cast<double>(map.input_dim()), z = largest_coordinates(norm);
  const double factor = norm * static_cast<double>(std::max(nprf::norm(entries_of(m_constants.query_mean)),
                                                            nprf::norm(entries_of(m_constants.key_mean))));
  return map.relative_error(z) +
         static_cast<double>(std::numeric_limits<T>::epsilon()) / 2 * (3 + (2 + std::sqrt(d) / 8) * (z * z + factor));
}

// a bound of |z| for rows of at most that norm
template <Real T>
double CentredCore<T>::largest_coordinates(double norm) const {
  const auto bound = [&](const Coordinates& of) {
    return static_cast<double>(nprf::norm(entries_of(of.axes))) *
           (norm + static_cast<double>(nprf::norm(entries_of(of.mean))));
  };
  return std::max(bound(coordinates(Side::query)), bound(coordinates(Side::key)));
}

}  // namespace nprf
