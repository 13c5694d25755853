// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/toeplitz/gradients.hpp"

namespace nprf::toeplitz {

/// Y = ((A B^T) o C) U by tiles of the quadratic matrix: exact to rounding for every bias, and fastest for short n.
///
/// Time O(n_q n_k (r + p)), tiles outside the support of c skipped; workspace O(n_q + n_k).
template <Real T>
class DirectEngine {
 public:
  static constexpr Index tile = 128;

  DirectEngine(const LagWeights<T>& lags, const ProductShape& shape)
      : m_n_q(shape.n_q), m_n_k(shape.n_k), m_support(lags.support()), m_c(lags.window({-(m_n_q - 1), m_n_k - 1})) {}

  static std::size_t workspace_bytes(const ProductShape& shape) {
    const Index scalars = shape.n_q + shape.n_k + std::min(tile, shape.n_q) * std::min(tile, shape.n_k);
    return static_cast<std::size_t>(scalars) * sizeof(T);
  }

  void contract(const MatrixView<T>& A, const MatrixView<T>& B, const MatrixView<T>& U, MatrixRef<T> Y) {
    Y.setZero();
    for_each_tile([&](Index i0, Index rows, Index j0, Index cols) {
      m_S.noalias() = A.middleRows(i0, rows) * B.middleRows(j0, cols).transpose();  // (rows,cols)
      multiply_by_c(i0, j0, m_S);
      Y.middleRows(i0, rows).noalias() += m_S * U.middleRows(j0, cols);  // (rows,p)
    });
  }

  // forward: S = A B^T, Y = (S o C) U; so with P = G U^T: dA = (P o C) B, dB = (P o C)^T A, dU = (S o C)^T G,
  // and dc[l] sums S o P over the diagonal l
  Gradients<T> gradients(const MatrixView<T>& A, const MatrixView<T>& B, const MatrixView<T>& U,
                         const MatrixView<T>& G) {
    Gradients<T> gradients({m_n_q, m_n_k, A.cols(), U.cols()});
    for_each_tile([&](Index i0, Index rows, Index j0, Index cols) {
      m_S.noalias() = A.middleRows(i0, rows) * B.middleRows(j0, cols).transpose();  // (rows,cols)
      m_P.noalias() = G.middleRows(i0, rows) * U.middleRows(j0, cols).transpose();  // (rows,cols)
      for (Index i = 0; i < rows; ++i)
        gradients.dc.segment(m_n_q - 1 + j0 - (i0 + i), cols) += m_S.row(i).cwiseProduct(m_P.row(i)).transpose();
      multiply_by_c(i0, j0, m_S);
      multiply_by_c(i0, j0, m_P);
      gradients.dA.middleRows(i0, rows).noalias() += m_P * B.middleRows(j0, cols);              // (rows,r)
      gradients.dB.middleRows(j0, cols).noalias() += m_P.transpose() * A.middleRows(i0, rows);  // (cols,r)
      gradients.dU.middleRows(j0, cols).noalias() += m_S.transpose() * G.middleRows(i0, rows);  // (cols,p)
    });
    return gradients;
  }

 private:
  // all tiles that the support of c touches, by rows
  template <class Body>
  void for_each_tile(Body&& body) {
    for (Index i0 = 0; i0 < m_n_q; i0 += tile) {
      const Index rows = std::min(tile, m_n_q - i0);
      const Index first = std::max<Index>(i0 + m_support.first, 0);
      const Index end = std::min<Index>(i0 + rows + m_support.last, m_n_k);
      for (Index j0 = first; j0 < end; j0 += tile) body(i0, rows, j0, std::min(tile, end - j0));
    }
  }

  void multiply_by_c(Index i0, Index j0, Matrix<T>& S) const {
    for (Index i = 0; i < S.rows(); ++i)
      S.row(i).array() *= m_c.segment(m_n_q - 1 + j0 - (i0 + i), S.cols()).transpose().array();
  }

  Index m_n_q, m_n_k;
  LagRange m_support;
  Vector<T> m_c;       // c[j - i] at n_q - 1 + j - i
  Matrix<T> m_S, m_P;  // (tile,tile)
};

}  // namespace nprf::toeplitz
