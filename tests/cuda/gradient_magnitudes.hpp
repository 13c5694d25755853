// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <span>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/centred.hpp"

namespace nprf::test {

/// The largest magnitude of each gradient, with all terms of its sum replaced by their absolute values. Rounding errors
/// are relative to it.
struct GradientMagnitudes {
  double queries, keys, values, bias, extra = 0;
};

/// A bound of |dphi_f/dx| for a row x of queries, or of keys, relative to phi_f, or to the largest feature of the row
/// if features have both signs.
template <class F, class Row>
double slope_of(const F& map, const Row& x, bool queries) {
  const auto largest = [](const auto& a) { return static_cast<double>(a.cwiseAbs().maxCoeff()); };
  if constexpr (requires { map.constants(); }) {
    const auto& [nu, mu, A, A_inverse] = map.constants();
    const auto& axes = queries ? A : A_inverse;
    const auto& mean = queries ? nu : mu;
    const auto& linear = queries ? mu : nu;
    const Matrix<typename F::Scalar> z = (x - mean.transpose()) * axes.transpose();
    return slope_of(map.features(), z, queries) * static_cast<double>(axes.cwiseAbs().colwise().sum().maxCoeff()) +
           largest(linear);
  } else if constexpr (requires { map.projection(); }) {
    return largest(map.projection()) + largest(x);
  } else if constexpr (requires { map.terms(); }) {
    const double curvature = map.terms().curvature.size() > 0 ? largest(map.terms().curvature) : 0;
    return 1 + (std::numbers::sqrt2 + curvature) * largest(x);
  } else {
    return 1;
  }
}

/// Computed from the absolute values of Y = ((A B^T) o C) [V 1] and G = dL/dY, with |dphi/dx| <= phi (|w| + |x|).
template <class F, class P>
GradientMagnitudes gradient_magnitudes(const Attention<F, P>& attention, const Matrix<typename F::Scalar>& q,
                                       const Matrix<typename F::Scalar>& k, const Matrix<typename F::Scalar>& v,
                                       const Matrix<typename F::Scalar>& dy, Index offset) {
  using T = typename F::Scalar;
  const F& map = attention.features();
  const Index n_q = q.rows(), n_k = k.rows(), d_v = v.cols();
  const auto factors = [&](const Matrix<T>& x) {
    return attention.options().normalization.template row_scale<T>(x, estimates_exp<F>());
  };
  const Vector<T> q_factors = factors(q), k_factors = factors(k);
  const Matrix<double> A = map.queries(q_factors.asDiagonal() * q).template cast<double>(),
                       B = map.keys(k_factors.asDiagonal() * k).template cast<double>();
  const auto& position = attention.position();
  const bool causal = attention.options().direction == Direction::causal;
  Matrix<double> C(n_q, n_k);  // first b
  for (Index i = 0; i < n_q; ++i)
    for (Index j = 0; j < n_k; ++j)
      C(i, j) = causal && j - i - offset > 0 ? -std::numeric_limits<double>::infinity()
                                             : bias_between(position, i, j, offset);
  C = (C.array() - C.maxCoeff()).exp().matrix().eval();
  const Eigen::ArrayXd D = ((A * B.transpose()).cwiseProduct(C)).rowwise().sum().cwiseAbs();
  const Matrix<double> S = (A.cwiseAbs() * B.cwiseAbs().transpose()).cwiseProduct(C),
                       V = v.template cast<double>().cwiseAbs(), dY = dy.template cast<double>().cwiseAbs();
  Matrix<double> G(n_q, d_v + 1), U(n_k, d_v + 1);
  U << V, Eigen::VectorXd::Ones(n_k);
  G.leftCols(d_v) = (dY.array().colwise() / D).matrix();
  G.col(d_v) = (dY.cwiseProduct(S * V).rowwise().sum().array() / D / D).matrix();
  G = (D == 0).replicate(1, d_v + 1).select(0, G);
  const Matrix<double> W = (G * U.transpose()).cwiseProduct(C);  // (n_q,n_k)

  const auto of_tokens = [&](const Matrix<double>& dphi, const Matrix<double>& phi, const Vector<T>& factor,
                             const Matrix<T>& x, bool queries) {
    double largest = 0;
    for (Index i = 0; i < phi.rows(); ++i) {
      const double slope = slope_of(map, Matrix<T>(factor[i] * x.row(i)), queries);
      Vector<double> size = phi.row(i).cwiseAbs();
      if constexpr (!estimates_exp<F>())
        size = size.cwiseMax(1);
      else if (!is_positive<F>())
        size.setConstant(size.maxCoeff());
      largest = std::max(largest, static_cast<double>(factor[i]) * slope * dphi.row(i).cwiseAbs().dot(size));
    }
    return largest;
  };
  const Matrix<double> of_pairs = W.cwiseProduct(A.cwiseAbs() * B.cwiseAbs().transpose());
  Matrix<double> parameters;
  double extra = 0;
  if constexpr (PlacedPosition<P>) {
    const Index E = position.extra().rows(), slots = position.slot(n_q - E - 1) + 1;
    std::vector<double> db(static_cast<std::size_t>(2 * slots - 1));
    for (Index i = E; i < n_q; ++i)
      for (Index j = E; j < n_k; ++j)
        db[static_cast<std::size_t>(position.slot(j - E) - position.slot(i - E) + slots - 1)] += of_pairs(i, j);
    position.gradient(1 - slots, db, parameters);
    for (Index e = 0; e < E; ++e)  // the sums over cells, and single pairs
      extra = std::max({extra, of_pairs.row(e).tail(n_k - E).sum(), of_pairs.col(e).tail(n_q - E).sum(),
                        of_pairs.row(e).head(E).maxCoeff()});
  } else {
    const LagRange lags = reachable_lags(n_q, n_k, offset, attention.options().direction);
    std::vector<double> db(static_cast<std::size_t>(lags.size()));
    for (Index i = 0; i < n_q; ++i)
      for (Index j = 0; j < n_k && j - i - offset <= lags.last; ++j)
        db[static_cast<std::size_t>(j - i - offset - lags.first)] += of_pairs(i, j);
    position.gradient(lags.first, db, parameters);
  }
  return {of_tokens(W * B.cwiseAbs(), A, q_factors, q, true),
          of_tokens(W.transpose() * A.cwiseAbs(), B, k_factors, k, false), (S.transpose() * G).leftCols(d_v).maxCoeff(),
          parameters.size() == 0 ? 0 : parameters.cwiseAbs().maxCoeff(), extra};
}

}  // namespace nprf::test
