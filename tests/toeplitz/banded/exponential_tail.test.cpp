// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/banded/exponential_tail.hpp"

#include <cmath>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::toeplitz_banded_exponential_tail {

using toeplitz::band_between;
using toeplitz::ExponentialTail;
using toeplitz::Side;

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

}  // namespace nprf::test::toeplitz_banded_exponential_tail
