// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "nprf/core/types.hpp"
#include "support/random.hpp"

namespace nprf::test {

/// The mean and the variance of a sample, each with its standard error.
struct Statistics {
  double mean = 0, mean_error = 0;
  double variance = 0, variance_error = 0;

  explicit Statistics(const std::vector<double>& sample) {
    const double n = static_cast<double>(sample.size());
    for (const double x : sample) mean += x / n;
    double second = 0, fourth = 0;
    for (const double x : sample) {
      const double square = (x - mean) * (x - mean);
      second += square / n;
      fourth += square * square / n;
    }
    variance = second * n / (n - 1);
    mean_error = std::sqrt(variance / n);
    variance_error = std::sqrt((fourth - second * second) / n);
  }

  /// |mean - expected| in standard errors; likewise for the variance
  double mean_sigmas(double expected) const { return std::abs(mean - expected) / mean_error; }
  double variance_sigmas(double expected) const { return std::abs(variance - expected) / variance_error; }
};

/// The limit in standard errors: a correct mean exceeds it once in 1.7 million draws. The draws are the same in each
/// run.
constexpr double five_sigma = 5;

/// phi(x_i).phi(y_j), including the factors that queries and keys omit:  x (n_q,d)  y (n_k,d)  ->  (n_q,n_k)
template <class F, class T = typename F::Scalar>
Matrix<double> kernel(const F& features, const Matrix<T>& x, const Matrix<T>& y) {
  Vector<T> log_x;
  T log_y;
  const Matrix<double> phi_x = features.queries(x, {}, &log_x).template cast<double>();  // (n_q,r)
  const Matrix<double> phi_y = features.keys(y, {}, &log_y).template cast<double>();     // (n_k,r)
  Matrix<double> k = phi_x * phi_y.transpose();
  for (Index i = 0; i < k.rows(); ++i) k.row(i) *= std::exp(static_cast<double>(log_x[i]) + static_cast<double>(log_y));
  return k;
}

/// One estimate phi(x).phi(y) for each of the seeds 0, 1, ..., where make(seed) is a feature map.
template <class Make, class T>
std::vector<double> estimates(Make&& make, const Matrix<T>& x, const Matrix<T>& y, std::uint64_t seeds) {
  std::vector<double> sample;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) sample.push_back(kernel(make(seed), x, y)(0, 0));
  return sample;
}

inline double exp_xy(const Matrix<double>& x, const Matrix<double>& y) { return std::exp(x.row(0).dot(y.row(0))); }

/// Two vectors of dimension d:  |x| = norm, |y| = 0.6 norm
template <class T>
std::vector<Matrix<T>> two_vectors(Index d, double norm) {
  std::vector<Matrix<T>> pair;
  for (const std::uint64_t seed : {100u, 101u}) {
    const Matrix<double> x = normal<double>(1, d, seed);
    pair.push_back((x * ((seed == 100 ? 1 : 0.6) * norm / x.norm())).template cast<T>());
  }
  return pair;
}

}  // namespace nprf::test
