// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <utility>

#include "nprf/calibration/calibrated_features.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/balance.hpp"

namespace nprf {

/// The features of exp(q.k) with the least mean squared error for Gaussian queries and keys. Let a and b be balanced
/// coordinates of a query and a key, of variance lambda. Mehler's formula is
///
///     exp(a b) = sqrt(1 - rho^2) exp(lambda rho (x^2 + y^2) / 2) sum_n rho^n / n! He_n(x) He_n(y)
///
///     x = a / sqrt(lambda)    y = b / sqrt(lambda)    rho = 2 lambda / (1 + sqrt(1 + 4 lambda^2))
///
/// (lambda is rho / (1 - rho^2)) with Hermite polynomials He_n: 1, x, x^2 - 1. In z = sqrt(rho / lambda) a the features
/// are 1, z, (z^2 - rho) / sqrt(2) and z z' of two coordinates, and the row's factor has the curvature lambda. They are
/// for the coordinates of largest variance: first-order features of the first `first`, second-order ones of the first
/// `second`.
///
/// As lambda tends to 0 the features tend to those of the Taylor series. Source: F. G. Mehler, J. reine angew. Math. 66
/// (1866). O(d^2). Throws InvalidArgument unless 0 <= second <= first <= d.
template <Real T>
CalibratedFeatures<T> hermite_features(const Balance<T>& balance, Index first, Index second) {
  const Index d = balance.variances.size();
  const auto lambda = balance.variances.array().max(0).eval();
  const auto root = (1 + (1 + 4 * lambda.square()).sqrt()).eval();
  const auto rho = (2 * lambda / root).eval();
  const Vector<T> lengths = (2 / root).sqrt().template cast<T>();  // sqrt(rho / lambda)
  // half of the constant sqrt(1 - rho^2) belongs to the queries
  QuadraticTerms<T> terms{first, second, rho.head(std::clamp<Index>(second, 0, d)).template cast<T>(),
                          lambda.template cast<T>(), static_cast<T>((1 - rho.square()).log().sum() / 4)};
  const Centring<T>& c = balance.constants;
  return {QuadraticFeatures<T>(d, std::move(terms)),
          {c.query_mean, c.key_mean, lengths.asDiagonal() * c.query_axes, lengths.asDiagonal() * c.key_axes}};
}

}  // namespace nprf
