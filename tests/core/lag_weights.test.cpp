// SPDX-License-Identifier: MIT
#include "nprf/core/lag_weights.hpp"

#include <cmath>
#include <vector>

#include "support/catch.hpp"

namespace nprf::test::core_lag_weights {

namespace {

template <class T>
Vector<T> vector(const std::vector<T>& x) {
  return Vector<T>::Map(x.data(), static_cast<Index>(x.size()));
}

}  // namespace

TEST_CASE("with_equal_ends extends flat tails over equal weights at the ends", "[core]") {
  const auto ends = [](const LagWeights<double>& c) { return c.view().with_equal_ends().tails; };
  const auto is = [](const Tails& t, Index before, Index after) { return t.before == before && t.after == after; };
  CHECK(is(ends({-3, vector<double>({2, 2, 5, 7, 3, 3, 3})}), 1, 2));
  CHECK(is(ends({0, vector<double>({1, 2, 3})}), 0, 0));
  CHECK(is(ends({0, vector<double>({4, 4, 4, 4})}), 3, 0));
  CHECK(is(ends({0, vector<double>({4})}), 0, 0));
  CHECK(is(ends({}), 0, 0));
  // tails of slope 0 grow, others are unchanged
  CHECK(is(ends({0, vector<double>({5, 5, 5, 7, 9, 9}), {1, 0, 0.0, 0.0}}), 2, 1));
  CHECK(is(ends({0, vector<double>({1, 2, 2, 7, 9, 9}), {1, 0, -std::log(2.0), 0.0}}), 1, 1));
}

}  // namespace nprf::test::core_lag_weights
