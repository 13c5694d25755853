// SPDX-License-Identifier: MIT

// The first cases of the search, also for the mutation tests; nprf_search runs more.

#include "differential/search.hpp"

#include <cstdint>
#include <string>

#include "differential/random_case.hpp"
#include "support/catch.hpp"

namespace nprf::test::differential {

namespace {

void check(std::uint64_t seed) {
  const Case c = random_case(seed);
  Tally tally;
  std::string found;
  for (const FailedEngine& by : failed_engines(c, tally))
    for (const Failure& f : by.failures)
      found += std::string(name(by.requested)) + " " + kind_names[static_cast<std::size_t>(f.kind)] + " of " + f.where +
               ", ";
  INFO("nprf_search 0 " << seed << ": " << found << c.name());
  CHECK(found.empty());
}

}  // namespace

TEST_CASE("random calls that have failed once", "[differential]") {
  for (const std::uint64_t seed : regression_seeds) check(seed);
  for (const std::uint64_t seed : regression_seeds_of_softmax_pairs) check(first_seed_of_softmax_pairs + seed);
}

TEST_CASE("a few random calls of all kinds", "[differential]") {
  for (std::uint64_t seed = 1; seed <= (NPRF_TEST_SANITIZED ? 50 : 400); ++seed) check(seed);
}

TEST_CASE("a few random calls with a near field or a series", "[differential]") {
  for (std::uint64_t seed = 1; seed <= (NPRF_TEST_SANITIZED ? 30 : 200); ++seed)
    check(first_seed_of_softmax_pairs + seed);
}

TEST_CASE("a few random calls with attention sinks", "[differential]") {
  for (std::uint64_t seed = 1; seed <= (NPRF_TEST_SANITIZED ? 30 : 150); ++seed) check(first_seed_of_sinks + seed);
}

TEST_CASE("a few random calls with biases far from each other", "[differential]") {
  for (std::uint64_t seed = 1; seed <= (NPRF_TEST_SANITIZED ? 30 : 150); ++seed) check(first_seed_of_far_biases + seed);
}

TEST_CASE("a few random calls with smooth tables", "[differential]") {
  for (std::uint64_t seed = 1; seed <= (NPRF_TEST_SANITIZED ? 10 : 60); ++seed)
    check(first_seed_of_smooth_tables + seed);
}

}  // namespace nprf::test::differential
