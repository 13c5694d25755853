// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include "nprf/core/types.hpp"
#include "nprf/feature_map/feature_map_view.hpp"

namespace nprf {

/// Constants nu, mu (d) and A (d,d), A invertible. For any of them
///
///     exp(q.k) = exp(z_q.z_k) exp(q.mu) exp(nu.(k - mu))     z_q = A (q - nu), z_k = A^-T (k - mu)
///
/// exp(q.mu) is a factor of a query, which cancels in attention, and exp(nu.(k - mu)) a factor of a key. With nu and mu
/// the means of queries and keys, z_q.z_k is small; with a suitable A, z_q and z_k have the same covariance, which is
/// diagonal (balance.hpp). Features of z_q and z_k then estimate exp(z_q.z_k) much better than features of q and k
/// estimate exp(q.k).
template <Real T>
struct Centring {
  Vector<T> query_mean, key_mean;  // nu, mu (d)
  Matrix<T> query_axes, key_axes;  // A and A^-T (d,d)
};

/// The computations of Centred, for any map F of the coordinates z.
template <Real T>
class CentredCore {
 public:
  /// Throws InvalidArgument if the constants do not have the shapes of Centring for d = input_dim, or are not finite.
  CentredCore(Index input_dim, Centring<T> constants);

  const Centring<T>& constants() const { return m_constants; }

  enum class Side { query, key };

  /// Sets phi (n,r), and log_factors (n) where it is not null, for the rows scale_i x_i of queries or keys.
  void features(const FeatureMapView<T>& map, Side side, const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi,
                const Team& team, T* log_factors) const;
  /// Sets phi (n,r) for the keys scale_j x_j. All rows omit one factor, the largest of the rows' factors. Returns its
  /// logarithm.
  T keys(const FeatureMapView<T>& map, const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi,
         const Team& team) const;
  /// The same, returned as a matrix and computed by the calling thread.
  Matrix<T> queries(const FeatureMapView<T>& map, const MatrixView<T>& x, RowScale<T> scale,
                    Vector<T>* log_factor) const;
  Matrix<T> keys(const FeatureMapView<T>& map, const MatrixView<T>& x, RowScale<T> scale, T* log_factor) const;

  void backward(const FeatureMapView<T>& map, Side side, const MatrixView<T>& x, const MatrixView<T>& phi,
                const MatrixView<T>& dphi, MatrixRef<T> dx, const Team& team) const;
  Matrix<T> backward(const FeatureMapView<T>& map, const MatrixView<T>& x, const MatrixView<T>& phi,
                     const MatrixView<T>& dphi) const;

  double relative_error(const FeatureMapView<T>& map, double norm) const;

 private:
  struct Coordinates;

  Coordinates coordinates(Side side) const;
  template <class Emit>
  static void run_coordinates(const Coordinates& of, const MatrixView<T>& x, RowScale<T> scale, const Team& team,
                              Emit&& emit);
  double largest_coordinates(double norm) const;

  Centring<T> m_constants;
  Matrix<T> m_query_axes, m_key_axes;  // A^T and A^-1 (d,d), padded to whole packs of columns
};

/// The feature map F of centred and balanced queries and keys: phi(q) = e^(q.mu) F(A (q - nu)) and
/// phi(k) = e^(nu.(k - mu)) F(A^-T (k - mu)). The identity of Centring is exact, so this map is unbiased if F is.
///
/// nu, mu and A belong to the map. They do not depend on the tokens of a call, so that no query of causal attention
/// depends on later tokens. The backward pass computes no gradients of them.
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
  Centred(F features, Centring<T> constants)
      : m_features(std::move(features)), m_core(m_features.input_dim(), std::move(constants)) {}

  Index input_dim() const { return m_features.input_dim(); }
  Index output_dim() const { return m_features.output_dim(); }
  const F& features() const { return m_features; }
  const Centring<T>& constants() const { return m_core.constants(); }

  /// (n,d) -> (n,r). Each row omits a factor of its own: phi(scale_i x_i) = exp(log_factor_i) times row i of the
  /// result. O(n d (d + r)). Throws InvalidArgument unless x has input_dim columns.
  Matrix<T> queries(const MatrixView<T>& x, RowScale<T> scale = {}, Vector<T>* log_factor = nullptr) const {
    return m_core.queries(m_features, x, scale, log_factor);
  }

  /// (n,d) -> (n,r). All rows omit one factor, the largest of the rows' factors: phi(scale_j x_j) = exp(log_factor)
  /// times row j of the result.
  Matrix<T> keys(const MatrixView<T>& x, RowScale<T> scale = {}, T* log_factor = nullptr) const {
    return m_core.keys(m_features, x, scale, log_factor);
  }

  /// The same into the caller's phi (n,r), by a team. Unless log_factor is null, queries sets n log-factors, and keys
  /// the one of all rows.
  void queries(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team,
               T* log_factor = nullptr) const {
    m_core.features(m_features, Side::query, x, scale, phi, team, log_factor);
  }
  void keys(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team,
            T* log_factor = nullptr) const {
    const T largest = m_core.keys(m_features, x, scale, phi, team);
    if (log_factor) *log_factor = largest;
  }

  /// Sets phi (n,r) to the features of keys. As with `queries`, each row omits a factor of its own, whose logarithm
  /// goes to log_factor (n).
  void keys_by_row(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team, T* log_factor) const {
    m_core.features(m_features, Side::key, x, scale, phi, team, log_factor);
  }

  /// dL/dx (n,d) from x (n,d), phi (n,r) and dL/dphi (n,r): `backward` for queries, `backward_keys` for keys.
  /// O(n d (d + r)). Throws InvalidArgument for other shapes.
  Matrix<T> backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi) const {
    return m_core.backward(m_features, x, phi, dphi);
  }
  void backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi, MatrixRef<T> dx,
                const Team& team) const {
    m_core.backward(m_features, Side::query, x, phi, dphi, dx, team);
  }
  void backward_keys(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi, MatrixRef<T> dx,
                     const Team& team) const {
    m_core.backward(m_features, Side::key, x, phi, dphi, dx, team);
  }

  /// A bound on the rounding error of the features of rows of at most that norm. It is the sum of three parts: F's
  /// bound, the error of the coordinates z, which changes exp(z_q.z_k) in proportion to |z|, and the error of the row's
  /// factor.
  double relative_error(double norm) const { return m_core.relative_error(m_features, norm); }

 private:
  using Side = typename CentredCore<T>::Side;

  F m_features;
  CentredCore<T> m_core;
};

}  // namespace nprf

#if !NPRF_SEPARATE
#include "nprf/feature_map/centred_definition.hpp"
#endif
