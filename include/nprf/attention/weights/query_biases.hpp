// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/lags.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// The biases r_i.R[lag] of near pairs (position/query_biased.hpp), for the vectors r (n_q,rank) of the queries and
/// R (rank,lags) of the lags. It refers to both.
template <Real T>
class QueryBiases {
 public:
  /// No such biases.
  QueryBiases() = default;
  /// `lags` are those of the columns of R.
  QueryBiases(const MatrixView<T>& r, const Matrix<T>& lag_vectors, const LagRange& lags)
      : m_r(r.data()), m_stride(r.outerStride()), m_R(&lag_vectors), m_lags(lags) {}

  bool any() const { return m_R != nullptr; }
  /// The lags of the columns of R.
  const LagRange& lags() const { return m_lags; }

  /// b (count) += r_i.R of the columns from `column` on.
  void add(Index i, Index column, Index count, T* b) const {
    Eigen::Map<Vector<T>>(b, count).noalias() += m_R->middleCols(column, count).transpose() * r(i);
  }

  /// Adds the gradients by r_i and R of such biases, from their gradients db (count): R db to dr (rank), and
  /// factor r_i db^T to the columns of dR (rank,lags).
  void add_gradient(Index i, Index column, Index count, const T* db, T factor, T* dr, T* dR) const {
    const Eigen::Map<const Vector<T>> of_biases(db, count);
    const Index rank = m_R->rows();
    Eigen::Map<Vector<T>>(dr, rank).noalias() += m_R->middleCols(column, count) * of_biases;
    for (Index c = 0; c < rank; ++c)
      Eigen::Map<Vector<T>>(dR + c * m_R->cols() + column, count) += factor * r(i)[c] * of_biases;
  }

 private:
  Eigen::Map<const Vector<T>> r(Index i) const { return {m_r + i * m_stride, m_R->rows()}; }

  const T* m_r = nullptr;  // (n_q,rank)
  Index m_stride = 0;
  const Matrix<T>* m_R = nullptr;
  LagRange m_lags;
};

}  // namespace nprf
