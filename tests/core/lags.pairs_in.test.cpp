// SPDX-License-Identifier: MIT
#include <utility>
#include <vector>

#include "nprf/core/lags.hpp"
#include "support/catch.hpp"

namespace nprf::test::core_lags_pairs_in {

TEST_CASE("the pairs whose lag is in a range are counted", "[core]") {
  for (const auto& [n_q, n_k] : std::vector<std::pair<Index, Index>>{{7, 4}, {4, 7}, {1, 5}, {5, 1}, {1, 1}, {6, 6}})
    for (Index first = -10; first <= 10; ++first)
      for (Index last = first - 1; last <= 11; ++last) {
        Index count = 0;
        for (Index i = 0; i < n_q; ++i)
          for (Index j = 0; j < n_k; ++j) count += first <= j - i && j - i <= last;
        INFO("n_q " << n_q << " n_k " << n_k << " lags " << first << " to " << last);
        REQUIRE(pairs_in({first, last}, n_q, n_k) == static_cast<double>(count));
      }
  CHECK(pairs_in({-5, 5}, 0, 3) == 0);
}

}  // namespace nprf::test::core_lags_pairs_in
