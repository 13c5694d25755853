// SPDX-License-Identifier: MIT
#include "nprf/attention/visibility.hpp"

#include <limits>
#include <utility>
#include <vector>

#include "support/catch.hpp"

using namespace nprf;

namespace {

constexpr double never = -std::numeric_limits<double>::infinity();

// counts key by key
Index keys(const LagBias<double>& b, Index n_k, Index position, Direction direction) {
  Index count = 0;
  for (Index j = 0; j < n_k; ++j)
    count += (direction == Direction::bidirectional || j <= position) && b[j - position] > never;
  return count;
}

LagBias<double> table(Index first, std::vector<double> b) {
  return {first, Eigen::Map<Vector<double>>(b.data(), static_cast<Index>(b.size()))};
}

}  // namespace

TEST_CASE("a query sees the keys in its direction whose bias is not -infinity", "[attention]") {
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

  for (std::size_t kind = 0; kind < biases.size(); ++kind)
    for (const auto& [n_q, n_k] :
         std::vector<std::pair<Index, Index>>{{1, 1}, {5, 5}, {1, 9}, {9, 1}, {4, 13}, {13, 4}})
      for (const Direction direction : {Direction::bidirectional, Direction::causal})
        for (const Index offset : {0, 1, 3, 20, -1, -3, -20}) {
          const Visibility visible(biases[kind], n_k, offset, reachable_lags(n_q, n_k, offset, direction));
          for (Index i = 0; i < n_q; ++i) {
            INFO("bias " << kind << " n_q " << n_q << " n_k " << n_k << " offset " << offset << " query " << i
                         << (direction == Direction::causal ? " causal" : ""));
            CHECK(visible.keys(i) == keys(biases[kind], n_k, i + offset, direction));
          }
        }
}
