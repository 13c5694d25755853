// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>

#include "nprf/core/types.hpp"

namespace nprf {

/// Constants Q (d,d), orthogonal, and a (d) that change positive features without a change of their mean (dense
/// exponential random features, Likhosherstov et al. 2023):
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

/// The a_l for which the second moment of the estimate is least: the mean of its logarithm over pairs, for the mean
/// square s >= 0 of u_l (Likhosherstov et al. 2023). t = 1 - 8 a_l is the positive root of t^2 - (1 + 2 s) t - 2 s.
inline double best_tilt(double mean_square) {
  const double s = mean_square;
  return (1 - 2 * s - std::sqrt((2 * s + 1) * (2 * s + 1) + 8 * s)) / 16;
}

/// The best one with equal a_l (optimal positive random features), for pairs x, y of d scalars with the mean
/// `mean_square` of |x + y|^2. Throws InvalidArgument unless d is at least 1 and mean_square positive and finite.
template <Real T = double>
Tilt oprf_tilt(Index d, double mean_square);

}  // namespace nprf

#if !NPRF_SEPARATE
#include "nprf/feature_map/tilt_definition.hpp"
#endif
