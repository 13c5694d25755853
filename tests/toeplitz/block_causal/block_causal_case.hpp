// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/toeplitz/block_causal/engine.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/gradient_sizes.hpp"
#include "toeplitz/in_slots.hpp"

namespace nprf::test {

inline constexpr auto make_block_causal = make_product(Engine::block_causal);

/// N(0,1) weights for the lags that n_q queries and n_k keys reach, up to a last one.
template <class T>
LagWeights<T> weights_up_to(Index last, Index n_q, Index n_k) {
  LagWeights<T> c = random_weights<T>(n_q, n_k, 4);
  for (Index lag = std::max(last + 1, c.first); lag <= c.last(); ++lag) c.values[lag - c.first] = 0;
  return c;
}

/// Factors of a product whose weights end at a last lag, and the results of the engine.
template <class T>
struct BlockCausalCase {
  BlockCausalCase(Index n_q, Index n_k, Index r, Index p, Index last_lag = 0)
      : A(normal<T>(n_q, r, 1)),
        B(normal<T>(n_k, r, 2)),
        U(normal<T>(n_k, p, 3)),
        G(normal<T>(n_q, p, 5)),
        c(weights_up_to<T>(last_lag, n_q, n_k)) {}

  ProductShape shape() const { return {A.rows(), B.rows(), A.cols(), U.cols()}; }

  template <class MakeEngine = decltype(make_block_causal)>
  Matrix<T> contract(MakeEngine make = make_block_causal) const {
    Workspace workspace;
    const Team team(workspace);
    const MatrixView<T> a = A, b = B, u = U;
    Matrix<T> Y = Matrix<T>::Constant(A.rows(), U.cols(), T(17));
    make(c.view(), shape(), team).contract({a, b, u, Slots{A.rows()}, Slots{B.rows()}, exponents()}, Y, team);
    return Y;
  }

  toeplitz::Gradients<T> gradients() const {
    Workspace workspace;
    const Team team(workspace);
    const MatrixView<T> a = A, b = B, u = U, g = G;
    toeplitz::Gradients<T> d(shape());
    d.dA.setConstant(17), d.dB.setConstant(17), d.dU.setConstant(17), d.dc.setConstant(17);
    make_block_causal(c.view(), shape(), team)
        .gradients({a, b, u, Slots{A.rows()}, Slots{B.rows()}, exponents()}, g, {d.dA, d.dB, d.dU, d.dc}, {}, team);
    return d;
  }

  /// The same with sizes, and a column of ones.
  SizedGradients<T> gradients(const Vector<T>& sizes) const {
    Workspace workspace;
    const Team team(workspace);
    const MatrixView<T> a = A, b = B, u = U;
    const toeplitz::BlockCausalEngine<T> engine(c.view(), shape(), team);
    return sized_gradients(engine, shape(), {a, b, u, Slots{A.rows()}, Slots{B.rows()}, exponents()}, G, &sizes, team);
  }

  const double* exponents() const { return e.size() > 0 ? e.data() : nullptr; }

  Matrix<T> A, B, U, G;
  LagWeights<T> c;
  Vector<double> e;  // one for each key, or empty
};

/// Calls use(log_scales) for n keys: ranges that exceed that of one common factor, in all orders.
template <class Use>
void for_each_spread(Index n, Use&& use) {
  Vector<double> e(n);
  for (Index j = 0; j < n; ++j) e[j] = -200 + 400.0 * static_cast<double>(j) / static_cast<double>(n);
  use("rising", e);
  use("falling", Vector<double>(e.reverse()));
  const Vector<double> draw = normal_vector<double>(n, 7);
  double at = 0;
  for (Index j = 0; j < n; ++j) e[j] = at += 5 * draw[j];
  use("a random walk", e);
  use("independent", Vector<double>(60 * draw));
}

}  // namespace nprf::test
