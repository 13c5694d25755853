// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <nprf/nprf.hpp>
#include <span>
#include <utility>
#include <vector>

#include "examples/support/head_arrays.hpp"

namespace demo {

/// Attention with falling_bias() over the second half of a text, at one normalization, against exact softmax. What maps
/// are made from is of the first half. Refers to the arrays.
class SecondHalf {
 public:
  using View = nprf::HeadsView<const float>;

  /// For queries, keys and values of the whole text (1,heads,tokens,channels).
  SecondHalf(const View& q, const View& k, const View& v, nprf::Normalization normalization)
      : m_q(q), m_k(k), m_v(v), m_normalization(normalization), m_first(q.tokens / 2) {}

  nprf::Index heads() const { return m_q.heads; }
  nprf::Index channels() const { return m_q.channels; }

  /// The queries and keys of a head in the first half (first tokens,channels), normalised as attention normalises them.
  nprf::Matrix<float> first_queries(nprf::Index head) const { return first_rows(m_q, head); }
  nprf::Matrix<float> first_keys(nprf::Index head) const { return first_rows(m_k, head); }

  /// Maps for all heads, from the first half.
  std::vector<nprf::CalibratedFeatures<float>> calibrated(nprf::Index num_features, nprf::Index near) const {
    const nprf::RelativePosition<float> position = falling_bias();
    return nprf::calibrate_heads<float>(m_q, m_k, m_v, std::span(&position, 1),
                                        {.num_features = num_features, .near = near, .normalization = m_normalization})
        .features;
  }

  /// What a call reports, with the error over all rows and heads, of one map or of one for each head.
  template <class F>
  nprf::Report report(std::vector<F> features, nprf::Index near) const {
    const nprf::MultiHeadAttention attention(std::move(features), falling_bias(),
                                             {.normalization = m_normalization, .near = near});
    const View q = second(m_q);
    nprf::Matrix<float> y(q.heads * q.tokens, m_v.channels);
    nprf::Report report;
    attention(q, second(m_k), second(m_v), {y.data(), 1, q.heads, q.tokens, m_v.channels},
              {.report = &report, .softmax_samples = q.tokens});
    return report;
  }

  /// The error of no attention at all: every row the mean of the values.
  double error_of_mean_value() const {
    return error([](const nprf::Matrix<float>&, const nprf::Matrix<float>&, const nprf::Matrix<float>& v) {
      return nprf::Matrix<float>(v.colwise().mean().replicate(v.rows(), 1));
    });
  }

  /// The error of attention by the bias alone, without q.k.
  double error_of_bias_alone() const {
    return error([&](const nprf::Matrix<float>& q, const nprf::Matrix<float>& k, const nprf::Matrix<float>& v) {
      return softmax(0 * q, k, v);
    });
  }

 private:
  View second(View x) const {
    x.strides = x.all_strides();
    x.data += m_first * x.strides.token, x.tokens -= m_first;
    return x;
  }
  nprf::Matrix<float> softmax(const nprf::Matrix<float>& q, const nprf::Matrix<float>& k,
                              const nprf::Matrix<float>& v) const {
    return nprf::reference::softmax_attention<float>(q, k, v, falling_bias(), nprf::Direction::bidirectional,
                                                     m_normalization);
  }

  // of rows(q, k, v) of each head
  template <class Rows>
  double error(Rows rows) const {
    double difference = 0, size = 0;
    for (nprf::Index h = 0; h < m_q.heads; ++h) {
      const nprf::Matrix<float> q = second(m_q)(0, h), k = second(m_k)(0, h), v = second(m_v)(0, h);
      const nprf::Matrix<float> exact = softmax(q, k, v);
      difference += static_cast<double>((rows(q, k, v) - exact).squaredNorm());
      size += static_cast<double>(exact.squaredNorm());
    }
    return std::sqrt(difference / size);
  }

  nprf::Matrix<float> first_rows(const View& x, nprf::Index head) const {
    const nprf::Matrix<float> rows = x(0, head).topRows(m_first);
    return rows.array().colwise() * m_normalization.row_scale<float>(rows).array();
  }

  View m_q, m_k, m_v;
  nprf::Normalization m_normalization;
  nprf::Index m_first;
};

}  // namespace demo
