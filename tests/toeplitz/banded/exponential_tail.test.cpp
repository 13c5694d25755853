// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/banded/exponential_tail.hpp"

#include <cmath>
#include <vector>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::toeplitz_banded_exponential_tail {

using toeplitz::band_between;
using toeplitz::ExponentialTail;
using toeplitz::Side;
using toeplitz::TailTiles;

namespace {

LagWeights<double> weights(Index first, Index last, double before, double after) {
  return exp_weights(LagBias<double>{-3, normal_vector<double>(8, 1), before, after}, {first, last});
}

}  // namespace

TEST_CASE("a tail begins at the band and ends at the farthest reachable lag", "[toeplitz]") {
  const ProductShape span{30, 40, 2, 2};
  struct Case {
    LagWeights<double> c;
    Index before_edge, before_lags, after_edge, after_lags;
  };
  for (const Case& x : {Case{weights(-29, 39, 0, -0.1), -4, 26, 5, 35},   //
                        Case{weights(-50, 60, 0, -0.1), -4, 26, 5, 35},   // the table has more lags
                        Case{weights(-28, 39, 0, -0.1), 0, 0, 5, 35},     // the table ends before the farthest lag
                        Case{weights(-29, 38, 0, -0.1), -4, 26, 0, 0},    //
                        Case{weights(-29, 0, 0, 0), -4, 26, 0, 0},        // one-sided
                        Case{weights(-29, 39, 0.1, -0.1), 0, 0, 5, 35}})  // weights that rise outwards
  {
    const ExponentialTail<double> before(Side::before, x.c.view(), span), after(Side::after, x.c.view(), span);
    CHECK(before.lags == x.before_lags);
    CHECK(after.lags == x.after_lags);
    if (before.lags > 0) CHECK((before.edge == x.before_edge && before.weight == x.c[before.edge]));
    if (after.lags > 0) CHECK((after.edge == x.after_edge && after.weight == x.c[after.edge]));
    const LagRange band = band_between(before, after, x.c.view());
    CHECK(band.first == (before.lags > 0 ? before.edge + 1 : x.c.first));
    CHECK(band.last == (after.lags > 0 ? after.edge - 1 : x.c.last()));
  }
  // a band out of reach: the tail begins at the nearest lag that is not
  LagWeights<double> c = weights(-200, 200, -0.01, -0.01);
  c.first += 100;
  const ExponentialTail<double> before(Side::before, c.view(), span), after(Side::after, c.view(), span);
  CHECK((before.edge == 39 && before.lags == 69 && after.lags == 0));
  // weights of zero are no tail
  c.values.setZero();
  CHECK(ExponentialTail<double>(Side::before, c.view(), span).lags == 0);
}

TEST_CASE("powers of a tail are right within its table and beyond", "[toeplitz]") {
  const ProductShape span{5000, 5000, 2, 2};
  const LagWeights<double> c = weights(-4999, 4999, -0.01, 0);
  ExponentialTail<double> before(Side::before, c.view(), span), after(Side::after, c.view(), span);
  Workspace workspace;
  const ExponentialTail<double> plain = before;
  before.tabulate(workspace);
  after.tabulate(workspace);
  for (const Index k : {0, 1, 700, 1023, 1024, 4000}) {
    CHECK(before.power(k) == std::exp(-0.01 * static_cast<double>(k)));
    CHECK(before.power(k) == plain.power(k));
    CHECK(after.power(k) == 1);
  }
  CHECK((!before.flat() && after.flat()));
}

TEST_CASE(
    "the weight of a query and a key in a tail is the product of their factors, and tiles have the keys of the tail",
    "[toeplitz]") {
  const Index n_q = 90, n_k = 110;
  const LagWeights<double> c = weights(-(n_q - 1), n_k - 1, -0.05, -0.02);
  const ProductShape span{n_q, n_k, 1, 1};
  std::vector<Index> q, k;
  for (Index s = 0; s < n_q; ++s)
    if (s % 7 != 3 && (s < 20 || s > 45)) q.push_back(s);
  for (Index t = 5; t < n_k; ++t)
    if (t % 5 != 2) k.push_back(t);
  const Matrix<double> A = Matrix<double>::Ones(static_cast<Index>(q.size()), 1),
                       B = Matrix<double>::Ones(static_cast<Index>(k.size()), 1);
  const MatrixView<double> a = A, b = B;
  const toeplitz::Factors<double> x{a, b, b, Slots{a.rows(), 0, q.data()}, Slots{b.rows(), 0, k.data()}};
  for (const Side side : {Side::before, Side::after}) {
    const ExponentialTail<double> tail(side, c.view(), span);
    const TailTiles<double> tiles(tail, x, 16);
    for (Index I = 0; I < tiles.tiles(); ++I) {
      const auto [begin, end] = tiles.queries(I);
      const Index cut = tiles.cut(I);
      for (Index j = 0; j < x.keys.slots.count; ++j) {
        bool in_tail = true;
        for (Index i = begin; i < end; ++i) {
          const Index lag = x.keys.slots[j] - x.queries.slots[i];
          in_tail = in_tail && (side == Side::before ? lag <= tail.edge : lag >= tail.edge);
        }
        REQUIRE(in_tail == (side == Side::before ? j < cut : j >= cut));
        if (!in_tail) continue;
        for (Index i = begin; i < end; ++i) {
          const double weight =
              tail.weight * tail.power(tiles.query_distance(I, i)) * tail.power(tiles.key_distance(I, j));
          REQUIRE(std::abs(weight / c[x.keys.slots[j] - x.queries.slots[i]] - 1) <= 16 * epsilon<double>);
        }
      }
      CHECK(tiles.any_keys(I) == (side == Side::before ? cut > 0 : cut < x.keys.slots.count));
      // the keys that the inner tile does not have
      const Index inner = tiles.inner(I);
      const bool none = inner < 0 || inner >= tiles.tiles();
      const auto [new_begin, new_end] = tiles.new_keys(I);
      CHECK(new_begin == (side == Side::before ? (none ? 0 : tiles.cut(inner)) : cut));
      CHECK(new_end == (side == Side::before ? cut : none ? x.keys.slots.count : tiles.cut(inner)));
      CHECK(tiles.distance(I, inner) == (none ? 0 : std::abs(tiles.pivot(I) - tiles.pivot(inner))));
    }
  }
}

}  // namespace nprf::test::toeplitz_banded_exponential_tail
