// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>

#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

class Team;
class Workspace;

/// The scaling of queries and keys before the feature map.
///
/// unit(r): every row is scaled to L2 norm r; a zero row stays zero (Luo et al. 2021 use r = 1).
/// none():  every row is multiplied by d^(-1/4), so that features of exp(q.k) estimate softmax(q.k / sqrt(d)).
class Normalization {
 public:
  /// Throws InvalidArgument unless 0 < radius < infinity.
  static Normalization unit(double radius = 1) {
    require(radius > 0 && std::isfinite(radius), "radius: expected a positive finite number, got ", radius);
    return Normalization(radius);
  }
  static Normalization none() { return Normalization(0); }

  bool is_unit() const { return m_radius > 0; }
  double radius() const { return m_radius; }

  /// Returns the factor of each row of x (n,d). For none() it is d^(-1/4) if `softmax_scale`, otherwise 1. O(n d).
  template <Real T>
  Vector<T> row_scale(const MatrixView<T>& x, bool softmax_scale = true) const;

  /// Writes the factors that the function above returns to the caller's `scale` (n), by a team.
  template <Real T>
  void row_scale(const MatrixView<T>& x, bool softmax_scale, Eigen::Ref<Vector<T>> scale, const Team& team) const;

  /// On entry dx (n,d) is dL/dx', the gradient of the scaled rows x' = s x; on return it is dL/dx. `scaled` (n,d) is
  /// x', and `scale` (n) has the factors s. O(n d). Throws InvalidArgument for other shapes.
  template <Real T>
  void backward(const MatrixView<T>& scaled, RowScale<T> scale, MatrixRef<T> dx) const;

 private:
  explicit Normalization(double radius) : m_radius(radius) {}

  template <Real T>
  T row_factor(const T* x, Index d, Workspace& scratch) const;

  double m_radius;
};

}  // namespace nprf

#if !NPRF_SEPARATE
#include "nprf/normalize/normalization_definition.hpp"
#endif
