// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <limits>
#include <utility>

#include "nprf/core/block_product.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/gemm.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/feature_map_view.hpp"
#include "nprf/feature_map/row_factors.hpp"

namespace nprf {

/// Constants nu, mu (d) and A (d,d), A invertible. For any of them
///
///     exp(q.k) = exp(z_q.z_k) exp(q.mu) exp(nu.(k - mu))     z_q = A (q - nu), z_k = A^-T (k - mu)
///
/// exp(q.mu) is a factor of a query, which cancels in attention, and exp(nu.(k - mu)) a factor of a key. With nu and mu
/// the means of queries and keys, z_q.z_k is small; with a suitable A both have the same, diagonal covariance
/// (balance.hpp). Features of z are then much closer to exp than those of q and k.
template <Real T>
struct Centring {
  Vector<T> query_mean, key_mean;  // nu, mu (d)
  Matrix<T> query_axes, key_axes;  // A and A^-T (d,d)
};

/// The feature map F of centred and balanced queries and keys: phi(q) = e^(q.mu) F(A (q - nu)) and
/// phi(k) = e^(nu.(k - mu)) F(A^-T (k - mu)). The identity above is exact, so this map is unbiased if
/// F is.
///
/// The constants belong to the map. They do not depend on a call, so that no query of causal attention depends on later
/// tokens. For gradients they are constants.
template <FeatureMap F>
  requires(estimates_exp<F>() && detail::HasLogFactors<F, typename F::Scalar>)
class Centred {
 public:
  using Scalar = typename F::Scalar;
  using T = Scalar;
  static constexpr bool is_positive = nprf::is_positive<F>(), estimates_exp = true, is_series = nprf::is_series<F>(),
                        has_independent_rows = nprf::has_independent_rows<F>();

  /// Throws InvalidArgument if the constants do not have the shapes of Centring for d = features.input_dim(), or are
  /// not finite.
  Centred(F features, Centring<T> constants) : m_features(std::move(features)), m_constants(std::move(constants)) {
    const Index d = input_dim();
    const auto& [nu, mu, A, A_inverse] = m_constants;
    for (const Vector<T>* mean : {&nu, &mu})
      require(mean->size() == d, mean == &nu ? "query_mean" : "key_mean", ": expected ", d,
              " scalars (input_dim), got ", mean->size());
    for (const Matrix<T>* axes : {&A, &A_inverse})
      require(axes->rows() == d && axes->cols() == d, axes == &A ? "query_axes" : "key_axes", ": expected ", d, " x ",
              d, ", got ", axes->rows(), " x ", axes->cols());
    require(nu.allFinite() && mu.allFinite() && A.allFinite() && A_inverse.allFinite(),
            "constants: expected finite scalars, got a NaN or an infinity");
    m_query_axes = transposed_in_packs(A), m_key_axes = transposed_in_packs(A_inverse);
  }

  Index input_dim() const { return m_features.input_dim(); }
  Index output_dim() const { return m_features.output_dim(); }
  const F& features() const { return m_features; }
  const Centring<T>& constants() const { return m_constants; }

  /// (n,d) -> (n,r) without the factor of each row: phi(scale_i x_i) = exp(log_factor_i) times the returned row.
  /// O(n d (d + r)). Throws InvalidArgument unless x has input_dim columns.
  Matrix<T> queries(const MatrixView<T>& x, RowScale<T> scale = {}, Vector<T>* log_factor = nullptr) const {
    if (log_factor) log_factor->resize(x.rows());
    return filled<T>(x.rows(), output_dim(), [&](auto& phi, const Team& team) {
      queries(x, scale, phi, team, log_factor ? log_factor->data() : nullptr);
    });
  }

  /// (n,d) -> (n,r), divided by the largest factor of a row: phi(scale_j x_j) = exp(log_factor) times the returned row.
  Matrix<T> keys(const MatrixView<T>& x, RowScale<T> scale = {}, T* log_factor = nullptr) const {
    return filled<T>(x.rows(), output_dim(),
                     [&](auto& phi, const Team& team) { keys(x, scale, phi, team, log_factor); });
  }

  /// The same into the caller's phi (n,r), and log_factor (n) where it is not null, by a team.
  void queries(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team,
               T* log_factor = nullptr) const {
    features_of(query(), x, scale, phi, team, log_factor);
  }
  void keys(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team,
            T* log_factor = nullptr) const {
    const Workspace::Scope scope(team.workspace());
    auto log_factors = team.workspace().template vector<T>(x.rows());
    keys_by_row(x, scale, phi, team, log_factors.data());
    const T largest = scale_to_largest<T>(log_factors, phi, team);
    if (log_factor) *log_factor = largest;
  }

  /// The features of keys, each without its own factor, as `queries` returns those of queries.
  void keys_by_row(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team, T* log_factor) const {
    features_of(key(), x, scale, phi, team, log_factor);
  }

