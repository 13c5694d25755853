// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "differential/softmax_rows.hpp"
#include "nprf/attention/attention.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"

/// The errors of an attention's gradients relative to the direct engine in double, in units of the sums that
/// GradientReport::error_bound refers to.
namespace nprf::test {

struct GradientErrors {
  double queries = 0, keys = 0, values = 0, bias = 0;  // the largest error of each; infinity if one is non-finite
  double most() const { return std::max({queries, keys, values, bias}); }
};

template <Real T>
Tokens<double> in_double(const Tokens<T>& x) {
  return {x.q.template cast<double>(), x.k.template cast<double>(), x.v.template cast<double>()};
}

/// The gradients for dy and their errors, for a random feature map (Features<T>, with the same projection in
/// Features<double>) and a table of biases.
template <template <class> class Features, Real T>
class CheckedGradients {
 public:
  CheckedGradients(const Features<T>& features, const Vector<T>& table, const Tokens<T>& x, const Matrix<T>& dy,
                   AttentionOptions options)
      : m_features(features), m_table(table), m_x(x), m_dy(dy), m_options(options), m_exact(exact_options()) {
    Saved<double> saved;
    const Tokens<double> in = in_double(x);
    m_exact.forward(in.q, in.k, in.v, saved);
    m_expected = m_exact.backward(saved, dy.template cast<double>());
    find_sums(in, std::sqrt(static_cast<double>(std::numeric_limits<T>::min())) / epsilon<T>);
  }

  /// The gradients by an engine; `report` gets the report of the forward call, `has_softmax_rows` whether it computed
  /// rows by exact softmax, whose gradients are others than the expected ones.
  Gradients<T> by(Engine engine, Report* report = nullptr, double tolerance = 0,
                  bool* has_softmax_rows = nullptr) const {
    AttentionOptions options = m_options;
    options.engine = engine;
    const Attention attention(m_features, RelativePosition<T>(m_table), options);
    Saved<T> saved;
    attention.forward(m_x.q, m_x.k, m_x.v, saved, {.tolerance = tolerance, .report = report});
    if (has_softmax_rows)
      *has_softmax_rows = std::ranges::count(differential::softmax_rows(saved, 1, m_x.q.rows()), true) > 0;
    return attention.backward(saved, m_dy);
  }

  GradientErrors errors(const Gradients<T>& got) const {
    GradientErrors e;
    // errors below the smallest normal number are allowed
    const auto add = [](double& to, double error, double sum) {
      if (!(error <= static_cast<double>(std::numeric_limits<T>::min())))
        to = std::max(to, std::isfinite(error) ? error / sum : std::numeric_limits<double>::infinity());
    };
    const auto difference = [](const Matrix<T>& x, const Matrix<double>& y) {
      return Matrix<double>(x.template cast<double>() - y);
    };
    const Matrix<double> dq = difference(got.queries, m_expected.queries), dk = difference(got.keys, m_expected.keys),
                         dv = difference(got.values, m_expected.values), db = difference(got.bias, m_expected.bias);
    for (Index i = 0; i < dq.rows(); ++i) add(e.queries, dq.row(i).norm(), m_queries[i]);
    for (Index j = 0; j < dk.rows(); ++j) add(e.keys, dk.row(j).norm(), m_keys[j]);
    for (Index j = 0; j < dv.rows(); ++j) add(e.values, dv.row(j).cwiseAbs().maxCoeff(), m_values[j]);
    for (Index l = 0; l < db.rows(); ++l) add(e.bias, std::abs(db(l, 0)), m_lags[l]);
    return e;
  }

  const Gradients<double>& expected() const { return m_expected; }

 private:
  Attention<Features<double>, RelativePosition<double>> exact_options() const {
    AttentionOptions options = m_options;
    options.engine = Engine::direct;
    return {Features<double>(m_features.projection().template cast<double>()),
            RelativePosition<double>(m_table.template cast<double>()), options};
  }

  // computes the sums of the error bounds; a weight below n_k times `least` counts as that
  void find_sums(const Tokens<double>& x, double least) {
    const Matrix<double> A = m_exact.query_features(x.q), B = m_exact.key_features(x.k);
    const Matrix<double> S = A * B.transpose(), norms = A.rowwise().norm() * B.rowwise().norm().transpose();
    const Index n_q = A.rows(), n_k = B.rows(), reach = m_table.size() / 2;
    m_queries = Vector<double>::Zero(n_q), m_keys = m_values = Vector<double>::Zero(n_k);
    m_lags = Vector<double>::Zero(m_table.size());
    for (Index i = 0; i < n_q; ++i) {
      const Index end = m_options.direction == Direction::causal ? std::min(i + 1, n_k) : n_k;
      const auto bias = [&](Index j) { return static_cast<double>(m_exact.position().bias()[j - i]); };
      const auto is_attended = [&](Index j) { return bias(j) > -std::numeric_limits<double>::infinity(); };
      double largest = -std::numeric_limits<double>::infinity(), D = 0, v_max = 0;
      for (Index j = 0; j < end; ++j) largest = std::max(largest, bias(j));
      for (Index j = 0; j < end; ++j) {
        if (!is_attended(j)) continue;
        D += S(i, j) * std::exp(bias(j) - largest);
        v_max = std::max(v_max, x.v.row(j).cwiseAbs().maxCoeff());
      }
      const double dy = m_dy.row(i).template cast<double>().cwiseAbs().sum(), s = dy * v_max;
      m_queries[i] = s;
      for (Index j = 0; j < end; ++j) {
        if (!is_attended(j)) continue;
        const double p = (Features<T>::is_positive ? S(i, j) : norms(i, j)) * std::exp(bias(j) - largest) / std::abs(D);
        const double weight = std::max(p, static_cast<double>(n_k) * least);
        m_keys[j] += weight * s;
        m_values[j] += weight * dy;
        m_lags[std::clamp(j - i, -reach, reach) + reach] += weight * s;
      }
    }
    const double rows = m_exact.features().projection().rowwise().norm().maxCoeff();
    const auto by_derivative = [&](const Matrix<double>& tokens, Vector<double>& sums) {
      const Vector<double> scale = m_options.normalization.row_scale<double>(tokens);
      for (Index i = 0; i < tokens.rows(); ++i) sums[i] *= scale[i] * (rows + scale[i] * tokens.row(i).norm());
    };
    by_derivative(x.q, m_queries);
    by_derivative(x.k, m_keys);
  }

  const Features<T>& m_features;
  const Vector<T>& m_table;
  const Tokens<T>& m_x;
  const Matrix<T>& m_dy;
  AttentionOptions m_options;
  Attention<Features<double>, RelativePosition<double>> m_exact;
  Gradients<double> m_expected;
  Vector<double> m_queries, m_keys, m_values, m_lags;
};

}  // namespace nprf::test
