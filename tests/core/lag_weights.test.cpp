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

TEST_CASE("a window of weights has every lag of its range, with zeros outside the table", "[core]") {
  const LagWeights<float> c{-2, vector<float>({5, 6, 7})};
  CHECK(c.window({-4, 2}) == vector<float>({0, 0, 5, 6, 7, 0, 0}));
  CHECK(c.window({-1, -1}) == vector<float>({6}));
  CHECK(c.window({10, 11}) == vector<float>({0, 0}));
  CHECK(c.window({-9, -8}) == vector<float>({0, 0}));
  CHECK(c.window({3, 2}).size() == 0);
  CHECK(c.window({3, -20}).size() == 0);
}

TEST_CASE("the support is the smallest range that contains all non-zero weights", "[core]") {
  for (int pattern = 0; pattern < 64; ++pattern) {  // bit k: whether weight k of six is non-zero
    LagWeights<double> c{-3, Vector<double>::Zero(6)};
    Index first = 0, last = -1;
    for (Index k = 0; k < 6; ++k) {
      if (!(pattern >> k & 1)) continue;
      c.values[k] = 0.5;
      if (last < first) first = c.first + k;
      last = c.first + k;
    }
    const LagRange range = c.support();
    INFO("pattern " << pattern);
    REQUIRE(range.size() == (pattern == 0 ? 0 : last - first + 1));
    if (pattern == 0) continue;
    REQUIRE(range.first == first);
    REQUIRE(range.last == last);
  }
}

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
