// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>

#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/balance.hpp"

namespace nprf {

namespace detail {

// templates, so that a program that balances nothing does not compile them
template <Real T>
using SymmetricMatrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;
template <Real T>
using EigenDecomposition = Eigen::SelfAdjointEigenSolver<SymmetricMatrix<T>>;

// the covariance S (d,d) of the rows of x, shrunk to (1 - shrinkage) S + shrinkage tr(S)/d I; I if S is 0
template <Real T>
SymmetricMatrix<T> covariance(const Matrix<T>& x, const Vector<T>& mean, T shrinkage) {
  const Matrix<T> centred = x.rowwise() - mean.transpose();
  SymmetricMatrix<T> s = centred.transpose() * centred / static_cast<T>(x.rows());
  const T variance = s.trace() / static_cast<T>(s.rows());
  s *= 1 - shrinkage;
  s.diagonal().array() += variance > 0 ? shrinkage * variance : 1;
  return s;
}

// s^exponent of a symmetric positive matrix s, by its eigenvectors
template <Real T>
SymmetricMatrix<T> power(const SymmetricMatrix<T>& s, T exponent) {
  const EigenDecomposition<T> e(s);
  const Vector<T> values = e.eigenvalues().array().pow(exponent);
  return e.eigenvectors() * values.asDiagonal() * e.eigenvectors().transpose();
}

}  // namespace detail

template <Real T>
Balance<T> balance(const MatrixView<T>& q, const MatrixView<T>& k, double shrinkage) {
  require(q.rows() >= 1 && k.rows() >= 1, "queries and keys: expected at least one row each, got ", q.rows(), " and ",
          k.rows());
  require(q.cols() >= 1 && k.cols() == q.cols(), "keys: expected ", q.cols(), " columns (those of the queries), got ",
          k.cols());
  require(q.allFinite() && k.allFinite(), "queries and keys: expected finite scalars, got a NaN or an infinity");
  require(shrinkage > 0 && shrinkage <= 1, "shrinkage: expected more than 0 and at most 1, got ", shrinkage);
  using SymmetricMatrix = detail::SymmetricMatrix<double>;
  using EigenDecomposition = detail::EigenDecomposition<double>;
  const Matrix<double> queries = q.template cast<double>(), keys = k.template cast<double>();
  const Vector<double> nu = queries.colwise().mean(), mu = keys.colwise().mean();
  const SymmetricMatrix S_q = detail::covariance(queries, nu, shrinkage), S_k = detail::covariance(keys, mu, shrinkage);
  const SymmetricMatrix root = detail::power(S_q, 0.5), inverse_root = detail::power(S_q, -0.5);
  const EigenDecomposition metric(inverse_root * detail::power<double>(root * S_k * root, 0.5) *
                                  inverse_root);  // of A^T A
  const Vector<double> lengths = metric.eigenvalues().array().sqrt();
  const SymmetricMatrix A = lengths.asDiagonal() * metric.eigenvectors().transpose(),
                        inverse = lengths.cwiseInverse().asDiagonal() * metric.eigenvectors().transpose();  // A^-T
  // turns the axes to the eigenvectors of the common covariance, in the reverse order: Eigen's eigenvalues increase
  const EigenDecomposition common(A * S_q * A.transpose());
  const SymmetricMatrix turn = common.eigenvectors().rowwise().reverse().transpose();
  return {{nu.cast<T>(), mu.cast<T>(), (turn * A).template cast<T>(), (turn * inverse).template cast<T>()},
          common.eigenvalues().reverse()};
}

}  // namespace nprf
