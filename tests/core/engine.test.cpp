// SPDX-License-Identifier: MIT
#include "nprf/core/engine.hpp"

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/catch.hpp"

namespace nprf::test::core_engine {

TEST_CASE("the name of each engine is that of its enumerator", "[core]") {
  const std::vector<std::pair<Engine, std::string>> names{
      {Engine::automatic, "automatic"}, {Engine::direct, "direct"},         {Engine::fftw, "fftw"},
      {Engine::lanes, "lanes"},         {Engine::banded, "banded"},         {Engine::block_causal, "block_causal"},
      {Engine::grid, "grid"},           {Engine::recurrence, "recurrence"}, {Engine::smooth, "smooth"}};
  std::set<std::string_view> different;
  for (const auto& [engine, expected] : names) {
    CHECK(std::string(name(engine)) == expected);
    different.insert(name(engine));
  }
  CHECK(different.size() == names.size());
  CHECK(std::string(name(static_cast<Engine>(1000))) == "unknown");
}

}  // namespace nprf::test::core_engine
