// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/block_causal/levels.hpp"

#include "support/catch.hpp"

namespace nprf::test::toeplitz_block_causal_levels {

using toeplitz::CausalLevels;

TEST_CASE("the cost of a product is that of the transforms and the products of its groups", "[toeplitz]") {
  const auto operations = [](Index n) { return CausalLevels<double>::operations(n, 128); };
  for (const Index n : {0, 1, 128}) CHECK(operations(n) == 0);
  CHECK(operations(129) == 128 * (3 * 7 - 4) + 128);          // one source
  CHECK(operations(384) == 2 * 128 * (3 * 7 - 4) + 3 * 128);  // two, and three products
  for (Index n = 128; n < 20000; n += 128) CHECK(operations(n + 1) > operations(n));
  CHECK(CausalLevels<double>::operations(1024, 1024) == 0);
  CHECK(CausalLevels<double>::operations(1025, 1024) == 1024 * (3 * 10 - 4) + 1024);
}

}  // namespace nprf::test::toeplitz_block_causal_levels
