// SPDX-License-Identifier: MIT
#include "nprf/attention/weights/attendance.hpp"

#include <algorithm>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::attention_weights_sliding_window_max {

TEST_CASE("the maximum of the sizes in the window, or the earlier value if that is larger", "[attention]") {
  const std::vector<Index> gaps{0, 3, 4, 9, 10, 11, 17, 30}, early{2}, late{29};
  const auto at = [](const std::vector<Index>& slots) {
    return Slots{static_cast<Index>(slots.size()), 0, slots.data()};
  };
  Workspace workspace;
  for (const Slots& queries : {Slots{31}, Slots{12, 5}, Slots{0}, at(gaps), at(late)})
    for (const Slots& keys : {Slots{31}, Slots{7, 11}, Slots{0}, at(gaps), at(early)})
      for (const LagRange& lags : std::vector<LagRange>{
               {-40, 40}, {-40, 0}, {0, 40}, {-3, 2}, {0, 0}, {5, 9}, {-20, -6}, {50, 60}, {-60, -50}, {0, -1}}) {
        INFO(queries.count << " queries, " << keys.count << " keys, lags " << lags.first << " to " << lags.last);
        // few different sizes, so that some are equal
        const Vector<double> sizes = (3 * normal_vector<double>(keys.count, 7)).array().abs().floor();
        std::vector<double> largest(static_cast<std::size_t>(queries.count), 1);
        sliding_window_max<double>(sizes.data(), queries, keys, lags, largest.data(), workspace);
        for (Index i = 0; i < queries.count; ++i) {
          double expected = 1;
          for (Index j = 0; j < keys.count; ++j)
            if (const Index lag = keys[j] - queries[i]; lag >= lags.first && lag <= lags.last)
              expected = std::max(expected, sizes[j]);
          CHECK(largest[static_cast<std::size_t>(i)] == expected);
        }
      }
}

TEST_CASE("exponents of sizes: each once, in decreasing order", "[attention]") {
  const auto powers = [](const std::vector<float>& sizes) {
    std::vector<int> all(sizes.size());
    all.resize(static_cast<std::size_t>(exponents_of(sizes.data(), static_cast<Index>(sizes.size()), all.data())));
    return all;
  };
  CHECK(powers({}).empty());
  CHECK(powers({0, 0}).empty());
  CHECK(powers({0, 3, 0}) == std::vector<int>{1});
  CHECK(powers({1, 1.5f, 0.25f, 3, 0.49f, 2}) == std::vector<int>{1, 0, -2});
  CHECK(powers({1e-45f, 1e38f}) == std::vector<int>{126, -149});
}

}  // namespace nprf::test::attention_weights_sliding_window_max
