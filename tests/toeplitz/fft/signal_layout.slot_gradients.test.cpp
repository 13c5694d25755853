// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/fft/signal_layout.hpp"

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

// numbers that differ in each row, and from those before
template <class M>
void count_up(M&& X, int from) {
  for (Index i = 0; i < X.rows(); ++i)
    for (Index j = 0; j < X.cols(); ++j) X(i, j) = static_cast<typename std::decay_t<M>::Scalar>(from + 10 * i + j);
}

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

TEMPLATE_TEST_CASE("gradients of tokens with gaps come from their slots, on either side or both", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  std::vector<Workspace> workspaces(2);
  const Team team(workspaces);
  struct Side {
    std::vector<Index> at;
    Index rows, first;
  };
  std::vector<Index> many;  // over several tiles
  for (Index s = 0; s < 400; s += 1 + s % 3) many.push_back(s);
  // without gaps; with gaps; without, but with slot 0 in a later row; without tokens
  const std::vector<Side> sides{{{0, 1, 2}, 3, 0}, {{1, 4, 5, 9}, 12, 0}, {{0, 2}, 8, 5},
                                {{0, 1, 2}, 7, 4}, {many, 500, 60},       {{}, 3, 0}};
  for (const Side& q : sides)
    for (const Side& k : sides)
      for (const bool sized : {true, false}) {
        Case<T> x(q.at, k.at);
        const Workspace::Scope scope(team.workspace());
        const auto sizes = sized ? x.sizes() : toeplitz::GradientSizes<T>{};
        INFO(q.at.size() << " queries in " << q.rows << " rows from " << q.first << ", " << k.at.size() << " keys in "
                         << k.rows << " rows from " << k.first << ", sizes " << sized);
        x.with(sizes, q.rows, k.rows, q.first, k.first, team, [&](SlotGradients<T>& slots) {
          toeplitz::GradientRefs<T> d = slots.refs();
          REQUIRE((d.dA.rows() == q.rows && d.dA.cols() == r));
          REQUIRE((d.dB.rows() == k.rows && d.dB.cols() == r && d.dU.rows() == k.rows && d.dU.cols() == p));
          CHECK(d.dc.data() == x.to.d.dc.data());
          count_up(d.dA, 1), count_up(d.dB, 2), count_up(d.dU, 3);
          const Matrix<T> dA = d.dA, dB = d.dB, dU = d.dU;
          const toeplitz::GradientSizes<T> of = slots.sizes();
          CHECK(static_cast<bool>(of) == sized);
          CHECK(of.lags == (sized ? x.to.lags.data() : nullptr));
          Vector<T> keys(k.rows);
          if (sized) {
            Vector<T> expected = Vector<T>::Zero(q.rows);
            for (Index i = 0; i < x.A.rows(); ++i) expected[q.first + q.at[static_cast<std::size_t>(i)]] = x.rows[i];
            CHECK(Vector<T>::Map(of.rows, q.rows) == expected);
            count_up(keys, 4);
            std::copy_n(keys.data(), k.rows, of.keys);
          }
          slots.copy_back(team);
          const auto row = [](const Side& side, Index i) { return side.first + side.at[static_cast<std::size_t>(i)]; };
          for (Index i = 0; i < x.A.rows(); ++i) CHECK(x.to.d.dA.row(i) == dA.row(row(q, i)));
          for (Index j = 0; j < x.B.rows(); ++j) {
            CHECK(x.to.d.dB.row(j) == dB.row(row(k, j)));
            CHECK(x.to.d.dU.row(j) == dU.row(row(k, j)));
            CHECK(x.to.keys[j] == (sized ? keys[row(k, j)] : T(17)));
          }
          CHECK((x.to.lags.array() == 17).all());
        });
      }
}

}  // namespace nprf::test::toeplitz_fft_slot_gradients
