// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/types.hpp"

namespace nprf {

class Team;

/// The members that nprf's maps with log-factors share: queries, keys and backward, into a new matrix or into the
/// caller's. F derives from it, befriends it and has, for arguments that are checked,
///
///     void set_features(x, scale, phi, team, log_factor) const;   // queries; log_factor (n) may be null
///     void set_gradient(x, phi, dphi, dx, team) const;            // backward
///     T set_keys(x, scale, phi, team) const;                      // keys, if not by set_features; their log-factor
template <class F, Real T>
class FeatureMapBase {
 public:
  /// (n,d) -> (n,r) without a factor of each row: phi(scale_i x_i) = exp(log_factor_i) times the returned row. Throws
  /// InvalidArgument unless x has input_dim columns, and scale a factor for each row or none.
  Matrix<T> queries(const MatrixView<T>& x, RowScale<T> scale = {}, Vector<T>* log_factor = nullptr) const;
  /// The same into the caller's phi (n,r), and log_factor (n) where it is not null, by a team.
  void queries(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team,
               T* log_factor = nullptr) const;

  /// (n,d) -> (n,r) without a factor of the call, the largest of a row: phi(scale_j x_j) = exp(log_factor) times the
  /// returned row. Throws as queries does.
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
