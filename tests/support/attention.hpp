// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/core/threads.hpp"
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

/// Sets the number of threads, and gives the former one back at its end.
class Threads {
 public:
  explicit Threads(Index threads) { set_num_threads(threads); }
  ~Threads() { set_num_threads(m_before); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  Index m_before = num_threads();
};

/// One a key: false is padding.
using Mask = Eigen::Array<bool, Eigen::Dynamic, 1>;

inline std::span<const bool> view(const Mask& mask) { return {mask.data(), static_cast<std::size_t>(mask.size())}; }

/// The keys that a mask leaves.
inline std::vector<Index> seen_keys(const Mask& mask) {
  std::vector<Index> keys;
  for (Index j = 0; j < mask.size(); ++j)
    if (mask[j]) keys.push_back(j);
  return keys;
}

/// How far attention may be from its twin, for each entry of y. With w_ij = (A_i . B_j) c_ij, c_ij = exp(b_ij - max b)
/// or 0 where query i does not see key j, the numerator N and the denominator D of row i are off by
///     dN = growth sum_j |A_i|.|B_j| c_ij |v_j|      dD = growth sum_j |A_i|.|B_j| c_ij
/// (fftw: by fft_noise over the slots), and y = N/D by (dN + |y| dD) / (|D| - dD). Features of both signs pay for their
/// cancellation in |D|. Infinite where dD exceeds half of |D|: nothing is known of such a row. Zero where no key is
/// seen. An empty mask leaves all keys.
template <class F, class P>
Matrix<double> attention_tolerance(const Attention<F, P>& attention, Engine engine, const Tokens<typename F::Scalar>& x,
                                   const Matrix<typename F::Scalar>& y, Index offset = 0, const Mask& mask = {}) {
  using T = typename F::Scalar;
  const std::vector<Index> keys = mask.size() == 0 ? all_rows(x.k.rows()) : seen_keys(mask);
  const Index n_q = x.q.rows(), n_k = static_cast<Index>(keys.size()), d_v = x.v.cols();
  Matrix<double> tolerance = Matrix<double>::Zero(n_q, d_v);
  if (n_q == 0 || n_k == 0) return tolerance;
  const Threads one(1);  // Eigen's would wait for each other longer than they work
  const P& position = attention.position();
  const Direction direction = attention.options().direction;
  const Matrix<T> v = pick(x.v, keys);
  const Matrix<T> A = attention.query_features(x.q), B = attention.key_features(pick(x.k, keys));  // (n_q,r) (n_k,r)

  // tokens outside of the axis, and where the others stand on it
  Index E = 0;
  if constexpr (PlacedPosition<P>) E = position.extra().rows();
  const auto slot = [&](Index token) {
    if constexpr (PlacedPosition<P>)
      return position.slot(token - E);
    else
      return token;
  };
  const Index q_slots = n_q > E ? slot(n_q - 1) + 1 : 0, k_slots = x.k.rows() > E ? slot(x.k.rows() - 1) + 1 : 0;
  const LagRange lags = reachable_lags(q_slots, k_slots, offset, direction);
  double largest = position.bias().max(lags);
  if constexpr (PlacedPosition<P>)
    if (E > 0) largest = std::max<double>(largest, position.extra().maxCoeff());
  if (largest == -std::numeric_limits<double>::infinity()) return tolerance;

  Matrix<double> w = A.template cast<double>() * B.template cast<double>().transpose();  // (n_q,n_k)
  Matrix<double> size = A.cwiseAbs().template cast<double>() * B.cwiseAbs().template cast<double>().transpose();
  for (Index i = 0; i < n_q; ++i)
    for (Index j = 0; j < n_k; ++j) {
      const Index key = keys[static_cast<std::size_t>(j)];
      const bool hidden = direction == Direction::causal && key > i + offset;
      const double c =
          hidden ? 0 : static_cast<double>(static_cast<T>(std::exp(bias_between(position, i, key, offset) - largest)));
      w(i, j) *= c;
      size(i, j) *= c;
    }
  const double growth = direct_growth<T>(A.cols(), n_k);
  Vector<double> D = w.rowwise().sum(), dD = growth * size.rowwise().sum();
  Matrix<double> dN = growth * (size * v.cwiseAbs().template cast<double>());  // (n_q,d_v)
  if (is_fft(engine) && lags.size() > 0) {
    LagWeights<T> c{lags.first + offset, Vector<T>(lags.size())};
    exp_weights(position.bias(), lags, largest, c.values.data());
    Matrix<T> As = Matrix<T>::Zero(q_slots, A.cols()), Bs = Matrix<T>::Zero(k_slots, B.cols());
    Matrix<T> U = Matrix<T>::Zero(k_slots, d_v + 1);
    for (Index i = E; i < n_q; ++i) As.row(slot(i)) = A.row(i);
    for (Index j = 0; j < n_k; ++j)
      if (const Index key = keys[static_cast<std::size_t>(j)]; key >= E) {
        Bs.row(slot(key)) = B.row(j);
        U.row(slot(key)) << v.row(j), T(1);
      }
    const Vector<double> noise = 2 * fft_margin * fft_noise(c, As, Bs, U);  // 2: see product_tolerance()
    const Vector<double> top = U.leftCols(d_v).cwiseAbs().colwise().maxCoeff().transpose().template cast<double>();
    for (Index i = E; i < n_q; ++i) {
      dD[i] += noise[slot(i)];
      dN.row(i) += noise[slot(i)] * top.transpose();
    }
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

/// The worst |central difference - gradient| over the gradient's largest entry, over all entries of x. On one thread:
/// calls are many and small, and no bit depends on it.
template <class Loss>
double difference_error(Matrix<double> x, const Matrix<double>& dx, Loss&& loss) {
  if (x.size() == 0) return dx.size() == 0 ? 0 : std::numeric_limits<double>::infinity();
  // differences of h lose eps / h to rounding and h^2 to curvature
  constexpr double h = 1e-5;
  const Threads one(1);
  Matrix<double> expected(x.rows(), x.cols());
  for (Index i = 0; i < x.size(); ++i) {
    double& entry = x.data()[i];
    const double value = entry;
    entry = value + h;
    const double above = loss(x);
    entry = value - h;
    expected.data()[i] = (above - loss(x)) / (2 * h);
    entry = value;
  }
  // a gradient that is zero throughout is compared with the loss's own size, about 1
  return worst_ratio(dx, expected, std::max(expected.cwiseAbs().maxCoeff(), 1e-2));
}

/// True if all entries are zero, of either sign; false for a NaN.
template <class X>
bool all_zero(const Eigen::MatrixBase<X>& x) {
  return (x.derived().array() == 0).all();
}

template <Real T>
bool same_bits(const Gradients<T>& a, const Gradients<T>& b) {
  return same_bits(a.queries, b.queries) && same_bits(a.keys, b.keys) && same_bits(a.values, b.values) &&
         same_bits(a.bias, b.bias) && same_bits(a.extra, b.extra);
}

/// A Relative table for all lags of n tokens, N(0,1) on a grid of 2^-10: adding a constant to it is exact.
template <Real T>
Vector<T> random_table(Index reach, std::uint64_t seed) {
  return (normal_vector<double>(2 * reach + 1, seed) * 1024).array().round().matrix().template cast<T>() / T(1024);
}

}  // namespace nprf::test
