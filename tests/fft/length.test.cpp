// SPDX-License-Identifier: MIT
#include "nprf/fft/length.hpp"

#include <set>

#include "support/catch.hpp"

namespace nprf::test::fft_length {

static_assert(fft::smooth_length(11) == 12, "known at compile time");

TEST_CASE("is_smooth is true for numbers without a prime factor above 7", "[fft]") {
  for (Index n = 1; n <= 5000; ++n) {
    Index rest = n, largest = 1;
    for (Index divisor = 2; rest > 1; ++divisor)
      for (; rest % divisor == 0; rest /= divisor) largest = divisor;
    INFO("n " << n);
    REQUIRE(fft::is_smooth(n) == (largest <= 7));
  }
}

TEST_CASE("smooth_length is the next even product of powers of 2, 3, 5 and 7", "[fft]") {
  std::set<Index> lengths;
  constexpr Index most = 10000;
  for (Index two = 2; two <= most; two *= 2)
    for (Index three = two; three <= most; three *= 3)
      for (Index five = three; five <= most; five *= 5)
        for (Index seven = five; seven <= most; seven *= 7) lengths.insert(seven);
  for (Index n = -3; n <= 5000; ++n) {
    INFO("n " << n);
    REQUIRE(fft::smooth_length(n) == *lengths.lower_bound(n));
  }
}

}  // namespace nprf::test::fft_length
