// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "support/catch.hpp"
#include "support/features_tolerance.hpp"
#include "support/held_position.hpp"
#include "support/instances.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "support/threads.hpp"

namespace nprf::test {

template <Real T>
struct Tokens {
  Matrix<T> q, k, v;  // (n_q,d) (n_k,d) (n_k,d_v)
};

template <Real T>
Tokens<T> random_tokens(Index n_q, Index n_k, Index d, Index d_v, std::uint64_t seed = 1) {
  return {normal<T>(n_q, d, 3 * seed), normal<T>(n_k, d, 3 * seed + 1), normal<T>(n_k, d_v, 3 * seed + 2)};
}

/// y, and the gradients of L = <dy, y>.
template <Real T>
struct Passes {
  Matrix<T> y;
  Gradients<T> g;
  Report report;  // of the forward pass
};

template <class F, class P, class T = typename F::Scalar>
Passes<T> both_passes(const Attention<F, P>& attention, const Tokens<typename F::Scalar>& x,
                      const Matrix<typename F::Scalar>& dy, CallOptions call, Saved<T>& saved) {
  Passes<T> out;
  call.report = &out.report;
  out.y = attention.forward(x.q, x.k, x.v, saved, call);
  out.g = attention.backward(saved, dy);
  return out;
}
template <class F, class P>
Passes<typename F::Scalar> both_passes(const Attention<F, P>& attention, const Tokens<typename F::Scalar>& x,
                                       const Matrix<typename F::Scalar>& dy, const CallOptions& call = {}) {
  Saved<typename F::Scalar> saved;
  return both_passes(attention, x, dy, call, saved);
}

/// The default tolerance of CallOptions.
template <Real T>
constexpr double default_tolerance = sizeof(T) == sizeof(float) ? 1e-4 : 1e-10;

/// One entry for each key; false means padding.
using Mask = Eigen::Array<bool, Eigen::Dynamic, 1>;

inline std::span<const bool> view(const Mask& mask) { return {mask.data(), static_cast<std::size_t>(mask.size())}; }

/// The keys whose entry of the mask is true.
inline std::vector<Index> unmasked_keys(const Mask& mask) {
  std::vector<Index> keys;
  for (Index j = 0; j < mask.size(); ++j)
    if (mask[j]) keys.push_back(j);
  return keys;
}

/// The tolerance of each entry of y relative to the reference attention. Let c_ij = exp(b_ij - max b), or 0 if query i
/// does not attend to key j. The errors of the numerator N and the denominator D of row i are at most
///     dN = growth sum_j |A_i|.|B_j| c_ij |v_j|      dD = growth sum_j |A_i|.|B_j| c_ij
/// plus fft_error_bound over the slots for engines that use an FFT. The error of y = N/D is at most (dN + |y| dD) /
/// (|D| - dD). For features of both signs |D| is small where terms cancel, which increases the tolerance. It is
/// infinite where dD exceeds half of |D|, and zero for rows that attend to no key. An empty mask excludes no key.
template <class F, class P>
Matrix<double> attention_tolerance(const Attention<F, P>& attention, Engine engine, const Tokens<typename F::Scalar>& x,
                                   const Matrix<typename F::Scalar>& y, Index offset = 0, const Mask& mask = {}) {
  using T = typename F::Scalar;
  const std::vector<Index> keys = mask.size() == 0 ? all_rows(x.k.rows()) : unmasked_keys(mask);
  if (x.q.rows() == 0 || keys.empty()) return Matrix<double>::Zero(x.q.rows(), x.v.cols());
  return features_tolerance<T>(attention.query_features(x.q), attention.key_features(pick(x.k, keys)), keys, x.v, y,
                               attention.position(), attention.options().direction, engine, offset);
}

/// The largest |central difference - gradient| over all entries of x, relative to the largest entry of the gradient. It
/// uses one thread, because there are many small calls; results do not depend on the number of threads.
template <class Loss>
double difference_error(Matrix<double> x, const Matrix<double>& dx, Loss&& loss) {
  if (x.size() == 0) return dx.size() == 0 ? 0 : std::numeric_limits<double>::infinity();
  // a central difference has a rounding error of eps / h and a truncation error of h^2
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
  // a gradient that is zero everywhere is compared with the magnitude of the loss, about 1
  return worst_ratio(dx, expected, std::max(expected.cwiseAbs().maxCoeff(), 1e-2));
}

/// Checks that the gradients of L = <dy, y> by queries, keys, values and biases are central differences, where make(b)
/// is the attention with the biases b. Returns the results.
template <class Make>
Passes<double> check_differences(const Make& make, const Matrix<double>& biases, const Tokens<double>& x,
                                 const Matrix<double>& dy, const CallOptions& call = {}) {
  const auto attention = make(biases);
  const auto loss = [&](const auto& by, const Tokens<double>& at) {
    return by(at.q, at.k, at.v, call).cwiseProduct(dy).sum();
  };
  Passes<double> out = both_passes(attention, x, dy, call);
  CHECK(difference_error(x.q, out.g.queries, [&](const auto& q) { return loss(attention, {q, x.k, x.v}); }) <= 1e-6);
  CHECK(difference_error(x.k, out.g.keys, [&](const auto& k) { return loss(attention, {x.q, k, x.v}); }) <= 1e-6);
  CHECK(difference_error(x.v, out.g.values, [&](const auto& v) { return loss(attention, {x.q, x.k, v}); }) <= 1e-6);
  CHECK(difference_error(biases, out.g.bias, [&](const auto& b) { return loss(make(b), x); }) <= 1e-6);
  return out;
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

/// The largest difference of two calls' gradients, each relative to the largest entry of its kind, or to `least` if
/// that is larger; infinity for a NaN or another shape.
template <Real T, Real S>
double gradients_difference(const Gradients<T>& got, const Gradients<S>& expected, double least = 0) {
  const auto of = [&](const Matrix<T>& a, const Matrix<S>& b) {
    return worst_ratio(a, b, b.size() == 0 ? 1 : std::max(static_cast<double>(b.cwiseAbs().maxCoeff()), least));
  };
  return std::max({of(got.queries, expected.queries), of(got.keys, expected.keys), of(got.values, expected.values),
                   of(got.bias, expected.bias), of(got.extra, expected.extra)});
}

template <Real T>
bool same_bits(const Passes<T>& a, const Passes<T>& b) {
  return same_bits(a.y, b.y) && same_bits(a.g, b.g);
}

/// A table of a relative position with N(0,1) entries rounded to multiples of 2^-10, so that adding a constant is
/// exact.
template <Real T>
Vector<T> random_table(Index reach, std::uint64_t seed) {
  return (normal_vector<double>(2 * reach + 1, seed) * 1024).array().round().matrix().template cast<T>() / T(1024);
}

}  // namespace nprf::test
