// SPDX-License-Identifier: MIT
#include "nprf/core/slots.hpp"

#include <vector>

#include "support/catch.hpp"

namespace nprf::test::core_slots {

namespace {

// slots and the list of them: with and without gaps, one, none
struct Case {
  std::vector<Index> at;
  Slots slots;  // refers to `at`, or is consecutive
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Index count : {0, 1, 2, 7})
    for (const Index first : {0, 3}) {
      Case x;
      for (Index i = 0; i < count; ++i) x.at.push_back(first + i);
      x.slots = {count, first};
      all.push_back(x);
    }
  for (const std::vector<Index>& at :
       std::vector<std::vector<Index>>{{0}, {5}, {0, 1, 2}, {0, 2, 3, 9}, {4, 5, 6, 20, 21}, {1, 3, 5, 7, 9, 11}})
    all.push_back({at, {}});
  for (Case& x : all)
    if (x.slots.count == 0 && !x.at.empty()) x.slots = {static_cast<Index>(x.at.size()), 0, x.at.data()};
  return all;
}

}  // namespace

TEST_CASE("indexing slots returns the slot of each token", "[core]") {
  for (const Case& x : cases()) {
    REQUIRE(x.slots.count == static_cast<Index>(x.at.size()));
    for (Index i = 0; i < x.slots.count; ++i) CHECK(x.slots[i] == x.at[static_cast<std::size_t>(i)]);
  }
}

TEST_CASE("below counts the tokens whose slot is less than a slot", "[core]") {
  for (const Case& x : cases())
    for (Index slot = -30; slot <= 60; ++slot) {
      Index count = 0;
      for (const Index at : x.at) count += at < slot ? 1 : 0;
      INFO(x.at.size() << " tokens, slot " << slot);
      REQUIRE(x.slots.below(slot) == count);
    }
}

TEST_CASE("default slots and placements have no tokens", "[core]") {
  const Slots none;
  CHECK(none.count == 0);
  CHECK(none.below(-5) == 0);
  CHECK(none.below(5) == 0);
  CHECK(Placement{}.count() == 0);
}

TEST_CASE("a placement counts the tokens without slots too, and gives the number of each token", "[core]") {
  const std::vector<Index> at{2, 3, 7}, numbers{1, 4, 5, 9, 12};
  const Slots slots{3, 0, at.data()};
  const Placement all{slots, 2}, some{slots, 2, numbers.data()};
  CHECK(all.count() == 5);
  CHECK(some.count() == 5);
  for (Index i = 0; i < 5; ++i) {
    CHECK(all.token_index(i) == i);
    CHECK(some.token_index(i) == numbers[static_cast<std::size_t>(i)]);
  }
}

}  // namespace nprf::test::core_slots
