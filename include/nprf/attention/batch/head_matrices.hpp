// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>

#include "nprf/core/types.hpp"

namespace nprf {

/// A row-major matrix (rows,cols) for each head of each sequence of a batch, in somebody's memory.
template <class T>
struct HeadMatrices {
  using Scalar = std::remove_const_t<T>;
  using View =
      Eigen::Map<std::conditional_t<std::is_const_v<T>, const Matrix<Scalar>, Matrix<Scalar>>, 0, Eigen::OuterStride<>>;

  T* data;
  Index rows, cols;
  Index row_stride, head_stride = 0, batch_stride = 0;  // in scalars

  /// That of head h of sequence b.
  View operator()(Index b, Index h) const {
    return {data + b * batch_stride + h * head_stride, rows, cols, Eigen::OuterStride<>(row_stride)};
  }
};

/// One head of one sequence, over a view's own memory.
template <class T>
HeadMatrices<const T> one_head(const MatrixView<T>& x) {
  return {x.data(), x.rows(), x.cols(), x.outerStride()};
}
template <class T>
HeadMatrices<T> one_head(Matrix<T>& x) {
  return {x.data(), x.rows(), x.cols(), x.cols()};
}

}  // namespace nprf
