// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/cost.hpp"

#include <vector>

#include "support/catch.hpp"

namespace nprf::test::toeplitz_cost {

using toeplitz::pairs_in;
using toeplitz::worthwhile_threads;

TEST_CASE("the pairs whose lag is in a range are counted", "[toeplitz]") {
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

TEST_CASE("the number of threads grows with the cost of a product, from one to the number that is set", "[toeplitz]") {
  struct Kept {
    ~Kept() { set_num_threads(before); }
    const Index before = num_threads();
  } const kept;
  for (const Index most : {1, 2, 7}) {
    set_num_threads(most);
    CHECK(worthwhile_threads(0) == 1);
    CHECK(worthwhile_threads(1e15) == most);
    Index before = 1;
    for (double operations = 1; operations < 1e12; operations *= 1.5) {
      const Index threads = worthwhile_threads(operations);
      CHECK((before <= threads && threads <= most));
      before = threads;
    }
  }
}

}  // namespace nprf::test::toeplitz_cost
