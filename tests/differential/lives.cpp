// SPDX-License-Identifier: MIT

// One file for the tests and for nprf_search, as search.cpp.

#include <exception>

#include "differential/run_life.hpp"
#include "differential/search.hpp"

namespace nprf::test::differential {

std::vector<Failure> failures_of(const Life& life, Tally& tally) {
  try {
    return life.of.in_double ? LifeRun<double>(life, tally)() : LifeRun<float>(life, tally)();
  } catch (const std::exception& e) {
    return {{Kind::thrown, 0, 0, e.what()}};
  }
}

}  // namespace nprf::test::differential
