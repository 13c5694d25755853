// SPDX-License-Identifier: MIT
#include "nprf/core/cpu_level.hpp"

#include "support/catch.hpp"

namespace nprf::test::core_cpu_level {

// consumer/levels.cpp tests cpu_level(), which needs a program with nprf::levels
TEST_CASE("cpu level: levels count up with their instruction sets, as indices of tables", "[core]") {
  int index = 0;
  for (const CpuLevel level : {CpuLevel::baseline, CpuLevel::v3, CpuLevel::v4})
    CHECK(static_cast<int>(level) == index++);
}

}  // namespace nprf::test::core_cpu_level
