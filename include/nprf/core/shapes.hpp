// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// The sizes of the product Y = ((A B^T) o C) U:  A (n_q,r)  B (n_k,r)  U (n_k,p)  Y (n_q,p).
struct ProductShape {
  Index n_q, n_k, r, p;

  /// Whether A B^T has no entries, or is zero because r = 0, so that Y is zero.
  bool empty() const { return n_q == 0 || n_k == 0 || r == 0; }
};

/// Returns the shape of a product. Throws InvalidArgument if the shapes of the three factors do not match.
template <class T>
ProductShape product_shape(const MatrixView<T>& A, const MatrixView<T>& B, const MatrixView<T>& U) {
  require(B.cols() == A.cols(), "B: expected ", A.cols(), " columns (those of A), got ", B.cols());
  require(U.rows() == B.rows(), "U: expected ", B.rows(), " rows (those of B), got ", U.rows());
  return {A.rows(), B.rows(), A.cols(), U.cols()};
}

/// Throws InvalidArgument unless queries have `input_dim` channels, those of the feature map, and `rank` more, those of
/// the position's vectors of lags.
inline void check_query_channels(Index channels, Index input_dim, Index rank) {
  require(channels == input_dim + rank, "queries: expected ", input_dim + rank, " columns (the feature map's input_dim",
          rank > 0 ? " and the rank of the position's lag_vectors" : "", "), got ", channels);
}

/// The sizes of one attention call:  q (n_q,d)  k (n_k,d)  v (n_k,d_v)  ->  y (n_q,d_v).
struct AttentionShape {
  Index n_q, n_k, d, d_v;
};

/// Returns the shape of a call. Throws InvalidArgument if the shapes of queries, keys and values do not match.
template <class T>
AttentionShape attention_shape(const MatrixView<T>& q, const MatrixView<T>& k, const MatrixView<T>& v) {
  require(k.cols() == q.cols(), "keys: expected ", q.cols(), " columns (those of the queries), got ", k.cols());
  require(v.rows() == k.rows(), "values: expected ", k.rows(), " rows (those of the keys), got ", v.rows());
  return {q.rows(), k.rows(), q.cols(), v.cols()};
}

}  // namespace nprf
