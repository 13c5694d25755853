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
struct DirectEngine {
  static constexpr Index tile = 128;

  static std::size_t workspace_bytes(const ProductShape& shape) {
    return static_cast<std::size_t>(shape.n_q + shape.n_k + tile * tile) * sizeof(T);
  }

  static void contract(const LagWeights<T>& lags, const MatrixView<T>& A, const MatrixView<T>& B,
                       const MatrixView<T>& U, MatrixRef<T> Y) {
    const ProductShape shape{A.rows(), B.rows(), A.cols(), U.cols()};
    const Vector<T> c = lags.window({-(shape.n_q - 1), shape.n_k - 1});  // c[j - i] at n_q - 1 + j - i
    const LagRange support = lags.support();
    Matrix<T> S;
    Y.setZero();
    for (Index i0 = 0; i0 < shape.n_q; i0 += tile) {
      const Index rows = std::min(tile, shape.n_q - i0);
      const Index first = std::max<Index>(i0 + support.first, 0);
      const Index end = std::min<Index>(i0 + rows + support.last, shape.n_k);
      for (Index j0 = first; j0 < end; j0 += tile) {
        const Index cols = std::min(tile, end - j0);
        S.noalias() = A.middleRows(i0, rows) * B.middleRows(j0, cols).transpose();  // (rows,cols)
        for (Index i = 0; i < rows; ++i)
          S.row(i).array() *= c.segment(shape.n_q - 1 + j0 - (i0 + i), cols).transpose().array();
        Y.middleRows(i0, rows).noalias() += S * U.middleRows(j0, cols);  // (rows,p)
      }
    }
  }
};

}  // namespace nprf::toeplitz
