// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "nprf/attention/attention.hpp"

namespace nprf::reference {

/// The twin of Attention: its formula as two obvious loops in long double, each row's weights relative to their
/// largest.
///
/// q (n_q,d) k (n_k,d) v (n_k,d_v) -> y (n_q,d_v). O(n_q n_k (r + d_v)). Throws InvalidArgument for shapes that do not
/// fit. `sees(i, j)` says which keys a query may see, besides what direction and bias say: masks, lengths, packing; a
/// key that no query may see plays no part in the features' common factor either.
template <class F, class P, class Sees>
Matrix<typename F::Scalar> kernelized_attention(const Attention<F, P>& attention,
                                                const MatrixView<typename F::Scalar>& q,
                                                const MatrixView<typename F::Scalar>& k,
                                                const MatrixView<typename F::Scalar>& v, Index offset, Sees&& sees) {
  using T = typename F::Scalar;
  const AttentionShape shape = attention_shape<T>(q, k, v);
  const bool causal = attention.options().direction == Direction::causal;
  const Matrix<T> A = attention.query_features(q);  // (n_q,r)
  Matrix<T> B = Matrix<T>::Zero(shape.n_k, A.cols());
  std::vector<Index> seen;
  for (Index j = 0; j < shape.n_k; ++j) {
    Index i = 0;
    while (i < shape.n_q && !sees(i, j)) ++i;
    if (i < shape.n_q) seen.push_back(j);
  }
  B(seen, Eigen::indexing::all) = attention.key_features(k(seen, Eigen::indexing::all));  // (n_k,r)

  Matrix<T> y = Matrix<T>::Zero(shape.n_q, shape.d_v);
  for (Index i = 0; i < shape.n_q; ++i) {
    const auto b = [&](Index j) {
      const bool hidden = (causal && j > i + offset) || !sees(i, j);
      return hidden ? -INFINITY : bias_between(attention.position(), i, j, offset);
    };
    double largest = -INFINITY;
    for (Index j = 0; j < shape.n_k; ++j) largest = std::max(largest, b(j));
    if (largest == -INFINITY) continue;

    Vector<long double> numerator = Vector<long double>::Zero(shape.d_v);
    long double denominator = 0;
    for (Index j = 0; j < shape.n_k; ++j) {
      if (b(j) == -INFINITY) continue;
      long double weight = 0;
      for (Index r = 0; r < A.cols(); ++r) weight += static_cast<long double>(A(i, r)) * B(j, r);
      weight *= std::exp(static_cast<long double>(b(j)) - largest);
      for (Index p = 0; p < shape.d_v; ++p) numerator[p] += weight * v(j, p);
      denominator += weight;
    }
    y.row(i) = (numerator / denominator).template cast<T>().transpose();
  }
  return y;
}

/// The same where only direction and bias hide a key.
template <class F, class P>
Matrix<typename F::Scalar> kernelized_attention(const Attention<F, P>& attention,
                                                const MatrixView<typename F::Scalar>& q,
                                                const MatrixView<typename F::Scalar>& k,
                                                const MatrixView<typename F::Scalar>& v, Index offset = 0) {
  return kernelized_attention(attention, q, k, v, offset, [](Index, Index) { return true; });
}

}  // namespace nprf::reference
