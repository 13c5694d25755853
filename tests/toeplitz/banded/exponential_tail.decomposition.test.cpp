// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/banded/exponential_tail.hpp"

#include "support/catch.hpp"
#include "support/error.hpp"

namespace nprf::test::toeplitz_banded_decomposition {

using toeplitz::BandDecomposition;

TEST_CASE("weights are constant if those of all lags are equal and not zero", "[toeplitz]") {
  const auto constant = [](LagRange range, double value, Index other = 1000) {
    LagWeights<double> c{range.first, Vector<double>::Constant(range.size(), value)};
    if (other < 1000) c.values[other - range.first] *= 1 + epsilon<double>;
    Workspace workspace;
    return BandDecomposition<double>(c.view(), {5, 7, 2, 2}, workspace).constant;
  };
  CHECK(constant({-4, 6}, 0.7) == 0.7);
  CHECK(constant({-9, 9}, -3) == -3);
  CHECK(constant({-9, 9}, 0.7, 7) == 0.7);  // no slot is so far away
  for (const Index lag : {-4, 0, 6}) CHECK(constant({-4, 6}, 0.7, lag) == 0);
  CHECK(constant({-3, 6}, 0.7) == 0);  // the farthest lag is not in the table
  CHECK(constant({-4, 5}, 0.7) == 0);
  CHECK(constant({-4, 6}, 0) == 0);
  CHECK(constant({0, -1}, 0) == 0);
  Workspace workspace;
  const LagWeights<double> single{0, Vector<double>::Constant(1, 2)};
  CHECK(BandDecomposition<double>(single.view(), {1, 1, 2, 2}, workspace).constant == 2);
}

}  // namespace nprf::test::toeplitz_banded_decomposition
