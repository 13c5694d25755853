// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <type_traits>

#include "nprf/core/error.hpp"
#include "nprf/core/lag_bias.hpp"
#include "nprf/core/resize.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/normalize/normalization.hpp"
#include "nprf/position/position.hpp"

namespace nprf::reference {

/// Exact causal softmax attention token by token, with a cache of the keys and values of all tokens: decoding is
/// measured against it. One head of one sequence; its rows are those of softmax_attention (softmax_attention.hpp).
///
/// A step at token t takes O(t (d + d_v)): a product with the contiguous keys (t,d), the softmax of one row, and a
/// product with the contiguous values (t,d_v). The cache takes t (d + d_v) scalars.
///
///     SoftmaxDecoder<float> cache(position, Normalization::unit(1), d, d_v);
///     cache.append(k, v);        // a prompt's keys (n,d) and values (n,d_v)
///     cache.step(q, k, v, y);    // the next tokens: q (n,d) k (n,d) v (n,d_v) -> y (n,d_v)
template <OnlyReal T>
class SoftmaxDecoder {
 public:
  using Scalar = T;

  /// Throws InvalidArgument if the position is built for another direction (T5Position).
  template <Position P>
  SoftmaxDecoder(const P& position, Normalization normalization, Index d, Index d_v)
      : m_bias(position.bias()), m_normalization(normalization), m_d(d), m_d_v(d_v), m_keys(0, d), m_values(0, d_v) {
    static_assert(!PlacedPosition<P>, "nprf: a position that assigns slots has no next token");
    check_position(position, Direction::causal);
  }

  /// The number of tokens in the cache.
  Index tokens() const { return m_tokens; }
  /// The bytes of the keys and values in the cache.
  std::size_t bytes() const { return static_cast<std::size_t>(m_tokens * (m_d + m_d_v)) * sizeof(T); }

  /// Adds keys (n,d) and values (n,d_v). Throws InvalidArgument for other shapes.
  void append(const std::type_identity_t<MatrixView<T>>& k, const std::type_identity_t<MatrixView<T>>& v) {
    require(k.cols() == m_d, "keys: expected ", m_d, " columns, got ", k.cols());
    require(v.cols() == m_d_v, "values: expected ", m_d_v, " columns, got ", v.cols());
    require(v.rows() == k.rows(), "values: expected ", k.rows(), " rows (those of the keys), got ", v.rows());
    if (m_tokens + k.rows() > m_keys.rows()) reserve(std::max(2 * m_keys.rows(), m_tokens + k.rows()));
    m_keys.middleRows(m_tokens, k.rows()) = scale_of(k).asDiagonal() * k;
    m_values.middleRows(m_tokens, k.rows()) = v;
    m_tokens += k.rows();
  }

  /// Adds tokens and sets the rows of y (n,d_v) to their attention. A row that attends to no key is zero. Throws
  /// InvalidArgument for other shapes.
  void step(const std::type_identity_t<MatrixView<T>>& q, const std::type_identity_t<MatrixView<T>>& k,
            const std::type_identity_t<MatrixView<T>>& v, MatrixRef<T> y) {
    require(q.rows() == k.rows() && q.cols() == m_d, "queries: expected ", k.rows(), " x ", m_d, ", got ", q.rows(),
            " x ", q.cols());
    require(y.rows() == k.rows() && y.cols() == m_d_v, "y: expected ", k.rows(), " x ", m_d_v, ", got ", y.rows(),
            " x ", y.cols());
    const Index before = m_tokens;
    append(k, v);
    assign(m_queries, scale_of(q).asDiagonal() * q);  // (n,d)
    for (Index i = 0; i < q.rows(); ++i) attend(m_queries.row(i), before + i + 1, y.row(i));
  }

 private:
  static constexpr T minus_infinity = -std::numeric_limits<T>::infinity();

  // y = sum_j softmax_j(q.k_j + b[j-i]) v_j of the token i = n - 1, over the n keys at or before it
  template <class Q, class Y>
  void attend(const Q& q, Index n, Y&& y) {
    auto s = m_scores.head(n);
    const auto bias = m_bias_rows.tail(n).array();  // of the lags 1 - n, ..., 0
    s.noalias() = m_keys.topRows(n) * q.transpose();
    s.array() += bias;
    const T largest = s.maxCoeff();
    if (largest == minus_infinity) {
      y.setZero();
      return;
    }
    s = (s.array() - largest).exp();
    // Eigen's exp(-infinity) may be positive
    if (m_any_masked) s = (bias == minus_infinity).select(T(0), s.array());
    y.noalias() = s.transpose() * m_values.topRows(n);  // (1,d_v)
    y /= s.sum();
  }

  // the factors of rows (n,d) that normalise them
  const Vector<T>& scale_of(const MatrixView<T>& x) {
    resize(m_scale, x.rows());
    m_normalization.row_scale<T>(x, true, m_scale, Team(m_workspace));
    return m_scale;
  }

  void reserve(Index capacity) {
    m_keys.conservativeResize(capacity, m_d);
    m_values.conservativeResize(capacity, m_d_v);
    m_scores.resize(capacity);
    m_bias_rows.resize(capacity);
    for (Index lag = 1 - capacity; lag <= 0; ++lag) m_bias_rows[lag + capacity - 1] = static_cast<T>(m_bias[lag]);
    m_any_masked = (m_bias_rows.array() == minus_infinity).any();
  }

  LagBias<T> m_bias;
  Normalization m_normalization;
  Index m_d, m_d_v, m_tokens = 0;
  Matrix<T> m_keys, m_values;       // (capacity,d) normalised, (capacity,d_v); the first m_tokens rows are used
  Vector<T> m_scores, m_bias_rows;  // (capacity) the scores of one row; the biases of the lags 1 - capacity, ..., 0
  Vector<T> m_scale;                // (n) the factors of the tokens of a call
  Matrix<T> m_queries;              // (n,d) the normalised queries of a call
  Workspace m_workspace;
  bool m_any_masked = false;
};

}  // namespace nprf::reference
