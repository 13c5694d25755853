// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <type_traits>

#include "nprf/core/types.hpp"

namespace nprf {

/// Constants Q (d,d), orthogonal, and a (d) that change the rows w_f of positive features, but not E[phi(x).phi(y)]
/// (dense exponential random features, Likhosherstov et al. 2023). w_fl is entry l of w_f:
///
///     phi(x) = exp(-|x|^2/2) / sqrt(m) [exp(w'_1.x + o_1) ...]
///     w'_f = Q diag(sqrt(1 - 4 a)) w_f     o_f = sum_l (a_l w_fl^2 + log(1 - 4 a_l) / 4)
///
/// For any a_l < 1/4, Gaussian rows w_f give E[phi(x).phi(y)] = exp(x.y). With K = exp(x.y), u = Q^T (x + y) and
/// a_l < 1/8, the variance for m independent rows is
///
///     K^2 (prod_l (1 - 4 a_l) / sqrt(1 - 8 a_l) exp(u_l^2 / (1 - 8 a_l)) - 1) / m
struct Tilt {
  Matrix<double> axes;  // Q; 0 x 0: no change
  Vector<double> a;
};

/// Returns the a_l that minimises the mean, over pairs x and y, of the logarithm of the second moment of phi(x).phi(y).
/// s >= 0 is the mean of u_l^2 over these pairs (Likhosherstov et al. 2023). t = 1 - 8 a_l is the positive root of
/// t^2 - (1 + 2 s) t - 2 s.
inline double best_tilt(double mean_square) {
  const double s = mean_square;
  return (1 - 2 * s - std::sqrt((2 * s + 1) * (2 * s + 1) + 8 * s)) / 16;
}

/// Returns the best tilt with equal a_l (optimal positive random features) for pairs x, y of d scalars, where |x + y|^2
/// has the mean `mean_square`. Throws InvalidArgument unless d is at least 1 and mean_square positive and finite.
template <Real T = double>
Tilt oprf_tilt(Index d, double mean_square);

/// Returns the tilt of symmetric dense exponential random features (Likhosherstov et al. 2023). It is the
/// best one for all pairs of a row x of q (n_q,d) and a row y of k (n_k,d): its axes are the eigenvectors of the mean
/// of (x + y)(x + y)^T over these pairs. O(n d^2 + d^3). Throws InvalidArgument unless both have rows, of the same
/// non-zero length and finite.
template <OnlyReal T>
Tilt sderf_tilt(const std::type_identity_t<MatrixView<T>>& q, const std::type_identity_t<MatrixView<T>>& k);

}  // namespace nprf

#if !NPRF_SEPARATE
#include "nprf/feature_map/tilt_definition.hpp"
#endif
