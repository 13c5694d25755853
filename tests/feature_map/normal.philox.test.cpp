// SPDX-License-Identifier: MIT
#include "nprf/feature_map/normal.hpp"

#include <cstdint>
#include <set>

#include "support/catch.hpp"

namespace nprf::test::feature_map_philox {

static_assert(Philox::block({0, 0, 0, 0}, {0, 0})[0] == 0x6627e8d5, "known at compile time");

TEST_CASE("Philox4x32-10 gives the words that its authors published", "[feature_map]") {
  // from kat_vectors of Random123: counter, key, words
  constexpr std::uint32_t f = 0xffffffff;
  CHECK(Philox::block({0, 0, 0, 0}, {0, 0}) == Philox::Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(Philox::block({f, f, f, f}, {f, f}) == Philox::Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(Philox::block({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Philox::Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("each bit of counter and key changes the words", "[feature_map]") {
  std::set<Philox::Words> different{Philox::block({}, {})};
  for (std::size_t word = 0; word < 6; ++word)
    for (int bit = 0; bit < 32; ++bit) {
      Philox::Words counter{};
      Philox::Key key{};
      (word < 4 ? counter[word] : key[word - 4]) = std::uint32_t{1} << bit;
      different.insert(Philox::block(counter, key));
    }
  CHECK(different.size() == 1 + 6 * 32);
}

}  // namespace nprf::test::feature_map_philox
