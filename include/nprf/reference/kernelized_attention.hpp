// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>

#include "nprf/attention/attention.hpp"

namespace nprf::reference {

/// The twin of Attention: its formula as two obvious loops in long double, each row's weights relative to their
/// largest.
///
/// q (n_q,d) k (n_k,d) v (n_k,d_v) -> y (n_q,d_v). O(n_q n_k (r + d_v)). Throws InvalidArgument for shapes that do not
/// fit.
template <class F, class P>
Matrix<typename F::Scalar> kernelized_attention(const Attention<F, P>& attention,
                                                const MatrixView<typename F::Scalar>& q,
                                                const MatrixView<typename F::Scalar>& k,
                                                const MatrixView<typename F::Scalar>& v, Index offset = 0) {
  using T = typename F::Scalar;
  const AttentionShape shape = attention_shape<T>(q, k, v);
  const LagBias<T>& b = attention.position().bias();
  const bool causal = attention.options().direction == Direction::causal;
  const Matrix<T> A = attention.query_features(q), B = attention.key_features(k);  // (n_q,r) (n_k,r)

  Matrix<T> y = Matrix<T>::Zero(shape.n_q, shape.d_v);
  for (Index i = 0; i < shape.n_q; ++i) {
    const Index position = i + offset;
    const auto sees = [&](Index j) { return (!causal || j <= position) && b[j - position] > -INFINITY; };
    double largest = -INFINITY;
    for (Index j = 0; j < shape.n_k; ++j)
      if (sees(j)) largest = std::max(largest, b[j - position]);

    Vector<long double> numerator = Vector<long double>::Zero(shape.d_v);
    long double denominator = 0;
    bool empty = true;
    for (Index j = 0; j < shape.n_k; ++j) {
      if (!sees(j)) continue;
      empty = false;
      long double weight = 0;
      for (Index r = 0; r < A.cols(); ++r) weight += static_cast<long double>(A(i, r)) * B(j, r);
      weight *= std::exp(static_cast<long double>(b[j - position]) - largest);
      for (Index p = 0; p < shape.d_v; ++p) numerator[p] += weight * v(j, p);
      denominator += weight;
    }
    if (!empty) y.row(i) = (numerator / denominator).template cast<T>().transpose();
  }
  return y;
}

}  // namespace nprf::reference
