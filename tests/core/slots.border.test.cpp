// SPDX-License-Identifier: MIT
#include "nprf/core/slots.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"

namespace nprf::test::core_border {

TEST_CASE("the border has an entry for each query and key of which one has no slot", "[core]") {
  const std::vector<double> values{0, 1, 2, 3, 10, 11, 12, 13};
  const Border<double> border{2, values.data()};
  CHECK(border.size() == 8);
  CHECK((border(0, 0) == 2 && border(0, 1) == 3 && border(1, 0) == 12 && border(1, 1) == 13));
  for (const Index slot : {2, 3, 9}) {
    CHECK((border(0, slot) == 0 && border(1, slot) == 10));  // every key with a slot
    CHECK((border(slot, 0) == 1 && border(slot, 1) == 11));  // every query with a slot
  }
}

TEST_CASE("weights of the border are relative to the largest bias of their row, or of all lags", "[core]") {
  constexpr double minus_infinity = -std::numeric_limits<double>::infinity();
  CHECK(border_weight<double>(-3.0, 1, -1.0, -2.0) == std::exp(-2.0));
  for (const int f : {0, 2, 3}) {
    CHECK(border_weight<double>(-3.0, f, -1.0, -2.0) == std::exp(-1.0));
    CHECK(border_weight<double>(minus_infinity, f, minus_infinity, minus_infinity) == 0);
  }
}

TEST_CASE("a causal query of the border attends to itself and to earlier tokens without a slot", "[core]") {
  for (const int e : {0, 1, 2}) {
    CHECK(is_later_in_border(e, 0));   // every key with a slot
    CHECK(!is_later_in_border(e, 1));  // every query with a slot
    for (const int f : {0, 1, 2}) CHECK(is_later_in_border(e, 2 + f) == (f > e));
  }
}

TEST_CASE("all columns of the border but the one of other queries are a query's own", "[core]") {
  CHECK((is_own_in_border(0) && !is_own_in_border(1) && is_own_in_border(2) && is_own_in_border(3)));
}

}  // namespace nprf::test::core_border
