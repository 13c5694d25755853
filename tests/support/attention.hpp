// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/attention/attention.hpp"
#include "support/product.hpp"
#include "support/random.hpp"

namespace nprf::test {

/// Any bias as a position of its own: what a user may write.
template <Real T>
struct HeldPosition {
  using Scalar = T;
  const LagBias<T>& bias() const { return held; }
  LagBias<T> held;
};

template <Real T>
struct Tokens {
  Matrix<T> q, k, v;  // (n_q,d) (n_k,d) (n_k,d_v)
};

template <Real T>
Tokens<T> random_tokens(Index n_q, Index n_k, Index d, Index d_v, std::uint64_t seed = 1) {
  return {normal<T>(n_q, d, 3 * seed), normal<T>(n_k, d, 3 * seed + 1), normal<T>(n_k, d_v, 3 * seed + 2)};
}

/// How far attention may be from its twin, for each entry of y. With w_ij = (A_i . B_j) c[j-i], the numerator N and the
/// denominator D of row i are off by
///     dN = growth sum_j |A_i|.|B_j| c[j-i] |v_j|      dD = growth sum_j |A_i|.|B_j| c[j-i]
/// (fftw: by fft_noise), and y = N/D by (dN + |y| dD) / (|D| - dD). Features of both signs pay for their cancellation
/// in |D|. Infinite where dD exceeds half of |D|: nothing is known of such a row. Zero where no key is seen.
template <class F, class P>
Matrix<double> attention_tolerance(const Attention<F, P>& attention, Engine engine, const Tokens<typename F::Scalar>& x,
                                   const Matrix<typename F::Scalar>& y, Index offset = 0) {
  using T = typename F::Scalar;
  const Index n_q = x.q.rows(), n_k = x.k.rows(), d_v = x.v.cols();
  Matrix<double> tolerance = Matrix<double>::Zero(n_q, d_v);
  if (n_q == 0 || n_k == 0) return tolerance;
  const Matrix<T> A = attention.query_features(x.q), B = attention.key_features(x.k);
  LagWeights<T> c =
      exp_weights(attention.position().bias(), reachable_lags(n_q, n_k, offset, attention.options().direction));
  c.first += offset;

  Matrix<double> w = A.template cast<double>() * B.template cast<double>().transpose();  // (n_q,n_k)
  Matrix<double> size = A.cwiseAbs().template cast<double>() * B.cwiseAbs().template cast<double>().transpose();
  for (Index i = 0; i < n_q; ++i)
    for (Index j = 0; j < n_k; ++j) {
      w(i, j) *= static_cast<double>(c[j - i]);
      size(i, j) *= static_cast<double>(c[j - i]);
    }
  const double growth = direct_growth<T>(A.cols(), n_k);
  Vector<double> D = w.rowwise().sum(), dD = growth * size.rowwise().sum();
  Matrix<double> dN = growth * (size * x.v.cwiseAbs().template cast<double>());  // (n_q,d_v)
  if (engine == Engine::fftw) {
    Matrix<T> U(n_k, d_v + 1);
    U << x.v, Vector<T>::Ones(n_k);
    const Vector<double> noise = 2 * fft_margin * fft_noise(c, A, B, U);  // 2: see product_tolerance()
    dD += noise;
    for (Index p = 0; p < d_v; ++p) dN.col(p) += noise * static_cast<double>(x.v.col(p).cwiseAbs().maxCoeff());
  }
  for (Index i = 0; i < n_q; ++i) {
    if (size.row(i).maxCoeff() == 0) continue;
    const bool known = dD[i] < std::abs(D[i]) / 2;
    for (Index p = 0; p < d_v; ++p)
      tolerance(i, p) = known ? (dN(i, p) + std::abs(static_cast<double>(y(i, p))) * dD[i]) / (std::abs(D[i]) - dD[i])
                              : std::numeric_limits<double>::infinity();
  }
  return tolerance;
}

/// A Relative table for all lags of n tokens, N(0,1) on a grid of 2^-10: adding a constant to it is exact.
template <Real T>
Vector<T> random_table(Index reach, std::uint64_t seed) {
  return (normal_vector<double>(2 * reach + 1, seed) * 1024).array().round().matrix().template cast<T>() / T(1024);
}

}  // namespace nprf::test
