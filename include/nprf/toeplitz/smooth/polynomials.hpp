// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>

#include "nprf/core/index.hpp"

namespace nprf::toeplitz {

/// The polynomials p_0, p_1, ... of degree 0, 1, ... that are orthonormal on `points` points at unit distances (Gram
/// polynomials; with many points, scaled Legendre polynomials). With x = s - (points - 1) / 2 for s = 0, 1, ...
///
///     x p_k = b_{k+1} p_{k+1} + b_k p_{k-1}    b_k = k/2 sqrt((points^2 - k^2) / (4 k^2 - 1))
struct ChunkPolynomials {
  double points;

  double coefficient(Index k) const {
    const double j = static_cast<double>(k);
    return j / 2 * std::sqrt((points * points - j * j) / (4 * j * j - 1));
  }

  /// Sets p (count) to the values of p_0..p_{count-1} at the point s.
  void values(Index s, Index count, double* p) const {
    const double x = static_cast<double>(s) - (points - 1) / 2;
    p[0] = 1 / std::sqrt(points);
    for (Index k = 0; k + 1 < count; ++k)
      p[k + 1] = (x * p[k] - (k > 0 ? coefficient(k) * p[k - 1] : 0)) / coefficient(k + 1);
  }

  /// Sets W (count,count) so that on one half of twice as many points, the second if `second`, the polynomials q_j of
  /// all these points are  q_j = sum_i W[i,j] p_i.
  void halves(bool second, Index count, double* W) const {
    const ChunkPolynomials whole{2 * points};
    const double shift = second ? points / 2 : -points / 2;
    const auto at = [=](Index i, Index j) -> double& { return W[i * count + j]; };
    for (Index i = 0; i < count * count; ++i) W[i] = 0;
    at(0, 0) = std::sqrt(0.5);
    for (Index j = 0; j + 1 < count; ++j)
      for (Index i = 0; i < count; ++i) {
        // (x + shift) q_j, in the p_i
        double product = shift * at(i, j);
        if (i > 0) product += coefficient(i) * at(i - 1, j);
        if (i + 1 < count) product += coefficient(i + 1) * at(i + 1, j);
        if (j > 0) product -= whole.coefficient(j) * at(i, j - 1);
        at(i, j + 1) = product / whole.coefficient(j + 1);
      }
  }
};

}  // namespace nprf::toeplitz
