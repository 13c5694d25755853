// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <numbers>

#include "nprf/core/types.hpp"

namespace nprf {

/// The constants of a quadratic feature map of coordinates z (d).
template <Real T>
struct QuadraticTerms {
  Index first = 0;        // the number of first-order features: coordinates 0..first-1 have one each
  Index second = 0;       // coordinates 0..second-1 have second-order features; at most `first`
  Vector<T> mean_square;  // (second)  subtracted from z_l^2
  Vector<T> curvature;    // (d), or empty for zeros: the row's factor is exp(log_scale + sum_l curvature_l z_l^2 / 2)
  T log_scale = 0;

  Index output_dim() const { return 1 + first + second * (second + 1) / 2; }
};

/// Computes the features phi(z) of one row of coordinates z (d),
///
///     phi(z) = exp(g(z)) [1,  z_l,  (z_l^2 - mean_square_l) / sqrt(2),  z_l z_l' for l < l']
///     g(z) = log_scale + sum_l curvature_l z_l^2 / 2
///
/// without the factor exp(g(z)), and their gradient. Second-order features, of pairs l <= l' < second, are ordered by
/// l, then by l'. O(d + r) a row.
template <Real T>
class QuadraticRow {
 public:
  explicit QuadraticRow(const QuadraticTerms<T>& terms) : m_terms(terms) {}

  /// Returns g(z) of z (d). Sets phi (r) to the features without exp(g).
  T features(const T* z, Index d, T* phi) const {
    const Index first = m_terms.first, s = m_terms.second;
    phi[0] = 1;
    std::copy_n(z, first, phi + 1);
    T* pair = phi + 1 + first;
    for (Index l = 0; l < s; pair += s - l, ++l) {
      for (Index k = l + 1; k < s; ++k) pair[k - l] = z[l] * z[k];
      pair[0] = (z[l] * z[l] - m_terms.mean_square[l]) * half_root;
    }
    return log_factor(z, d);
  }

  /// Sets dz (d) for the coordinates z (d). dphi (r) is the gradient of the features without exp(g), and dg the
  /// gradient of g(z).
  void backward(const T* z, Index d, const T* dphi, T dg, T* dz) const {
    const Index first = m_terms.first, s = m_terms.second;
    for (Index l = 0; l < d; ++l) {
      const T through_g = m_terms.curvature.size() > 0 ? dg * m_terms.curvature[l] * z[l] : T(0);
      dz[l] = through_g + (l < first ? dphi[1 + l] : T(0));
    }
    const T* pair = dphi + 1 + first;
    for (Index l = 0; l < s; pair += s - l, ++l) {
      T sum = 2 * half_root * pair[0] * z[l];
      for (Index k = l + 1; k < s; ++k) {
        sum += pair[k - l] * z[k];
        dz[k] += pair[k - l] * z[l];
      }
      dz[l] += sum;
    }
  }

 private:
  static constexpr T half_root = std::numbers::sqrt2_v<T> / 2;

  T log_factor(const T* z, Index d) const {
    T sum = 0;
    if (m_terms.curvature.size() > 0)
      for (Index l = 0; l < d; ++l) sum += m_terms.curvature[l] * z[l] * z[l];
    return m_terms.log_scale + sum / 2;
  }

  const QuadraticTerms<T>& m_terms;
};

}  // namespace nprf
