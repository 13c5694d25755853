// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <nprf/nprf.hpp>
#include <span>
#include <utility>
#include <vector>

#include "examples/support/head_arrays.hpp"

namespace demo {

/// Attention with a position bias over the second half of a text, at one normalization, against exact softmax. What
/// maps are made from is of the first half, or of other texts. Refers to the arrays.
class SecondHalf {
 public:
  using View = nprf::HeadsView<const float>;
  using Positions = std::vector<nprf::RelativePosition<float>>;

  /// For queries, keys and values of the whole text (1,heads,tokens,channels), and one position or one for each head;
  /// bidirectional or causal.
  SecondHalf(const View& q, const View& k, const View& v, nprf::Normalization normalization,
             Positions positions = {falling_bias()}, nprf::Direction direction = nprf::Direction::bidirectional)
      : m_q(q),
        m_k(k),
        m_v(v),
        m_normalization(normalization),
        m_positions(std::move(positions)),
        m_direction(direction),
        m_first(q.tokens / 2),
        m_sample_q(q),
        m_sample_k(k),
        m_sample_v(v),
        m_sample_tokens(m_first) {}

  /// From now on maps are made from whole other texts (texts,heads,tokens,channels).
  void set_sample(const View& q, const View& k, const View& v) {
    m_sample_q = q, m_sample_k = k, m_sample_v = v;
    m_sample_tokens = q.tokens;
  }

  nprf::Index heads() const { return m_q.heads; }
  nprf::Index channels() const { return m_q.channels; }

  /// The queries and keys of a head in the first half, or in the other texts (tokens,channels), normalised as attention
  /// normalises them.
  nprf::Matrix<float> first_queries(nprf::Index head) const { return rows(m_sample_q, head, m_sample_tokens); }
  nprf::Matrix<float> first_keys(nprf::Index head) const { return rows(m_sample_k, head, m_sample_tokens); }

  /// The same of the second half.
  nprf::Matrix<float> second_queries(nprf::Index head) const { return rows(second(m_q), head, m_q.tokens - m_first); }
  nprf::Matrix<float> second_keys(nprf::Index head) const { return rows(second(m_k), head, m_k.tokens - m_first); }

  /// Maps for all heads, from the first half or the other texts.
  std::vector<nprf::CalibratedFeatures<float>> calibrated(nprf::Index num_features, nprf::Index near) const {
    return nprf::calibrate_heads<float>(
               m_sample_q, m_sample_k, m_sample_v, std::span(m_positions),
               {.num_features = num_features, .near = near, .direction = m_direction, .normalization = m_normalization})
        .features;
  }

  /// What a call reports, with the error over all rows and heads, of one map or of one for each head.
  template <class F>
  nprf::Report report(std::vector<F> features, nprf::Index near) const {
    const nprf::MultiHeadAttention attention(
        std::move(features), m_positions, {.direction = m_direction, .normalization = m_normalization, .near = near});
    const View q = second(m_q);
    nprf::Matrix<float> y(q.heads * q.tokens, m_v.channels);
    nprf::Report report;
    attention(q, second(m_k), second(m_v), {y.data(), 1, q.heads, q.tokens, m_v.channels},
              {.report = &report, .softmax_samples = q.tokens});
    return report;
  }

  /// The error of no attention at all: every row the mean of the values, of those so far in causal attention.
  double error_of_mean_value() const {
    return error([&](nprf::Index, const nprf::Matrix<float>& q, const auto& k, const auto& v) {
      return nprf::reference::softmax_attention<float>(0 * q, k, v, nprf::NoPosition<float>(), m_direction,
                                                       m_normalization);
    });
  }

  /// The error of attention by the bias alone, without q.k.
  double error_of_bias_alone() const {
    return error([&](nprf::Index h, const nprf::Matrix<float>& q, const auto& k, const auto& v) {
      return softmax(h, 0 * q, k, v);
    });
  }

 private:
  View second(View x) const {
    x.strides = x.all_strides();
    x.data += m_first * x.strides.token, x.tokens -= m_first;
    return x;
  }
  nprf::Matrix<float> softmax(nprf::Index head, const nprf::Matrix<float>& q, const nprf::Matrix<float>& k,
                              const nprf::Matrix<float>& v) const {
    const auto& position = m_positions[m_positions.size() == 1 ? 0 : static_cast<std::size_t>(head)];
    return nprf::reference::softmax_attention<float>(q, k, v, position, m_direction, m_normalization);
  }

  // of estimate(head, q, k, v)
  template <class Estimate>
  double error(Estimate estimate) const {
    double difference = 0, size = 0;
    for (nprf::Index h = 0; h < m_q.heads; ++h) {
      const nprf::Matrix<float> q = second(m_q)(0, h), k = second(m_k)(0, h), v = second(m_v)(0, h);
      const nprf::Matrix<float> exact = softmax(h, q, k, v);
      difference += static_cast<double>((estimate(h, q, k, v) - exact).squaredNorm());
      size += static_cast<double>(exact.squaredNorm());
    }
    return std::sqrt(difference / size);
  }

  // the first n tokens of all texts of x, normalised
  nprf::Matrix<float> rows(const View& x, nprf::Index head, nprf::Index n) const {
    nprf::Matrix<float> all(x.batch * n, x.channels);
    for (nprf::Index b = 0; b < x.batch; ++b) all.middleRows(b * n, n) = x(b, head).topRows(n);
    return all.array().colwise() * m_normalization.row_scale<float>(all).array();
  }

  View m_q, m_k, m_v;
  nprf::Normalization m_normalization;
  Positions m_positions;
  nprf::Direction m_direction;
  nprf::Index m_first;
  View m_sample_q, m_sample_k, m_sample_v;
  nprf::Index m_sample_tokens;
};

}  // namespace demo