  /// dL/dx (n,d) of queries or of keys from x (n,d), phi (n,r) and dL/dphi (n,r). O(n d (d + r)). Throws
  /// InvalidArgument for other shapes.
  Matrix<T> backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi) const {
    return filled<T>(x.rows(), x.cols(), [&](auto& dx, const Team& team) { backward(x, phi, dphi, dx, team); });
  }
  void backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi, MatrixRef<T> dx,
                const Team& team) const {
    backward_of(query(), x, phi, dphi, dx, team);
  }
  void backward_keys(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi, MatrixRef<T> dx,
                     const Team& team) const {
    backward_of(key(), x, phi, dphi, dx, team);
  }

  /// A bound on the rounding error of the features of rows of at most that norm: the sum of F's bound, of the error
  /// of the coordinates z, which changes exp(z_q.z_k) in proportion to |z|, and of that of the row's factor.
  double relative_error(double norm) const {
    const double d = static_cast<double>(input_dim()), z = largest_coordinates(norm);
    double error_of_map = 0;
    if constexpr (requires(const F& f) { f.relative_error(z); }) error_of_map = m_features.relative_error(z);
    const double factor =
        norm * static_cast<double>(std::max(m_constants.query_mean.norm(), m_constants.key_mean.norm()));
    return error_of_map +
           static_cast<double>(std::numeric_limits<T>::epsilon()) / 2 * (3 + (2 + std::sqrt(d) / 8) * (z * z + factor));
  }

 private:
  // z = axes (x - mean), and the logarithm of the row's factor is linear.x + offset
  struct Side {
    const Vector<T>&mean, &linear;
    const Matrix<T>&axes, &axes_in_packs;
    T offset;
  };
  Side query() const {
    return {m_constants.query_mean, m_constants.key_mean, m_constants.query_axes, m_query_axes, T(0)};
  }
  Side key() const {
    const auto& [nu, mu, A, A_inverse] = m_constants;
    return {mu, nu, A_inverse, m_key_axes, -nu.dot(mu)};
  }

  // calls emit(i0, rows, z, scratch) for tiles of coordinates z (rows,d)
  template <class Emit>
  void run_coordinates(const Side& side, const MatrixView<T>& x, RowScale<T> scale, const Team& team,
                       Emit&& emit) const {
    require(x.cols() == input_dim(), "x: expected ", input_dim(), " columns (input_dim), got ", x.cols());
    require(scale.empty() || static_cast<Index>(scale.size()) == x.rows(), "scale: expected ", x.rows(),
            " factors (rows of x), got ", scale.size());
    team.run_tiles(x.rows(), [&](Index i0, Index rows, Workspace& scratch) {
      const Index packs = packs_for<T>(x.cols());
      auto centred = scratch.matrix<T>(rows, x.cols()), z = scratch.matrix<T>(rows, packs * Pack<T>::size);
      for (Index i = 0; i < rows; ++i) {
        const T s = scale.empty() ? T(1) : scale[static_cast<std::size_t>(i0 + i)];
        centred.row(i) = s * x.row(i0 + i) - side.mean.transpose();
      }
      const auto axes = RightFactor<T>::in_place(side.axes_in_packs.data(), side.axes_in_packs.cols());
      multiply_each_row<T>(centred, packs, axes, z, scratch);
      emit(i0, rows, z.leftCols(x.cols()), scratch);
    });
  }

  void features_of(const Side& side, const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team,
                   T* log_factor) const {
    require(phi.rows() == x.rows() && phi.cols() == output_dim(), "phi: expected ", x.rows(), " x ", output_dim(),
            ", got ", phi.rows(), " x ", phi.cols());
    run_coordinates(side, x, scale, team, [&](Index i0, Index rows, const auto& z, Workspace& scratch) {
      T* logs = log_factor ? log_factor + i0 : nullptr;
      m_features.queries(z, RowScale<T>(), phi.middleRows(i0, rows), Team(scratch), logs);
      for (Index i = 0; logs && i < rows; ++i) logs[i] += linear(side, x, scale, i0 + i);
    });
  }

  // phi = e^(linear.x) F(axes (x - mean)) up to a constant: dx = axes^T dz + (dphi.phi) linear
  void backward_of(const Side& side, const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi,
                   MatrixRef<T> dx, const Team& team) const {
    const Index r = output_dim(), d = input_dim();
    for (const MatrixView<T>* one : {&phi, &dphi})
      require(one->rows() == x.rows() && one->cols() == r, one == &phi ? "phi" : "dphi", ": expected ", x.rows(), " x ",
              r, ", got ", one->rows(), " x ", one->cols());
    require(dx.rows() == x.rows() && dx.cols() == d, "dx: expected ", x.rows(), " x ", d, ", got ", dx.rows(), " x ",
            dx.cols());
    run_coordinates(side, x, {}, team, [&](Index i0, Index rows, const auto& z, Workspace& scratch) {
      auto dz = scratch.matrix<T>(rows, d);
      FeatureMapView<T>(m_features).backward(z, phi.middleRows(i0, rows), dphi.middleRows(i0, rows), dz, Team(scratch));
      auto out = dx.middleRows(i0, rows);
      set_product(out, dz, side.axes);  // (rows,d)
      for (Index i = i0; i < i0 + rows; ++i) dx.row(i) += phi.row(i).dot(dphi.row(i)) * side.linear.transpose();
    });
  }

  T linear(const Side& side, const MatrixView<T>& x, RowScale<T> scale, Index i) const {
    const T product = dot_by_packs(x.data() + i * x.outerStride(), side.linear.data(), x.cols());
    return product * (scale.empty() ? T(1) : scale[static_cast<std::size_t>(i)]) + side.offset;
  }

  // a bound of |z| for rows of at most that norm
  double largest_coordinates(double norm) const {
    const auto bound = [&](const Side& side) {
      return static_cast<double>(side.axes.norm()) * (norm + static_cast<double>(side.mean.norm()));
    };
    return std::max(bound(query()), bound(key()));
  }

  F m_features;
  Centring<T> m_constants;
  Matrix<T> m_query_axes, m_key_axes;  // A^T and A^-1 (d,d), padded
};

}  // namespace nprf
