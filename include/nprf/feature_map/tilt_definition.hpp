// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <type_traits>

#include "nprf/core/error.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/eigenvectors.hpp"
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
  require(has_finite_entries(q) && has_finite_entries(k),
          "queries and keys: expected finite scalars, got a NaN or an infinity");
  const Matrix<double> queries = q.template cast<double>(), keys = k.template cast<double>();
  const Vector<double> nu = mean_row(queries), mu = mean_row(keys);
  Matrix<double> moment = transposed_product(queries, queries), key_moment = transposed_product(keys, keys);  // (d,d)
  for (Index l = 0; l < q.cols(); ++l)
    for (Index j = 0; j < q.cols(); ++j)
      moment(l, j) = moment(l, j) / static_cast<double>(q.rows()) + key_moment(l, j) / static_cast<double>(k.rows()) +
                     (nu[l] * mu[j] + mu[l] * nu[j]);
  const auto [values, vectors] = eigenvectors(moment);
  Tilt tilt{vectors.transpose(), Vector<double>(q.cols())};
  for (Index l = 0; l < tilt.a.size(); ++l) tilt.a[l] = best_tilt(values[l]);
  return tilt;
}

}  // namespace nprf
