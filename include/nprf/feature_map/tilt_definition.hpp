// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/sderf_tilt.hpp"
#include "nprf/feature_map/tilt.hpp"

namespace nprf {

template <Real T>
Tilt oprf_tilt(Index d, double mean_square) {
  require(d >= 1, "d: expected at least 1, got ", d);
  require(mean_square > 0 && std::isfinite(mean_square), "mean_square: expected a positive finite number, got ",
          mean_square);
  const double a = best_tilt(mean_square / static_cast<double>(d));
  return {Matrix<double>::Identity(d, d), Vector<double>::Constant(d, a)};
}

template <OnlyReal T>
Tilt sderf_tilt(const std::type_identity_t<MatrixView<T>>& q, const std::type_identity_t<MatrixView<T>>& k) {
  require(q.rows() >= 1 && k.rows() >= 1, "queries and keys: expected at least 1 row each, got ", q.rows(), " and ",
          k.rows());
  require(q.cols() >= 1 && k.cols() == q.cols(), "keys: expected ", q.cols(), " columns (as queries), at least 1, got ",
          k.cols());
  require(q.allFinite() && k.allFinite(), "queries and keys: expected finite scalars, got a NaN or an infinity");
  const auto mean_product = [](const Matrix<double>& x) {
    return Matrix<double>(x.transpose() * x / static_cast<double>(x.rows()));
  };
  const Matrix<double> queries = q.template cast<double>(), keys = k.template cast<double>();
  const Matrix<double> means = queries.colwise().mean().transpose() * keys.colwise().mean();  // (d,d)
  const Matrix<double> moment = mean_product(queries) + mean_product(keys) + means + means.transpose();
  const Eigen::SelfAdjointEigenSolver<Matrix<double>> solver(moment);
  Tilt tilt{solver.eigenvectors(), Vector<double>(q.cols())};
  for (Index l = 0; l < tilt.a.size(); ++l) tilt.a[l] = best_tilt(std::max(solver.eigenvalues()[l], 0.0));
  return tilt;
}

}  // namespace nprf
