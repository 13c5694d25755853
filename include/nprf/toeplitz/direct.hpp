// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"

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
    return static_cast<std::size_t>(shape.n_q + shape.n_k + tile * tile) * sizeof(T);
  }

  void contract(const MatrixView<T>& A, const MatrixView<T>& B, const MatrixView<T>& U, MatrixRef<T> Y) {
    Y.setZero();
    for (Index i0 = 0; i0 < m_n_q; i0 += tile) {
      const Index rows = std::min(tile, m_n_q - i0);
      const Index first = std::max<Index>(i0 + m_support.first, 0);
      const Index end = std::min<Index>(i0 + rows + m_support.last, m_n_k);
      for (Index j0 = first; j0 < end; j0 += tile) {
        const Index cols = std::min(tile, end - j0);
        m_S.noalias() = A.middleRows(i0, rows) * B.middleRows(j0, cols).transpose();  // (rows,cols)
        for (Index i = 0; i < rows; ++i)
          m_S.row(i).array() *= m_c.segment(m_n_q - 1 + j0 - (i0 + i), cols).transpose().array();
        Y.middleRows(i0, rows).noalias() += m_S * U.middleRows(j0, cols);  // (rows,p)
      }
    }
  }

 private:
  Index m_n_q, m_n_k;
  LagRange m_support;
  Vector<T> m_c;  // c[j - i] at n_q - 1 + j - i
  Matrix<T> m_S;  // (tile,tile)
};

}  // namespace nprf::toeplitz
