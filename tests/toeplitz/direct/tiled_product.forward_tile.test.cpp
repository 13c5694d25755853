// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/direct/tiled_product.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "nprf/toeplitz/direct/toeplitz_weights.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/in_slots.hpp"

namespace nprf::test::toeplitz_direct_forward_tile {

namespace {

template <class T>
using Tile = toeplitz::ForwardTile<T>;

// a product by tiles of any size: so many queries and keys at a time
template <class T>
struct ByTiles {
  LagWeightsView<T> c;
  Index rows, keys;

  void contract(const toeplitz::Factors<T>& x, MatrixRef<T> Y, const Team& team, T* sums = nullptr) const {
    Y.setZero();
    if (sums) std::fill_n(sums, Y.rows(), T(0));
    for (Index i = 0; i < x.queries.slots.count; i += rows) {
      const Index count = std::min(rows, x.queries.slots.count - i);
      const toeplitz::ToeplitzWeights<T> weights(x, c, {c.first, c.last()});
      Tile<T> tile(x, weights, {i, i + count}, team.workspace());
      for (Index j = 0; j < x.keys.slots.count; j += keys)
        tile.add({j, std::min(j + keys, x.keys.slots.count)}, Y.middleRows(i, count), sums ? sums + i : nullptr);
    }
  }
};

template <class T>
auto make(Index rows, Index keys) {
  return [=](LagWeightsView<T> c, const ProductShape&, const Team&) { return ByTiles<T>{c, rows, keys}; };
}

}  // namespace

TEMPLATE_TEST_CASE("tiles of any size add up to the product, with gaps and without", "[toeplitz]", NPRF_TEST_SCALARS) {
  Workspace workspace;
  const Team team(workspace);
  const Index most = Tile<TestType>::keys;
  const auto check = [&](const InSlots<TestType>& x) {
    for (const Index rows : {Index{1}, Index{5}, Index{6}, Index{13}, Index{200}})
      for (const Index keys : {Index{1}, Index{7}, Index{16}, most - 1, most, 2 * most + 3}) {
        INFO(x.name() << ", tiles of " << rows << " x " << keys);
        CHECK(x.error(Engine::direct, x.contract(make<TestType>(rows, keys), team)) <= 1);
        CHECK(x.error(Engine::direct, x.contract_with_ones(make<TestType>(rows, keys), team)) <= 1);
      }
  };
  for (const Index p : {1, 4, 9, 16, 33}) check({60, 70, Slots{60}, Slots{70}, 5, p});
  for (const Index r : {1, 8, 17}) check({60, 70, Slots{50, 3}, Slots{64, 6}, r, 3});
  check({90, 100, random_slots(90, 0.6, 1), random_slots(100, 0.7, 2), 4, 10});
  check({90, 100, random_slots(90, 0.6, 1), all_rows(100), 4, 10});
  // weights for a few lags only: most blocks have none, or some in one row
  for (const Index lag : {-60, -1, 0, 30}) {
    InSlots<TestType> few(90, 100, Slots{90}, Slots{100}, 4, 10);
    const Vector<TestType> kept = few.c.values.segment(lag + 89, 3);
    few.c.values.setZero();
    few.c.values.segment(lag + 89, 3) = kept;
    check(few);
  }
}

TEMPLATE_TEST_CASE("a weight of 0 hides a non-finite key from its query, and from no other", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  Workspace workspace;
  const Team team(workspace);
  for (const TestType x : {std::numeric_limits<TestType>::infinity(), std::numeric_limits<TestType>::quiet_NaN()}) {
    InSlots<TestType> causal(40, 40, Slots{40}, Slots{40}, 3, 5);
    causal.c = {-39, random_weights<TestType>(40, 40, 4).values};
    causal.c.values.tail(39).setZero();
    const Matrix<TestType> before = causal.contract(make<TestType>(40, 40), team);
    causal.B.row(17).setConstant(x);
    const Matrix<TestType> after = causal.contract(make<TestType>(40, 40), team);
    CHECK(same_bits<TestType>(after.topRows(17), before.topRows(17)));
    for (Index i = 17; i < 40; ++i) CHECK_FALSE(after.row(i).allFinite());
  }
}

TEST_CASE("a weight of NaN is not treated as a weight of 0", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  InSlots<double> x(40, 40, Slots{40}, Slots{40}, 3, 5);
  x.c.values.setZero();
  x.c.values[39] = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(x.contract_with_ones(make<double>(40, 40), team).array().isFinite().any());
}

TEMPLATE_TEST_CASE("no bit of a tile depends on the addresses of its factors", "[toeplitz]", NPRF_TEST_SCALARS) {
  const Index n = 70, r = 11, p = 13;
  const auto A = normal<TestType>(n, r, 1), B = normal<TestType>(n, r, 2), U = normal<TestType>(n, p, 3);
  const LagWeights<TestType> c = random_weights<TestType>(n, n, 4);
  const auto product = [&](const MatrixView<TestType>& a, const MatrixView<TestType>& b, const MatrixView<TestType>& u,
                           MatrixRef<TestType> Y) {
    Workspace workspace;
    ByTiles<TestType>{c.view(), 24, 32}.contract({a, b, u, Slots{n}, Slots{n}}, Y, Team(workspace));
  };
  Matrix<TestType> expected(n, p);
  product(A, B, U, expected);
  for (const Index shift : {1, 2, 3, 7}) {
    Matrix<TestType> a(n, r + 9), b(n, r + 8), u(n, p + 7), y(n, p + 8);
    a.middleCols(shift, r) = A, b.middleCols(shift, r) = B, u.middleCols(shift, p) = U;
    product(a.middleCols(shift, r), b.middleCols(shift, r), u.middleCols(shift, p), y.middleCols(shift, p));
    CHECK(same_bits<TestType>(y.middleCols(shift, p), expected));
  }
}

}  // namespace nprf::test::toeplitz_direct_forward_tile
