// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/banded/tail_states.hpp"

#include <cmath>
#include <vector>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/product.hpp"

namespace nprf::test::toeplitz_banded_tail_states {

using toeplitz::ExponentialTail;
using toeplitz::Side;
using toeplitz::TailStates;
using toeplitz::TailTiles;
using toeplitz::Windows;

TEST_CASE("a tile sums very many keys in its tail, and errors do not grow with their number", "[toeplitz]") {
  const Index n_q = 3, n_k = 40011, r = 1, p = 1;
  const Matrix<float> A = Matrix<float>::Ones(n_q, r), B = Matrix<float>::Constant(n_k, r, 0.7f),
                      U = Matrix<float>::Ones(n_k, p);
  const MatrixView<float> a = A, b = B, u = U;
  Workspace workspace;
  const Team team(workspace);
  for (const Side side : {Side::before, Side::after}) {
    const bool before = side == Side::before;
    const LagWeights<float> c = exp_weights(LagBias<float>{}, {-n_k, n_k});
    const ExponentialTail<float> tail(side, c.view(), {n_q, n_k, r, p});
    // queries after all keys, or before them
    std::vector<Index> slots(static_cast<std::size_t>(n_q)), at_keys(static_cast<std::size_t>(n_k));
    for (Index i = 0; i < n_q; ++i) slots[static_cast<std::size_t>(i)] = before ? n_k + i : i;
    for (Index j = 0; j < n_k; ++j) at_keys[static_cast<std::size_t>(j)] = before ? j : n_q + 1 + j;
    const Slots queries{n_q, 0, slots.data()}, keys{n_k, 0, at_keys.data()};
    const TailTiles<float> at(tail, {a, b, u, queries, keys}, n_q);
    const Windows windows{at.tiles(), 1};
    TailStates<float> S(TailStates<float>::Of::keys, at, b, u, windows, team);
    S.fill(0, team);
    CHECK(std::abs(static_cast<double>(S.at(0)(0, 0)) / (0.7f * static_cast<double>(n_k)) - 1) <= 20 * epsilon<float>);
  }
}

}  // namespace nprf::test::toeplitz_banded_tail_states
