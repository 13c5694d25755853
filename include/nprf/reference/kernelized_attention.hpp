// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "nprf/attention/attention.hpp"

namespace nprf::reference {

/// The reference implementation of Attention: its formula as two plain loops in long double. The weights exp(b) of each
/// row are relative to the largest of the row.
///
/// q (n_q,d) k (n_k,d) v (n_k,d_v) -> y (n_q,d_v). O(n_q n_k (r + d_v)). Throws InvalidArgument if shapes do not match.
/// attends(i, j) states whether query i may attend to key j, in addition to direction and bias: for masks, lengths and
/// packing. A key that no query may attend to does not affect the common factor of the keys' features.
template <class F, class P, class Attends>
Matrix<typename F::Scalar> kernelized_attention(const Attention<F, P>& attention,
                                                const MatrixView<typename F::Scalar>& q,
                                                const MatrixView<typename F::Scalar>& k,
                                                const MatrixView<typename F::Scalar>& v, Index offset,
                                                Attends&& attends) {
  using T = typename F::Scalar;
  const AttentionShape shape = attention_shape<T>(q, k, v);
  const bool causal = attention.options().direction == Direction::causal;
  const Matrix<T> A = attention.query_features(q);  // (n_q,r)
  Matrix<T> B = Matrix<T>::Zero(shape.n_k, A.cols());
  std::vector<Index> attended;
  for (Index j = 0; j < shape.n_k; ++j) {
    Index i = 0;
    while (i < shape.n_q && !attends(i, j)) ++i;
    if (i < shape.n_q) attended.push_back(j);
  }
  B(attended, Eigen::indexing::all) = attention.key_features(k(attended, Eigen::indexing::all));  // (n_k,r)

  Matrix<T> y = Matrix<T>::Zero(shape.n_q, shape.d_v);
  for (Index i = 0; i < shape.n_q; ++i) {
    const auto b = [&](Index j) {
      const bool masked = (causal && j > i + offset) || !attends(i, j);
      return masked ? -INFINITY : bias_between(attention.position(), i, j, offset);
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

/// The same if only direction and bias mask keys.
template <class F, class P>
Matrix<typename F::Scalar> kernelized_attention(const Attention<F, P>& attention,
                                                const MatrixView<typename F::Scalar>& q,
                                                const MatrixView<typename F::Scalar>& k,
                                                const MatrixView<typename F::Scalar>& v, Index offset = 0) {
  return kernelized_attention(attention, q, k, v, offset, [](Index, Index) { return true; });
}

}  // namespace nprf::reference
