// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/recompute/recomputed_gradients.hpp"

#include "nprf/core/long_sums.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"
#include "toeplitz/in_slots.hpp"

// what is recomputed is tested by checked gradients, and by the gradients of attention
namespace nprf::test::toeplitz_recompute_recomputed_gradients {

using toeplitz::PairWeights;
using toeplitz::RecomputedGradients;

TEMPLATE_TEST_CASE("recomputed gradients: errors do not grow with the number of keys", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n_q = 7, n_k = 50 * chunk_keys + 5;
  const Matrix<T> A = Matrix<T>::Ones(n_q, 1), B = Matrix<T>::Ones(n_k, 1), U = Matrix<T>::Constant(n_k, 1, T(0.1)),
                  G = Matrix<T>::Ones(n_q, 1);
  const LagWeights<T> c{-(n_q - 1), Vector<T>::Ones(n_q + n_k - 1)};
  Workspace workspace;
  const Team team(workspace);
  const MatrixView<T> a = A, b = B, u = U, g = G;
  const toeplitz::Factors<T> factors{a, b, u, Slots{n_q}, Slots{n_k}};
  Matrix<T> dA(n_q, 1), dB(n_k, 1), dU(n_k, 1);
  Vector<T> dc(0);
  toeplitz::GradientRefs<T> out{dA, dB, dU, dc};
  const PairWeights<T> weights(c.view(), factors, team);
  RecomputedGradients<T>(weights, factors, g, out, team).queries(all_rows(n_q));
  // equal terms, by tiles of 64 keys
  const double roundings = 64 + static_cast<double>(chunk_keys) / 64 + 2;
  const double exact = static_cast<double>(T(0.1)) * static_cast<double>(n_k);
  CHECK(worst_ratio(dA, Matrix<double>::Constant(n_q, 1, exact), epsilon<T> / 2 * roundings * exact) <= 1);
}

}  // namespace nprf::test::toeplitz_recompute_recomputed_gradients
