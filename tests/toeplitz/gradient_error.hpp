// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "nprf/toeplitz/factors.hpp"
#include "support/product.hpp"

/// The tolerances of the gradients of each engine.
namespace nprf::test {

template <class T>
LagWeights<T> transposed(const LagWeights<T>& c) {
  return {-c.last(), c.values.reverse(), {}, c.max_deviation};
}

/// dc by a plain loop in double.
template <class T>
Vector<double> lag_sums(const Matrix<T>& A, const Matrix<T>& B, const Matrix<T>& U, const Matrix<T>& G) {
  const auto wide = [](const Matrix<T>& x) { return Matrix<double>(x.template cast<double>()); };
  const Matrix<double> term = (wide(A) * wide(B).transpose()).cwiseProduct(wide(G) * wide(U).transpose());
  Vector<double> sums = Vector<double>::Zero(A.rows() + B.rows() - 1);
  for (Index i = 0; i < A.rows(); ++i)
    for (Index j = 0; j < B.rows(); ++j) sums[j - i + A.rows() - 1] += term(i, j);
  return sums;
}

/// The tolerance of dc.
template <class T>
Vector<double> lag_tolerance(Engine engine, const Matrix<T>& A, const Matrix<T>& B, const Matrix<T>& U,
                             const Matrix<T>& G) {
  const Index n_q = A.rows(), n_k = B.rows();
  if (!is_fft(engine))
    return direct_growth<T>(A.cols() + U.cols(), std::min(n_q, n_k)) *
           lag_sums<T>(A.cwiseAbs(), B.cwiseAbs(), U.cwiseAbs(), G.cwiseAbs());
  // the error bound of a correlation is eps sqrt(log N) |w| |x| at every lag, for each pair of columns w = A_r o G_p, x
  // = B_r o U_p
  const auto wide = [](const auto& column) { return column.template cast<double>(); };
  double bound = 0;
  for (Index r = 0; r < A.cols(); ++r)
    for (Index p = 0; p < U.cols(); ++p)
      bound += wide(A.col(r)).cwiseProduct(wide(G.col(p))).norm() * wide(B.col(r)).cwiseProduct(wide(U.col(p))).norm();
  return Vector<double>::Constant(
      n_q + n_k - 1, fft_margin * epsilon<T> * std::sqrt(std::log2(static_cast<double>(n_q + n_k))) * bound);
}

/// The largest ratio of |dc - its sum in double| to its tolerance.
template <class T>
double lag_error(Engine engine, const Matrix<T>& A, const Matrix<T>& B, const Matrix<T>& U, const Matrix<T>& G,
                 const Vector<T>& got) {
  return worst_ratio(got, lag_sums(A, B, U, G), lag_tolerance(engine, A, B, U, G));
}

/// The largest ratio of error to tolerance of all four gradients: each is the product with the roles exchanged.
template <class T>
double gradients_error(Engine engine, const LagWeights<T>& c, const Matrix<T>& A, const Matrix<T>& B,
                       const Matrix<T>& U, const Matrix<T>& G, const toeplitz::Gradients<T>& d) {
  return std::max({product_error(engine, c, G, U, B, d.dA), product_error(engine, transposed(c), U, G, A, d.dB),
                   product_error(engine, transposed(c), B, A, G, d.dU), lag_error(engine, A, B, U, G, d.dc)});
}

template <class T>
bool same_bits(const toeplitz::Gradients<T>& a, const toeplitz::Gradients<T>& b) {
  return same_bits(a.dA, b.dA) && same_bits(a.dB, b.dB) && same_bits(a.dU, b.dU) &&
         same_bits(Matrix<T>(a.dc), Matrix<T>(b.dc));
}

}  // namespace nprf::test
