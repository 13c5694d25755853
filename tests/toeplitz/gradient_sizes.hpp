// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/gradient_error.hpp"
#include "toeplitz/in_slots.hpp"

/// FFT engines' gradients with what those of keys and lags are sums of (GradientSizes), beside obvious loops.
namespace nprf::test {

template <class T>
struct SizedGradients {
  explicit SizedGradients(const ProductShape& tokens, Index lag_count)
      : d(tokens), keys(Vector<T>::Constant(tokens.n_k, 17)), lags(Vector<T>::Constant(lag_count, 17)) {
    d.dc = Vector<T>::Constant(lag_count, 17);
    for (Matrix<T>* each : {&d.dA, &d.dB, &d.dU}) each->setConstant(17);
  }

  toeplitz::Gradients<T> d;
  Vector<T> keys, lags;
};

/// Those of an engine over slots; without sizes if there are none, though there may be no query.
template <class T, class E>
SizedGradients<T> sized_gradients(const E& engine, const ProductShape& span, const toeplitz::Factors<T>& x,
                                  const Matrix<T>& G, const std::type_identity_t<Vector<T>>* sizes, const Team& team) {
  SizedGradients<T> got({x.A.rows(), x.B.rows(), x.A.cols(), x.U.cols()}, span.n_q + span.n_k - 1);
  const MatrixView<T> g = G;
  toeplitz::GradientSizes<T> to;
  const T none = 0;
  if (sizes) to = {sizes->size() > 0 ? sizes->data() : &none, got.keys.data(), got.lags.data()};
  engine.gradients(x, g, {got.d.dA, got.d.dB, got.d.dU, got.d.dc}, to, team);
  return got;
}

/// Sizes for the last column of G: no smaller than it is, some of them zero with it.
template <class T>
Vector<T> sizes_of(Matrix<T>& G, T factor) {
  if (G.rows() == 0) return {};
  for (Index i = 3; i < G.rows(); i += 10) G(i, G.cols() - 1) = 0;
  Vector<T> sizes = factor * (G.rightCols(1) + normal<T>(G.rows(), 1, 8)).cwiseAbs();
  sizes = sizes.cwiseMax(G.rightCols(1).cwiseAbs());
  for (Index i = 3; i < G.rows(); i += 10) sizes[i] = 0;
  return sizes;
}

/// Checks both sizes, and that they leave the gradients as they are; x's last column of U counts as ones. `factor` is
/// how far sizes are above the last column of G.
template <class T, class MakeEngine>
void check_sizes(Engine name, const InSlots<T>& x, MakeEngine&& make, const Team& team, T factor = 1) {
  INFO(x.name() << ", sizes of " << factor);
  const Index n_q = x.span.n_q, n_k = x.span.n_k, last = x.U.cols() - 1;
  Matrix<T> U = x.U, G = x.G;
  if (U.rows() > 0) U.col(last).setOnes();
  const Vector<T> sizes = sizes_of(G, factor);
  SizedGradients<T> got({}, 0), without({}, 0);
  {
    const Workspace::Scope scope(team.workspace());
    const auto engine = make(x.c.view(), x.span, team);
    const MatrixView<T> a = x.A, b = x.B, u = U;
    const toeplitz::Factors<T> factors{a, b, u, x.queries, x.keys};
    got = sized_gradients(engine, x.span, factors, G, &sizes, team);
    without = sized_gradients(engine, x.span, factors, G, nullptr, team);
  }
  const Matrix<T> A = spread(x.A, x.queries, n_q), B = spread(x.B, x.keys, n_k);
  const Matrix<T> S = spread(Matrix<T>(sizes), x.queries, n_q), keys = spread(Matrix<T>(got.keys), x.keys, n_k);
  U = spread(U, x.keys, n_k), G = spread(G, x.queries, n_q);
  const Matrix<T> ones = U.rightCols(1);
  const LagWeights<T> transposed_c = transposed(x.c);

  // keys_j = sum_i c[j-i] (A_i.B_j) s_i
  CHECK(product_error(name, transposed_c, B, A, S, keys) <= 1);
  // lags_l = sum over j - i = l of (A_i.B_j) s_i, by block_causal for lags that have a weight
  if (name == Engine::block_causal)
    for (Index lag = -(n_q - 1); lag < n_k; ++lag) {
      if (x.c.support().first <= lag && lag <= x.c.support().last) continue;
      T& of = got.lags[lag + n_q - 1];
      CHECK(of == 0);
      for (Index i = std::max<Index>(-lag, 0); i < std::min(n_q, n_k - lag); ++i)
        of += A.row(i).dot(B.row(i + lag)) * S(i, 0) * ones(i + lag, 0);
    }
  CHECK(lag_error(name, A, B, ones, S, got.lags) <= 1);

  // the last column of G shares its rounding with the sizes in dB, dU and dc, and in dA not
  Matrix<T> shared = G;
  shared.col(last) = S;
  const auto same = [&](const LagWeights<T>& c, const Matrix<T>& X, const Matrix<T>& Y, const Matrix<T>& Z,
                        const Matrix<T>& with_them, const Matrix<T>& without_them) {
    const std::vector<Index> rows = all_rows(X.rows());
    return worst_ratio(with_them, without_them,
                       product_tolerance(name, c, X, Y, Z, rows, reference_product(c, X, Y, Z, rows))) <= 1;
  };
  const auto in_q = [&](const Matrix<T>& X) { return spread(X, x.queries, n_q); };
  const auto in_k = [&](const Matrix<T>& X) { return spread(X, x.keys, n_k); };
  CHECK(same(x.c, G, U, B, in_q(got.d.dA), in_q(without.d.dA)));
  CHECK(same(transposed_c, U, shared, A, in_k(got.d.dB), in_k(without.d.dB)));
  CHECK(same(transposed_c, B, A, shared, in_k(got.d.dU), in_k(without.d.dU)));
  CHECK(worst_ratio(got.d.dc, without.d.dc, lag_tolerance(name, A, B, U, shared)) <= 1);
  CHECK((without.keys.array() == 17).all());
  CHECK((without.lags.array() == 17).all());
}

/// The same for tokens with and without gaps, and for numbers of columns and features around what registers hold.
template <class T, class MakeEngine>
void check_sizes(Engine name, MakeEngine&& make, Index n_q, Index n_k) {
  constexpr Index W = fft::lane_count<T>;
  std::vector<Workspace> workspaces(2);
  const Team team(workspaces);
  with_gaps<T>([&](const InSlots<T>& x) { check_sizes(name, x, make, team); });
  for (const Index p : {Index{1}, Index{2}, Index{3}, W, W + 1, 2 * W, 2 * W + 1, 2 * W + 2, 2 * W + 3})
    for (const Index r : {Index{1}, W - 1, W, W + 1})
      check_sizes(name, InSlots<T>(n_q, n_k, Slots{n_q}, Slots{n_k}, r, p), make, team);
  check_sizes(name, InSlots<T>(n_q, n_k, Slots{n_q}, Slots{n_k}, 2, 1), make, team, T(0x1p18));
  check_sizes(name, InSlots<T>(n_q, n_k, Slots{n_q}, Slots{n_k}, W + 1, 2), make, team, T(0x1p18));
}

}  // namespace nprf::test
