// SPDX-License-Identifier: MIT
#include "nprf/core/slots.hpp"

#include "support/catch.hpp"

namespace nprf::test::core_slots {

TEST_CASE("default slots and placements have no tokens", "[core]") {
  const Slots none;
  CHECK(none.count == 0);
  CHECK(none.below(-5) == 0);
  CHECK(none.below(5) == 0);
  CHECK(Placement{}.count() == 0);
}

}  // namespace nprf::test::core_slots
