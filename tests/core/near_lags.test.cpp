// SPDX-License-Identifier: MIT

#include "nprf/core/near_lags.hpp"

#include <cstdlib>

#include "support/catch.hpp"

namespace nprf::test::core_near_lags {

TEST_CASE("near lags are those of tokens less than the width apart", "[core]") {
  for (const Index width : {0, 1, 2, 5})
    for (const Index offset : {0, -7, 3}) {
      const NearLags near{width, 0, offset};
      Index first = 0, last = -1;
      for (Index lag = -20; lag <= 20; ++lag) {
        const bool expected = std::abs(lag - offset) < width;
        CHECK(near.contains(lag) == expected);
        if (expected && first > last) first = lag, last = lag;
        if (expected) last = lag;
      }
      CHECK(near.range().size() == (width == 0 ? 0 : last - first + 1));
      if (width > 0) CHECK((near.range().first == first && near.range().last == last));
    }
}

TEST_CASE("near lags of a grid are those of cells less than the width apart in rows and columns", "[core]") {
  constexpr Index height = 6, columns = 5, pitch = 2 * columns - 1;
  for (const Index width : {1, 2, 3, 8}) {
    const NearLags near{width, pitch};
    for (Index row = 1 - height; row < height; ++row)
      for (Index column = 1 - columns; column < columns; ++column) {
        const Index lag = row * pitch + column;
        const bool expected = std::abs(row) < width && std::abs(column) < width;
        CHECK(near.contains(lag) == expected);
        if (expected) CHECK((near.range().first <= lag && lag <= near.range().last));
      }
  }
}

}  // namespace nprf::test::core_near_lags
