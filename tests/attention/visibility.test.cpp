// SPDX-License-Identifier: MIT
#include "nprf/attention/visibility.hpp"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "support/catch.hpp"

namespace nprf::test::attention_visibility {

namespace {

constexpr double never = -std::numeric_limits<double>::infinity();

// key by key; -1 if there is none
Index first_seen(const LagBias<double>& b, const Slots& keys, Index position, Direction direction) {
  for (Index j = 0; j < keys.count; ++j)
    if ((direction == Direction::bidirectional || keys[j] <= position) && b[keys[j] - position] > never) return j;
  return -1;
}

LagBias<double> table(Index first, std::vector<double> b) {
  return {first, Eigen::Map<Vector<double>>(b.data(), static_cast<Index>(b.size()))};
}

}  // namespace

TEST_CASE("a query sees keys in its direction whose bias is not -infinity", "[attention]") {
  std::vector<LagBias<double>> biases{
      table(0, {0}),                           // all keys
      table(0, {never}),                       // none
      table(-2, {never, 1, 2, 3, never}),      // a window
      table(-1, {0, never, 0}),                // all but itself
      table(-4, {5, never, never, 5, never}),  // the past, with a hole
      table(3, {never, 0}),                    // from 4 tokens ahead
      table(-6, {0, never, -1000}),            // clipped at -4
  };
  biases.push_back(table(0, {0}));  // ALiBi
  biases.back().slope_before = biases.back().slope_after = -3;

  // keys that fill their slots, a part of them, and keys with gaps
  const std::vector<Index> gaps{0, 2, 3, 7, 12}, one{4}, last{12};
  const auto at = [](const std::vector<Index>& slots, Index n_k) {
    const auto end = std::ranges::lower_bound(slots, n_k);
    return Slots{static_cast<Index>(end - slots.begin()), 0, slots.data()};
  };
  for (std::size_t kind = 0; kind < biases.size(); ++kind)
    for (const auto& [n_q, n_k] :
         std::vector<std::pair<Index, Index>>{{1, 1}, {5, 5}, {1, 9}, {9, 1}, {4, 13}, {13, 4}, {0, 3}, {3, 0}})
      for (const Direction direction : {Direction::bidirectional, Direction::causal})
        for (const Index offset : {0, 1, 3, 20, -1, -3, -20}) {
          Workspace workspace;
          const Visibility visible(biases[kind], reachable_lags(n_q, n_k, offset, direction), workspace);
          for (const Slots& keys :
               {Slots{n_k}, Slots{n_k / 2, n_k - n_k / 2}, Slots{0}, at(gaps, n_k), at(one, n_k), at(last, n_k)})
            for (Index i = 0; i < n_q; ++i) {
              INFO("bias " << kind << " n_q " << n_q << " n_k " << n_k << " offset " << offset << " query " << i
                           << " keys " << keys.count << (keys.at ? " with gaps" : "")
                           << (direction == Direction::causal ? " causal" : ""));
              const Index first = first_seen(biases[kind], keys, i + offset, direction);
              CHECK(visible.first_seen(i + offset, keys) == first);
              CHECK(visible.sees_any(i + offset, keys) == (first >= 0));
            }
        }
}

TEST_CASE("the longest run of lags that are seen", "[attention]") {
  const auto longest = [](const std::vector<double>& b, LagRange lags) {
    Workspace workspace;
    const LagRange run = Visibility(table(-2, b), lags, workspace).longest_run();
    return std::pair(run.first, run.last);
  };
  const LagRange all{-2, 2};
  CHECK(longest({0, 0, 0, 0, 0}, all) == std::pair<Index, Index>(-2, 2));
  CHECK(longest({0, 0, never, 0, 0}, all) == std::pair<Index, Index>(-2, -1));
  CHECK(longest({0, never, 0, 0, 0}, all) == std::pair<Index, Index>(0, 2));
  CHECK(longest({never, 0, 0, never, 0}, all) == std::pair<Index, Index>(-1, 0));
  CHECK(longest({never, 0, never, 0, never}, all) == std::pair<Index, Index>(-1, -1));
  CHECK(longest({0, 0, never, 0, 0}, {-7, 2}) == std::pair<Index, Index>(-7, -1));
  CHECK(longest({never, never, never, never, never}, all) == std::pair<Index, Index>(0, -1));
}

}  // namespace nprf::test::attention_visibility
