// SPDX-License-Identifier: MIT
#include "nprf/attention/options.hpp"

#include <array>
#include <cstddef>

#include "support/catch.hpp"

namespace nprf::test::attention_option_span {

static_assert(std::convertible_to<std::vector<int>, OptionSpan<int>>);
static_assert(std::convertible_to<std::span<const bool>, OptionSpan<bool>>);
static_assert(!std::convertible_to<std::vector<int>, std::span<const long>>);

TEST_CASE("an option is made from vectors, arrays, spans, and a pointer with a size", "[core]") {
  const std::vector<int> vector{1, 2, 3};
  const std::array<int, 3> array{1, 2, 3};
  const auto check = [](OptionSpan<int> x) { CHECK((x.size() == 3 && x[0] == 1 && x[2] == 3)); };
  check(vector);
  check(array);
  check(std::span<const int>(vector));
  check({vector.data(), std::size_t{3}});
  CHECK(OptionSpan<int>().empty());
  const std::span<const int> back = OptionSpan<int>(vector);
  CHECK(back.data() == vector.data());
}

}  // namespace nprf::test::attention_option_span
