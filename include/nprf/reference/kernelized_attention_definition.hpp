// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "nprf/attention/batch/check_arrays.hpp"
#include "nprf/attention/batch/head.hpp"
#include "nprf/core/lags.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/reference/kernelized_attention.hpp"

namespace nprf::reference {

namespace detail {

/// The weights of attention without exp(b): phi(q_i).phi(k_j), or exp(q_i.k_j) of a near pair or a sink, up to a factor
/// of the query.
template <Real T>
class PairWeights {
 public:
  PairWeights(const FeatureMapView<T>& features, const PositionView<T>& position, const AttentionOptions& options,
              const MatrixView<T>& q, const MatrixView<T>& k, Index offset, Attends attends)
      : m_position(position),
        m_near{options.near, position.pitch(), 0},
        m_sinks(options.sinks),
        m_r(q.rightCols(position.rank())) {
    if (!position.is_placed()) m_near.offset = offset;
    if (has_exact_pairs()) {
      set_with_log_factors(features, options.normalization, q.leftCols(k.cols()), k);
      return;
    }
    const Head<T> head{features, options.normalization, nullptr};
    m_A = head.query_features(q);
    m_B = Matrix<T>::Zero(k.rows(), m_A.cols());
    std::vector<Index> attended;
    for (Index j = 0; j < k.rows(); ++j) {
      Index i = 0;
      while (i < q.rows() && !attends(i, j)) ++i;
      if (i < q.rows()) attended.push_back(j);
    }
    const Matrix<T> B = head.key_features(selected_rows(k, attended));
    for (Index l = 0; l < B.rows(); ++l)
      std::ranges::copy(row_of(B, l), writable_row(m_B, attended[static_cast<std::size_t>(l)]).begin());
  }

  /// The logarithm of an exact pair's weight; of a far pair, the logarithm of its key's factor; 0 without exact pairs.
  /// `before` is the number of keys before key j that are not padding.
  double log_scale(Index i, Index j, Index before) const {
    if (!has_exact_pairs()) return 0;
    return is_exact(i, j, before) ? static_cast<double>(score(i, j)) - m_a[i] : m_b[j];
  }

  /// The weight divided by exp(log_unit).
  long double operator()(Index i, Index j, Index before, long double log_unit) const {
    if (!has_exact_pairs()) return dot(m_A, i, m_B, j);
    if (is_exact(i, j, before)) return std::exp(score(i, j) - m_a[i] - log_unit);
    return dot(m_A, i, m_B, j) * std::exp(m_b[j] - log_unit);
  }

 private:
  void set_with_log_factors(const FeatureMapView<T>& features, const Normalization& normalization,
                            const MatrixView<T>& q, const MatrixView<T>& k) {
    m_q = rows_scaled_by<T>(entries_of(normalization.row_scale<T>(q)), q);
    m_k = rows_scaled_by<T>(entries_of(normalization.row_scale<T>(k)), k);
    m_A.resize(q.rows(), features.output_dim());
    m_B.resize(k.rows(), m_A.cols());
    m_a.resize(q.rows());
    m_b.resize(k.rows());
    Workspace workspace;
    features.with_log_factors(m_q, {}, m_A, m_a.data(), Team(workspace));
    features.keys_with_log_factors(m_k, {}, m_B, m_b.data(), Team(workspace));
  }

  static long double dot(const Matrix<T>& x, Index i, const Matrix<T>& y, Index j) {
    long double sum = 0;
    for (Index l = 0; l < x.cols(); ++l) sum += static_cast<long double>(x(i, l)) * y(j, l);
    return sum;
  }

  bool has_exact_pairs() const { return m_near.width > 0 || m_sinks > 0; }

  // pairs with an extra token are never near
  bool is_near(Index i, Index j) const {
    const Index extra = m_position.extra().rows();
    return i >= extra && j >= extra && m_near.contains(m_position.slot(j - extra) - m_position.slot(i - extra));
  }
  bool is_exact(Index i, Index j, Index before) const { return before < m_sinks || is_near(i, j); }

  // q_i.k_j, and of near pairs r_i.R[j-i] (QueryBiased)
  long double score(Index i, Index j) const {
    long double sum = dot(m_q, i, m_k, j);
    if (m_position.rank() == 0 || !is_near(i, j)) return sum;
    const Matrix<T>& R = *m_position.lag_vectors();
    for (Index c = 0; c < m_position.rank(); ++c)
      sum += static_cast<long double>(m_r(i, c)) * R(c, j - i - m_near.range().first);
    return sum;
  }

  PositionView<T> m_position;
  NearLags m_near;
  Index m_sinks;
  Matrix<T> m_r;       // (n_q,rank)
  Matrix<T> m_q, m_k;  // normalised; empty without exact pairs
  Matrix<T> m_A, m_B;
  Vector<T> m_a, m_b;  // logarithms of the factors of the rows of A and B, with exact pairs
};

/// The output y (n_q,d_v). bias(i, j) is b, or -infinity if the direction masks the pair.
template <Real T>
Matrix<T> weighted_means(const PairWeights<T>& weights, FunctionRef<double(Index i, Index j)> bias, Attends attends,
                         const MatrixView<T>& v, Index n_q) {
  const Index n_k = v.rows(), d_v = v.cols();
  Matrix<T> y = Matrix<T>::Zero(n_q, d_v);
  for (Index i = 0; i < n_q; ++i) {
    const auto b = [&](Index j) { return attends(i, j) ? bias(i, j) : -INFINITY; };
    double largest = -INFINITY;
    for (Index j = 0; j < n_k; ++j) largest = std::max(largest, b(j));
    if (largest == -INFINITY) continue;
    double unit = -INFINITY;
    for (Index j = 0, before = 0; j < n_k; before += attends(i, j) ? 1 : 0, ++j)
      if (b(j) > -INFINITY) unit = std::max(unit, weights.log_scale(i, j, before));

    std::vector<long double> numerator(static_cast<std::size_t>(d_v));
    long double denominator = 0;
    for (Index j = 0, before = 0; j < n_k; before += attends(i, j) ? 1 : 0, ++j) {
      if (b(j) == -INFINITY) continue;
      const long double weight = weights(i, j, before, unit) * std::exp(static_cast<long double>(b(j)) - largest);
      for (Index p = 0; p < d_v; ++p) numerator[static_cast<std::size_t>(p)] += weight * v(j, p);
      denominator += weight;
    }
    for (Index p = 0; p < d_v; ++p) y(i, p) = static_cast<T>(numerator[static_cast<std::size_t>(p)] / denominator);
  }
  return y;
}

template <Real T>
Matrix<T> kernelized_attention(const FeatureMapView<T>& features, const PositionView<T>& position,
                               const AttentionOptions& options, const MatrixView<T>& q, const MatrixView<T>& k,
                               const MatrixView<T>& v, Index offset, Attends attends) {
  check_query_channels(q.cols(), features.input_dim(), position.rank());
  const AttentionShape shape = attention_shape<T>(q.leftCols(features.input_dim()), k, v);
  position.check_tokens(shape.n_q, offset, "queries");
  position.check_tokens(shape.n_k, offset, "keys");
  const bool causal = options.direction == Direction::causal;
  const PairWeights<T> weights(features, position, options, q, k, offset, attends);
  const auto bias = [&](Index i, Index j) {
    return causal && j > i + offset ? -INFINITY : position.bias_between(i, j, offset);
  };
  return weighted_means<T>(weights, bias, attends, v, shape.n_q);
}

}  // namespace detail

}  // namespace nprf::reference
