// SPDX-License-Identifier: MIT
#include "nprf/attention/largest_seen.hpp"

#include <algorithm>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::attention_largest_seen {

TEST_CASE("the largest of the keys that a query sees, at least", "[attention]") {
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
        largest_seen<double>(sizes.data(), queries, keys, lags, largest.data(), workspace);
        for (Index i = 0; i < queries.count; ++i) {
          double expected = 1;
          for (Index j = 0; j < keys.count; ++j)
            if (const Index lag = keys[j] - queries[i]; lag >= lags.first && lag <= lags.last)
              expected = std::max(expected, sizes[j]);
          CHECK(largest[static_cast<std::size_t>(i)] == expected);
        }
      }
}

TEST_CASE("levels of sizes: from the least that is not zero to the largest", "[attention]") {
  Workspace workspace;
  const auto levels = [&](const std::vector<double>& sizes) {
    std::vector<double> all(static_cast<std::size_t>(num_levels), 17);
    size_levels(sizes.data(), static_cast<Index>(sizes.size()), all.data(), workspace);
    return all;
  };
  CHECK(levels({}) == std::vector<double>(8, 0));
  CHECK(levels({0, 0}) == std::vector<double>(8, 0));
  CHECK(levels({0, 3, 0}) == std::vector<double>(8, 3));
  std::vector<double> sizes;
  for (int k = 0; k < 1024; ++k) sizes.push_back((k * 345 + 11) % 1024);  // 0 to 1023 in another order
  CHECK(levels(sizes) == std::vector<double>{1, 64, 256, 512, 768, 960, 1020, 1023});
}

}  // namespace nprf::test::attention_largest_seen
