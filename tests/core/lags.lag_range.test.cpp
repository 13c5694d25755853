// SPDX-License-Identifier: MIT
#include "nprf/core/lags.hpp"

#include <set>

#include "support/catch.hpp"

namespace nprf::test::core_lag_range {

TEST_CASE("the size of a range of lags is zero if it ends before it starts", "[core]") {
  CHECK(LagRange{}.size() == 0);
  CHECK(LagRange{3, 3}.size() == 1);
  CHECK(LagRange{-2, 5}.size() == 8);
  CHECK(LagRange{4, 3}.size() == 0);
  CHECK(LagRange{100, -100}.size() == 0);
}

TEST_CASE("the reachable lags are those of all pairs of a query and a key", "[core]") {
  for (Index n_q = 0; n_q <= 4; ++n_q)
    for (Index n_k = 0; n_k <= 4; ++n_k)
      for (Index offset = -8; offset <= 8; ++offset)
        for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
          std::set<Index> lags;
          for (Index i = 0; i < n_q; ++i)
            for (Index j = 0; j < n_k; ++j)
              if (direction == Direction::bidirectional || j <= i + offset) lags.insert(j - (i + offset));
          const LagRange range = reachable_lags(n_q, n_k, offset, direction);
          INFO("n_q " << n_q << " n_k " << n_k << " offset " << offset << " causal "
                      << (direction == Direction::causal));
          REQUIRE(range.size() == static_cast<Index>(lags.size()));
          if (lags.empty()) continue;
          REQUIRE(range.first == *lags.begin());
          REQUIRE(range.last == *lags.rbegin());
        }
}

}  // namespace nprf::test::core_lag_range
