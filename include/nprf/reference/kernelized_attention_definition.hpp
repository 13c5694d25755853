// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <iterator>
#include <vector>

#include "nprf/attention/batch/head.hpp"
#include "nprf/core/lags.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/reference/kernelized_attention.hpp"

namespace nprf::reference {

namespace detail {

/// The weights of attention without exp(b): phi(q_i).phi(k_j), or exp(q_i.k_j) of a near pair, a sink or a salient key,
/// up to a factor of the query.
template <Real T>
class PairWeights {
 public:
  PairWeights(const FeatureMapView<T>& features, const PositionView<T>& position, const AttentionOptions& options,
              const MatrixView<T>& q, const MatrixView<T>& k, Index offset, Attends attends)
      : m_position(position),
        m_near{options.near, position.pitch(), 0},
        m_sinks(options.sinks),
        m_salient(options.salient),
        m_r(q.rightCols(position.rank())) {
    if (!position.is_placed()) m_near.offset = offset;
    if (has_exact_pairs()) {
      set_with_log_factors(features, options.normalization, q.leftCols(k.cols()), k);
      if (m_salient > 0) choose_salient_keys(options.salient_rules, offset, attends);
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

  // the keys of the largest scores nu.k + k S k / 2, where nu and S are the mean and the covariance of the queries; by
  // a rule the first ones whose score exceeds the threshold
  void choose_salient_keys(const std::vector<SalientRule>& rules, Index offset, Attends attends) {
    const auto is_key = [&](Index j) {
      Index i = 0;
      while (i < m_q.rows() && !attends(i, j)) ++i;
      return i < m_q.rows();
    };
    std::vector<Index> queries, keys;
    for (Index i = 0; i < m_q.rows(); ++i) {
      const Index at = i + offset;
      if ((at < 0 || at >= m_k.rows() || is_key(at)) && m_q.row(i).allFinite()) queries.push_back(i);
    }
    for (Index j = 0, before = 0; j < m_k.rows(); ++j)
      if (is_key(j) && before++ >= m_sinks && m_k.row(j).allFinite()) keys.push_back(j);
    const auto score_of_queries = [&](Index j) {  // over them k S k is the variance of q.k
      long double mean = 0, variance = 0;
      for (const Index i : queries) mean += dot(m_q, i, m_k, j) / static_cast<long double>(queries.size());
      for (const Index i : queries)
        variance += std::pow(dot(m_q, i, m_k, j) - mean, 2.0L) / static_cast<long double>(queries.size());
      return mean + variance / 2;
    };
    const auto score_of_rule = [&](Index j) {
      const double *nu = rules.front().mean.data(), *S = rules.front().covariance.data();
      long double sum = 0;
      for (Index a = 0; a < m_k.cols(); ++a) {
        sum += static_cast<long double>(nu[a]) * m_k(j, a);
        for (Index b = 0; b < m_k.cols(); ++b)
          sum += static_cast<long double>(S[a * m_k.cols() + b]) * m_k(j, a) * m_k(j, b) / 2;
      }
      return sum;
    };
    std::vector<long double> scores(static_cast<std::size_t>(m_k.rows()));
    for (const Index j : keys)
      scores[static_cast<std::size_t>(j)] = rules.empty() ? score_of_queries(j) : score_of_rule(j);
    const auto score = [&](Index j) { return scores[static_cast<std::size_t>(j)]; };
    if (rules.empty())
      std::ranges::stable_sort(keys, std::greater<>(), score);
    else
      std::erase_if(keys, [&](Index j) { return !(score(j) > rules.front().threshold); });
    m_salient_keys.assign(keys.begin(), keys.begin() + std::min<Index>(m_salient, std::ssize(keys)));
  }

  static long double dot(const Matrix<T>& x, Index i, const Matrix<T>& y, Index j) {
    long double sum = 0;
    for (Index l = 0; l < x.cols(); ++l) sum += static_cast<long double>(x(i, l)) * y(j, l);
    return sum;
  }

  bool has_exact_pairs() const { return m_near.width > 0 || m_sinks > 0 || m_salient > 0; }

  // pairs with an extra token are never near
  bool is_near(Index i, Index j) const {
    const Index extra = m_position.extra().rows();
    return i >= extra && j >= extra && m_near.contains(m_position.slot(j - extra) - m_position.slot(i - extra));
  }
  bool is_exact(Index i, Index j, Index before) const {
    return before < m_sinks || std::ranges::count(m_salient_keys, j) > 0 || is_near(i, j);
  }

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
  Index m_sinks, m_salient;
  std::vector<Index> m_salient_keys;
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
