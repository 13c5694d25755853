// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/types.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/sanitized.hpp"

/// The product Y = ((A B^T) o C) U by plain loops, and the tolerances of the engines.
namespace nprf::test {

/// The engines available in this build.
inline std::vector<Engine> engines() {
  std::vector<Engine> all{Engine::direct, Engine::banded, Engine::lanes, Engine::block_causal, Engine::smooth};
  if (NPRF_USE_FFTW) all.push_back(Engine::fftw);
  return all;
}

/// The engines available in this build, and Engine::automatic.
inline std::vector<Engine> all_engines() {
  std::vector<Engine> all = engines();
  all.push_back(Engine::automatic);
  return all;
}

/// Whether the rounding error of an engine is relative to the largest row. For block_causal it is relative to the
/// largest row of the same block, which only the test of that engine checks.
inline bool is_fft(Engine engine) {
  return engine == Engine::lanes || engine == Engine::block_causal || engine == Engine::fftw;
}

inline std::vector<Engine> fft_engines() {
  std::vector<Engine> all = engines();
  std::erase_if(all, [](Engine engine) { return !is_fft(engine); });
  return all;
}

/// N(0,1) weights of both signs for all lags between n_q queries and n_k keys.
template <Real T>
LagWeights<T> random_weights(Index n_q, Index n_k, std::uint64_t seed) {
  return {-(n_q - 1), normal_vector<T>(n_q + n_k - 1, seed)};
}

inline std::vector<Index> all_rows(Index n) {
  std::vector<Index> rows(static_cast<std::size_t>(n));
  std::iota(rows.begin(), rows.end(), Index{0});
  return rows;
}

/// At most `count` of n rows: the first, the last, and others at equal distances.
inline std::vector<Index> some_rows(Index n, Index count) {
  if (n <= count) return all_rows(n);
  std::vector<Index> rows;
  for (Index k = 0; k < count; ++k) rows.push_back(k * (n - 1) / (count - 1));
  return rows;
}

/// The rows that a reference implementation computes: all rows, or a sample of them if there are many.
inline std::vector<Index> checked_rows(Index n) { return some_rows(n, NPRF_TEST_SANITIZED ? 128 : 1000); }

template <class T>
Matrix<T> pick(const Matrix<T>& X, const std::vector<Index>& rows) {
  Matrix<T> picked(static_cast<Index>(rows.size()), X.cols());
  for (Index i = 0; i < picked.rows(); ++i) picked.row(i) = X.row(rows[static_cast<std::size_t>(i)]);
  return picked;
}

struct Product {
  Matrix<double> values;     // rows of Y
  Matrix<double> magnitude;  // the sums of the absolute values of the terms
};

/// The given rows of Y in long double.
template <Real T>
Product reference_product(const LagWeights<T>& lags, const Matrix<T>& A, const Matrix<T>& B, const Matrix<T>& U,
                          const std::vector<Index>& rows) {
  Product product{Matrix<double>(static_cast<Index>(rows.size()), U.cols()),
                  Matrix<double>(static_cast<Index>(rows.size()), U.cols())};
  for (Index row = 0; row < product.values.rows(); ++row) {
    const Index i = rows[static_cast<std::size_t>(row)];
    Vector<long double> y = Vector<long double>::Zero(U.cols()), magnitude = y;
    for (Index j = 0; j < B.rows(); ++j) {
      const Index lag = j - i;
      if (lag < lags.first || lag > lags.last()) continue;
      const long double c = lags.values[lag - lags.first];
      long double dot = 0, absolute = 0;
      for (Index r = 0; r < A.cols(); ++r) {
        const long double term = static_cast<long double>(A(i, r)) * B(j, r);
        dot += term;
        absolute += std::abs(term);
      }
      for (Index p = 0; p < U.cols(); ++p) {
        y[p] += c * dot * U(j, p);
        magnitude[p] += std::abs(c) * absolute * std::abs(static_cast<long double>(U(j, p)));
      }
    }
    product.values.row(row) = y.cast<double>().transpose();
    product.magnitude.row(row) = magnitude.cast<double>().transpose();
  }
  return product;
}

/// Each entry of Y is a sum of n_k sums of r terms, rounded at every step. Independent rounding errors grow with the
/// square root of the number of steps. 16 covers the other steps: the weights, the products and the final rounding.
template <Real T>
double direct_growth(Index r, Index n_k) {
  return epsilon<T> * std::sqrt(static_cast<double>(16 + r + n_k));
}

/// The estimated rounding error of an FFT in row i of Y, for columns of U scaled to maximum 1. With x_rp = B_r o U_p,
/// y_rp = T(c) x_rp and N the length of the transform, it is
///     E_i = eps sqrt(log2 N) sum_r |A_ir| max_p (|c| |x_rp| + |y_rp|) / sqrt(N)
/// times sqrt(2), because two columns share a transform on GPUs. It does not depend on the magnitude of row i of Y.
template <Real T>
Vector<double> fft_error_bound(const LagWeights<T>& lags, const Matrix<T>& A, const Matrix<T>& B, const Matrix<T>& U) {
  const Index n_q = A.rows(), n_k = B.rows();
  const double N = static_cast<double>(n_q + n_k - 1);
  const Vector<double> c = lags.window({-(n_q - 1), n_k - 1}).template cast<double>();  // c[j - i] at n_q - 1 + j - i
  Matrix<double> scaled = U.template cast<double>();                                    // (n_k,p), maximum 1
  for (Index p = 0; p < U.cols(); ++p)
    if (const double largest = scaled.col(p).cwiseAbs().maxCoeff(); largest > 0) scaled.col(p) /= largest;

  const std::vector<Index> rows = some_rows(n_q, 64);  // a sample for the mean of |y_rp|^2
  Vector<double> bounds = Vector<double>::Zero(n_q);
  for (Index r = 0; r < A.cols(); ++r) {
    const Matrix<double> x = B.col(r).template cast<double>().asDiagonal() * scaled;  // (n_k,p)
    Vector<double> y_square = Vector<double>::Zero(U.cols());
    for (const Index i : rows)
      y_square += (x.transpose() * c.segment(n_q - 1 - i, n_k)).cwiseAbs2() / static_cast<double>(rows.size());
    double largest = 0;
    for (Index p = 0; p < U.cols(); ++p)
      largest = std::max(largest, c.norm() * x.col(p).norm() / std::sqrt(N) + std::sqrt(y_square[p]));
    bounds += A.col(r).template cast<double>().cwiseAbs() * largest;
  }
  return bounds * std::sqrt(2.0) * epsilon<T> * std::sqrt(std::log2(N + 1));
}

/// Measured errors are below 1.5 E.
inline constexpr double fft_margin = 1.5;

/// The tolerance of each entry of the given rows relative to reference_product().
template <Real T>
Matrix<double> product_tolerance(Engine engine, const LagWeights<T>& lags, const Matrix<T>& A, const Matrix<T>& B,
                                 const Matrix<T>& U, const std::vector<Index>& rows, const Product& reference) {
  const double deviation = engine == Engine::smooth ? lags.max_deviation : 0;
  Matrix<double> tolerance = (direct_growth<T>(A.cols(), B.rows()) + deviation) * reference.magnitude;
  if (!is_fft(engine) || B.rows() == 0) return tolerance;
  const Vector<double> bounds = fft_error_bound(lags, A, B, U);
  // 2: columns that share a transform are scaled by powers of two, so their scaled maxima differ by up to a factor of 2
  for (Index i = 0; i < tolerance.rows(); ++i)
    for (Index p = 0; p < U.cols(); ++p)
      tolerance(i, p) = 2 * fft_margin * bounds[rows[static_cast<std::size_t>(i)]] *
                        static_cast<double>(U.col(p).cwiseAbs().maxCoeff());
  return tolerance;
}

/// The largest |got - Y| / tolerance over the given rows of got.
template <Real T>
double product_error(Engine engine, const LagWeights<T>& lags, const Matrix<T>& A, const Matrix<T>& B,
                     const Matrix<T>& U, const Matrix<T>& got, const std::vector<Index>& rows) {
  if (got.rows() != A.rows() || got.cols() != U.cols()) return std::numeric_limits<double>::infinity();
  const Product reference = reference_product(lags, A, B, U, rows);
  return worst_ratio(pick(got, rows), reference.values, product_tolerance(engine, lags, A, B, U, rows, reference));
}

template <Real T>
double product_error(Engine engine, const LagWeights<T>& lags, const Matrix<T>& A, const Matrix<T>& B,
                     const Matrix<T>& U, const Matrix<T>& got) {
  return product_error(engine, lags, A, B, U, got, checked_rows(A.rows()));
}

}  // namespace nprf::test
