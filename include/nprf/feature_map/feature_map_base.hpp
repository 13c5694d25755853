// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/types.hpp"

namespace nprf {

class Team;

/// The members that nprf's maps with log-factors share: queries, keys and backward, into a new matrix or into the
/// caller's. F derives from this class, declares it a friend, and has the following members. Their arguments are
/// already checked. Without set_keys, set_features computes the keys too.
///
///     void set_features(x, scale, phi, team, log_factor) const;   // sets phi of queries; log_factor (n) may be null
///     void set_gradient(x, phi, dphi, dx, team) const;            // sets dx
///     T set_keys(x, scale, phi, team) const;                      // sets phi of keys; returns their common log-factor
template <class F, Real T>
class FeatureMapBase {
 public:
  /// (n,d) -> (n,r). Each row omits a factor of its own: phi(scale_i x_i) = exp(log_factor_i) times row i of the
  /// result. Throws InvalidArgument unless x has input_dim columns, and scale a factor for each row or none.
  Matrix<T> queries(const MatrixView<T>& x, RowScale<T> scale = {}, Vector<T>* log_factor = nullptr) const;
  /// The same into the caller's phi (n,r), and log_factor (n) where it is not null, by a team.
  void queries(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team,
               T* log_factor = nullptr) const;

  /// (n,d) -> (n,r). All rows omit one factor, the largest of those that `queries` would omit from these rows:
  /// phi(scale_j x_j) = exp(log_factor) times row j of the result. Throws as queries does.
  Matrix<T> keys(const MatrixView<T>& x, RowScale<T> scale = {}, T* log_factor = nullptr) const;
  /// The same into the caller's phi (n,r), by a team.
  void keys(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team,
            T* log_factor = nullptr) const;

  /// dL/dx (n,d) from x (n,d), phi (n,r) as queries or keys returned it, and dL/dphi (n,r). Throws InvalidArgument for
  /// other shapes.
  Matrix<T> backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi) const;
  /// The same into the caller's dx (n,d), by a team.
  void backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi, MatrixRef<T> dx,
                const Team& team) const;

 protected:
  T set_keys(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team) const;

 private:
  const F& map() const { return static_cast<const F&>(*this); }
};

}  // namespace nprf

#if !NPRF_SEPARATE
#include "nprf/feature_map/feature_map_base_definition.hpp"
#endif
