// SPDX-License-Identifier: MIT

#include "nprf/core/lags.hpp"

#include <cstdlib>

#include "support/catch.hpp"

namespace nprf::test::core_near_lags {

TEST_CASE("the near lags of a line are those of tokens less than the width apart", "[core]") {
  for (const Index offset : {Index{0}, Index{-7}, Index{1} << 40})
    for (Index width = 0; width < 5; ++width) {
      const NearLags near{width, 0, offset};
      CHECK(near.range().size() == (width == 0 ? 0 : 2 * width - 1));
      for (Index lag = offset - 9; lag <= offset + 9; ++lag) {
        CHECK(near.contains(lag) == (std::abs(lag - offset) < width));
        if (near.contains(lag)) CHECK((near.range().first <= lag && lag <= near.range().last));
      }
    }
}

TEST_CASE("the near lags of a grid are those of cells less than the width apart in both dimensions", "[core]") {
  for (const Index columns : {1, 2, 5, 8})
    for (Index width = 0; width < 7; ++width) {
      const Index pitch = 2 * columns - 1;
      const NearLags near{width, pitch, 0};
      for (Index down = -6; down <= 6; ++down)
        for (Index right = 1 - columns; right < columns; ++right) {
          const Index lag = down * pitch + right;
          const bool is_near = std::abs(down) < width && std::abs(right) < width;
          CHECK(near.contains(lag) == is_near);
          if (is_near) CHECK((near.range().first <= lag && lag <= near.range().last));
        }
    }
}

}  // namespace nprf::test::core_near_lags
