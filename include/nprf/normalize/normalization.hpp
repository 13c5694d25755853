// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// How queries and keys are scaled before the feature map sees them.
///
/// unit(r): every row to L2 norm r, a zero row stays zero (Luo et al. 2021 use r = 1).
/// none():  every row times d^(-1/4), so that features of exp(q.k) estimate softmax(q.k / sqrt(d)).
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

  /// The factor of each row of x (n,d). O(n d). `softmax_scale` says whether none() means d^(-1/4) or 1.
  template <Real T>
  Vector<T> row_scale(const MatrixView<T>& x, bool softmax_scale = true) const {
    if (!is_unit()) {
      const double d = static_cast<double>(std::max<Index>(x.cols(), 1));
      return Vector<T>::Constant(x.rows(), softmax_scale ? static_cast<T>(std::pow(d, -0.25)) : T(1));
    }
    Vector<T> scale(x.rows());
    // a copy first: Eigen's reductions change their last bits with the alignment of the caller's rows
    Vector<T> row(x.cols());
    for (Index i = 0; i < x.rows(); ++i) {
      row = x.row(i).transpose();
      scale[i] = row_factor(row);
    }
    return scale;
  }

  // forward: x' = s x with s = r / |x|; so dx = s (dx' - x' (x'.dx') / r^2), and s dx' where s does not depend on x
  /// dL/dx (n,d) from x' = s x, s and dL/dx'.
  template <Real T>
  Matrix<T> backward(const Matrix<T>& scaled, const Vector<T>& scale, const Matrix<T>& dscaled) const {
    Matrix<T> dx = dscaled;
    if (is_unit())
      for (Index i = 0; i < dx.rows(); ++i)
        dx.row(i) -= scaled.row(i) * (scaled.row(i).dot(dscaled.row(i)) / static_cast<T>(m_radius * m_radius));
    dx.array().colwise() *= scale.array();
    return dx;
  }

 private:
  explicit Normalization(double radius) : m_radius(radius) {}

  // radius / |row|, free of overflow and underflow in |row|^2; at most T's maximum, so that a row of subnormals may
  // stay shorter than the radius
  template <Real T>
  T row_factor(const Vector<T>& row) const {
    const T largest = row.size() == 0 ? T(0) : row.cwiseAbs().template maxCoeff<Eigen::PropagateNaN>();
    if (largest == T(0)) return T(0);
    constexpr T safe_low = sizeof(T) == 4 ? T(1e-15) : T(1e-140), safe_high = T(1) / safe_low;
    double norm;
    if (largest > safe_low && largest < safe_high)
      norm = row.norm();
    else
      norm = static_cast<double>(largest) * (row / largest).norm();
    return static_cast<T>(std::min<double>(m_radius / norm, std::numeric_limits<T>::max()));
  }

  double m_radius;
};

}  // namespace nprf
