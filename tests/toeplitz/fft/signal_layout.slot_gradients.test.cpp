// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/fft/signal_layout.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/gradient_sizes.hpp"
#include "toeplitz/in_slots.hpp"

namespace nprf::test::toeplitz_fft_slot_gradients {

using toeplitz::SlotGradients;

namespace {

constexpr Index r = 3, p = 2;

// Tokens in slots, and storage for their gradients.
template <class T>
struct Case {
  Case(std::vector<Index> q_at, std::vector<Index> k_at)
      : q(std::move(q_at)),
        k(std::move(k_at)),
        A(normal<T>(size(q), r, 1)),
        B(normal<T>(size(k), r, 2)),
        U(normal<T>(size(k), p, 3)),
        rows(normal_vector<T>(size(q) + 1, 4)),  // never null
        to({size(q), size(k), r, p}, 11) {}

  static Index size(const std::vector<Index>& at) { return static_cast<Index>(at.size()); }

  // use(slots, x) for the factors, with sizes or without
  template <class Use>
  void with(const toeplitz::GradientSizes<T>& sizes, Index n_q, Index n_k, Index first_q, Index first_k,
            const Team& team, Use&& use) {
    const MatrixView<T> a = A, b = B, u = U;
    toeplitz::GradientRefs<T> out{to.d.dA, to.d.dB, to.d.dU, to.d.dc};
    SlotGradients<T> slots({a, b, u, Slots{size(q), 0, q.data()}, Slots{size(k), 0, k.data()}}, {n_q, first_q},
                           {n_k, first_k}, out, sizes, team);
    use(slots);
  }
  toeplitz::GradientSizes<T> sizes() { return {rows.data(), to.keys.data(), to.lags.data()}; }

  std::vector<Index> q, k;
  Matrix<T> A, B, U;
  Vector<T> rows;
  SizedGradients<T> to;
};

}  // namespace

TEMPLATE_TEST_CASE("gradients of tokens without gaps are in the caller's storage", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  const Team team(workspace);
  Case<T> x({0, 1, 2, 3}, {0, 1, 2});
  const auto sizes = x.sizes();
  x.with(sizes, 4, 3, 0, 0, team, [&](SlotGradients<T>& slots) {
    toeplitz::GradientRefs<T> d = slots.refs();
    CHECK((d.dA.data() == x.to.d.dA.data() && d.dB.data() == x.to.d.dB.data() && d.dU.data() == x.to.d.dU.data()));
    CHECK((d.dc.data() == x.to.d.dc.data() && d.dc.size() == 11));
    const toeplitz::GradientSizes<T> of = slots.sizes();
    CHECK((of.rows == sizes.rows && of.keys == sizes.keys && of.lags == sizes.lags));
    d.dA.setConstant(5);
    slots.copy_back(team);
    CHECK((x.to.d.dA.array() == 5).all());
    CHECK((x.to.d.dB.array() == 17).all());
    CHECK((x.to.keys.array() == 17).all());
  });
}

TEMPLATE_TEST_CASE("sizes of tokens with gaps are in their slots, with zeros in the gaps", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  {
    const Workspace::Scope dirty(workspace);
    std::fill_n(workspace.take<T>(1000), 1000, T(17));
  }
  const Team team(workspace);
  Case<T> x({1, 4, 5, 9}, {0, 2});
  x.with(x.sizes(), 12, 3, 0, 0, team, [&](SlotGradients<T>& slots) {
    Vector<T> expected = Vector<T>::Zero(12);
    for (Index i = 0; i < 4; ++i) expected[x.q[static_cast<std::size_t>(i)]] = x.rows[i];
    CHECK(Vector<T>::Map(slots.sizes().rows, 12) == expected);
  });
}

}  // namespace nprf::test::toeplitz_fft_slot_gradients
