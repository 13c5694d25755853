// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/error.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/balance.hpp"
#include "nprf/feature_map/eigenvectors.hpp"

namespace nprf {

namespace detail {

// the covariance S (d,d) of the rows of x, shrunk to (1 - shrinkage) S + shrinkage tr(S)/d I; I if S is 0
template <Real T>
Matrix<T> covariance(Matrix<T> x, const Vector<T>& mean, T shrinkage) {
  for (Index i = 0; i < x.rows(); ++i) add_scaled(writable_row(x, i), T(-1), entries_of(mean));
  Matrix<T> s = transposed_product(x, x);
  T variance = 0;
  for (Index l = 0; l < s.rows(); ++l) variance += s(l, l) / static_cast<T>(x.rows() * s.rows());
  for (Index l = 0; l < s.rows(); ++l) {
    scale(writable_row(s, l), (1 - shrinkage) / static_cast<T>(x.rows()));
    s(l, l) += variance > 0 ? shrinkage * variance : 1;
  }
  return s;
}

}  // namespace detail

// With eigenvalues v and eigenvectors E (rows) of S_q, R = v^1/2 E and R^-T = v^-1/2 E: S_q = R^T R. With eigenvalues
// lambda^2 and eigenvectors F of R S_k R^T, A = lambda^1/2 F R^-T and A^-T = lambda^-1/2 F R. Then A S_q A^T and
// A^-T S_k A^-1 are both the diagonal matrix of lambda.
template <Real T>
Balance<T> balance(const MatrixView<T>& q, const MatrixView<T>& k, double shrinkage) {
  const Index d = q.cols();
  require(q.rows() >= 1 && k.rows() >= 1, "queries and keys: expected at least one row each, got ", q.rows(), " and ",
          k.rows());
  require(d >= 1 && k.cols() == d, "keys: expected ", d, " columns (those of the queries), got ", k.cols());
  require(has_finite_entries(q) && has_finite_entries(k),
          "queries and keys: expected finite scalars, got a NaN or an infinity");
  require(shrinkage > 0 && shrinkage <= 1, "shrinkage: expected more than 0 and at most 1, got ", shrinkage);
  const Matrix<double> queries = q.template cast<double>(), keys = k.template cast<double>();
  const Vector<double> nu = mean_row(queries), mu = mean_row(keys);
  const Matrix<double> S_k = detail::covariance(keys, mu, shrinkage);
  const auto [v, E] = eigenvectors(detail::covariance(queries, nu, shrinkage));
  Matrix<double> R = E, R_inverse = E, R_transposed(d, d);  // R_inverse is R^-T
  for (Index l = 0; l < d; ++l) {
    scale(writable_row(R, l), std::sqrt(v[l]));
    scale(writable_row(R_inverse, l), 1 / std::sqrt(v[l]));
    for (Index j = 0; j < d; ++j) R_transposed(j, l) = R(l, j);
  }
  const auto [squares, F] = eigenvectors(transposed_product(R_transposed, transposed_product(S_k, R_transposed)));
  Vector<double> lambda(d);                               // decreases, where eigenvalues increase
  Matrix<double> query_factors(d, d), key_factors(d, d);  // (lambda^1/2 F)^T, (lambda^-1/2 F)^T
  const double least = std::numeric_limits<double>::epsilon() * squares[d - 1];
  for (Index l = 0; l < d; ++l) {
    lambda[l] = std::sqrt(std::max(squares[d - 1 - l], least));
    for (Index j = 0; j < d; ++j) {
      query_factors(j, l) = F(d - 1 - l, j) * std::sqrt(lambda[l]);
      key_factors(j, l) = F(d - 1 - l, j) / std::sqrt(lambda[l]);
    }
  }
  const Matrix<double> A = transposed_product(query_factors, R_inverse), A_inverse = transposed_product(key_factors, R);
  return {{nu.cast<T>(), mu.cast<T>(), A.cast<T>(), A_inverse.cast<T>()}, lambda};
}

}  // namespace nprf
