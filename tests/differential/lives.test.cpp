// SPDX-License-Identifier: MIT

// The first lives of decoders of the search, also for the mutation tests; nprf_search runs more.

#include <cstdint>
#include <string>

#include "differential/random_life.hpp"
#include "differential/search.hpp"
#include "support/catch.hpp"

namespace nprf::test::differential {

namespace {

void check_life(std::uint64_t seed) {
  const Life life = random_life(seed);
  Tally tally;
  std::string found;
  for (const Failure& f : failures_of(life, tally))
    found += std::string(kind_names[static_cast<std::size_t>(f.kind)]) + " of " + f.where + ", ";
  INFO("nprf_search 0 " << seed << ": " << found << life.name());
  CHECK(found.empty());
}

}  // namespace

TEST_CASE("lives of decoders that have failed once", "[differential]") {
  for (const std::uint64_t seed : regression_seeds_of_lives) check_life(first_seed_of_lives + seed);
}

TEST_CASE("a few random lives of decoders", "[differential]") {
  for (std::uint64_t seed = 1; seed <= (NPRF_TEST_SANITIZED ? 60 : 600); ++seed) check_life(first_seed_of_lives + seed);
  for (std::uint64_t seed = 1; seed <= (NPRF_TEST_SANITIZED ? 5 : 40); ++seed)
    check_life(first_seed_of_smooth_lives + seed);
}

}  // namespace nprf::test::differential
