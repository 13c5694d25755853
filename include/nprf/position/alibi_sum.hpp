// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "nprf/core/error.hpp"
#include "nprf/position/curve.hpp"

namespace nprf {

/// A sum of weights of ALiBi: b = log sum_k exp(a_k - s_k |lag|). With slopes of different sizes it falls fast at short
/// lags and slowly at long ones.
class AlibiSum {
 public:
  /// Throws InvalidArgument unless there are as many log-weights a as slopes s, at least one, and all are finite.
  AlibiSum(std::vector<double> log_weights, std::vector<double> slopes)
      : m_log_weights(std::move(log_weights)), m_slopes(std::move(slopes)) {
    require(!m_slopes.empty(), "slopes: expected at least one number, got none");
    require(m_log_weights.size() == m_slopes.size(), "log_weights: expected ", m_slopes.size(),
            " numbers (those of slopes), got ", m_log_weights.size());
    const auto check = [](const char* name, const std::vector<double>& x) {
      for (std::size_t k = 0; k < x.size(); ++k)
        require(std::isfinite(x[k]), name, "[", k, "]: expected a finite number, got ", x[k]);
    };
    check("log_weights", m_log_weights);
    check("slopes", m_slopes);
  }

  const std::vector<double>& log_weights() const { return m_log_weights; }
  const std::vector<double>& slopes() const { return m_slopes; }

  /// First the log-weights, then the slopes.
  Index num_parameters() const { return 2 * static_cast<Index>(m_slopes.size()); }
  double bias(Index lag) const {
    const double largest = largest_exponent(lag);
    double sum = 0;
    for (std::size_t k = 0; k < m_slopes.size(); ++k) sum += std::exp(exponent(k, lag) - largest);
    return largest + std::log(sum);
  }
  void add_gradient(Index lag, double db, double* d) const {
    const double b = bias(lag);
    for (std::size_t k = 0; k < m_slopes.size(); ++k) {
      const double share = db * std::exp(exponent(k, lag) - b);
      d[k] += share;
      d[m_slopes.size() + k] -= share * static_cast<double>(std::abs(lag));
    }
  }
  AlibiSum with_parameters(std::span<const double> p) const {
    require(p.size() == 2 * m_slopes.size(), "parameters: expected ", 2 * m_slopes.size(), " numbers, got ", p.size());
    const auto middle = p.begin() + static_cast<std::ptrdiff_t>(m_slopes.size());
    return {{p.begin(), middle}, {middle, p.end()}};
  }

 private:
  double exponent(std::size_t k, Index lag) const {
    return m_log_weights[k] - m_slopes[k] * static_cast<double>(std::abs(lag));
  }
  double largest_exponent(Index lag) const {
    double largest = -std::numeric_limits<double>::infinity();
    for (std::size_t k = 0; k < m_slopes.size(); ++k) largest = std::max(largest, exponent(k, lag));
    return largest;
  }

  std::vector<double> m_log_weights, m_slopes;
};

template <OnlyReal T>
using AlibiSumPosition = CurvePosition<T, AlibiSum>;

}  // namespace nprf
