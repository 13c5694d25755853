// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/types.hpp"

namespace nprf {

class Team;

/// phi(x) = elu(x) + 1, which is x + 1 for x > 0 and exp(x) otherwise, entry by entry: d features, O(n d).
/// phi(x).phi(y) is not an estimate of exp(x.y) but another kernel (Katharopoulos et al. 2020).
template <OnlyReal T>
class EluFeatures {
 public:
  using Scalar = T;
  static constexpr bool estimates_exp = false;
  static constexpr bool is_positive = true;

  /// Throws InvalidArgument unless input_dim is at least 1.
  explicit EluFeatures(Index input_dim);

  Index input_dim() const { return m_d; }
  Index output_dim() const { return m_d; }

  /// A bound on the relative error of each feature, for rows of at most that norm.
  double relative_error(double norm) const;

  /// The features of the rows of x: (n,d) -> (n,d). Throws InvalidArgument unless x has input_dim columns.
  Matrix<T> queries(const MatrixView<T>& x) const;
  Matrix<T> keys(const MatrixView<T>& x) const;

  /// Writes the features of the rows scale_i x_i into the caller's phi (n,d), by a team.
  void queries(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team) const;
  void keys(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team) const;

  /// dL/dx (n,d) from x, phi and dL/dphi (n,d). Throws InvalidArgument for other shapes.
  Matrix<T> backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi) const;

  /// The same into the caller's dx, by a team.
  void backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi, MatrixRef<T> dx,
                const Team& team) const;

 private:
  Index m_d;
};

}  // namespace nprf

#if !NPRF_SEPARATE
#include "nprf/feature_map/elu_definition.hpp"
#endif
