// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/block_causal/levels.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/product.hpp"

namespace nprf::test::toeplitz_block_causal_levels {

using toeplitz::CausalAxis;
using toeplitz::CausalLevels;

namespace {

// N(0,1) weights for a range of lags, within those of n_q queries and n_k keys
LagWeights<double> weights(Index n_q, Index n_k, LagRange range) {
  LagWeights<double> c = random_weights<double>(n_q, n_k, 4);
  for (Index lag = c.first; lag <= c.last(); ++lag)
    if (lag < range.first || lag > range.last) c.values[lag - c.first] = 0;
  return c;
}

constexpr Index far = 1000000;

// use(c, span) for weights up to lags on either side of 0, with and without a window
template <class Use>
void for_each_span(Use&& use) {
  for (const auto& [n_q, n_k] : std::vector<std::pair<Index, Index>>{
           {1, 1}, {1, 300}, {300, 1}, {128, 128}, {129, 129}, {257, 255}, {700, 1300}, {1300, 700}, {4097, 4097}})
    for (const LagRange& range : {LagRange{-far, 0}, LagRange{-far, far}, LagRange{-far, 200}, LagRange{-far, -200},
                                  LagRange{-130, 0}, LagRange{-300, 100}, LagRange{5, 5}, LagRange{0, -1}}) {
      INFO("n_q " << n_q << ", n_k " << n_k << ", lags " << range.first << " to " << range.last);
      use(weights(n_q, n_k, range), ProductShape{n_q, n_k, 1, 1});
    }
}

}  // namespace

TEST_CASE("on the causal axis no later key has a weight, and the distance of two places has the weight of their lag",
          "[toeplitz]") {
  for_each_span([](const LagWeights<double>& c, const ProductShape& span) {
    const CausalAxis axis(c.support(), span);
    CHECK((axis.queries.end - axis.queries.first == span.n_q && axis.keys.end - axis.keys.first == span.n_k));
    CHECK((axis.queries.first == 0 || axis.keys.first == 0));
    CHECK(axis.length() == std::max(axis.queries.end, axis.keys.end));
    bool right = true;
    for (Index lag = -(span.n_q - 1); lag < span.n_k; ++lag) {
      const Index distance = axis.queries.first - axis.keys.first - lag;
      right = right && axis.weight(c.view(), distance) == c[lag] && (distance >= 0 || c[lag] == 0);
    }
    for (const Index beyond : {axis.length(), axis.length() + 1, far})
      right = right && axis.weight(c.view(), beyond) == 0;
    CHECK(right);
  });
  const CausalAxis::Side side{10, 20};
  CHECK((side.meets(0, 11) && side.meets(19, 5) && side.meets(12, 2) && side.meets(0, 100)));
  CHECK_FALSE((side.meets(0, 10) || side.meets(20, 5)));
}

TEST_CASE("the cost of a product is that of the transforms and the products of its groups", "[toeplitz]") {
  const auto operations = [](Index n) { return CausalLevels<double>::operations(n); };
  for (const Index n : {0, 1, 128}) CHECK(operations(n) == 0);
  CHECK(operations(129) == 128 * (3 * 7 - 4) + 128);          // one source
  CHECK(operations(384) == 2 * 128 * (3 * 7 - 4) + 3 * 128);  // two, and three products
  for (Index n = 128; n < 20000; n += 128) CHECK(operations(n + 1) > operations(n));
}

}  // namespace nprf::test::toeplitz_block_causal_levels
