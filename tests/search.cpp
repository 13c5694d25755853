// SPDX-License-Identifier: MIT
//
// Looks for inputs on which a row is beyond its bound, or the bound beyond the tolerance (support/adversarial.hpp):
//
//     nprf_search SECONDS [SEED]    cases of the seeds SEED, SEED + 1, ...; 0 seconds: of SEED alone
//
// What it finds becomes a named test.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "nprf/nprf.hpp"
#include "support/adversarial.hpp"

namespace {

using namespace nprf;
using namespace nprf::test;
using namespace nprf::test::adversarial;

struct Found {
  std::uint64_t runs = 0, wrong = 0;
  Index repaired = 0;
  double nearest = 0;  // the largest error over its bound
};

template <class T>
void search(std::uint64_t seed, Found& found) {
  const Case c = random_case(seed);
  const Problem<T> problem(c);
  const Truth<T> truth(c, problem);
  for (const Engine engine : all_engines()) {
    const Outcome x = run(c, problem, truth, engine);
    ++found.runs;
    found.repaired += x.report.repaired_rows;
    if (x.error > 0) found.nearest = std::max(found.nearest, x.error / x.bound);
    if (x.ok) continue;
    ++found.wrong;
    std::cout << "nprf_search 0 " << seed << "    " << message(c, sizeof(T) == 4 ? "float" : "double", engine, x)
              << "\n";
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: nprf_search SECONDS [SEED]\n";
    return 2;
  }
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::atof(argv[1])));
  std::uint64_t seed = argc > 2 ? std::stoull(argv[2]) : 1;
  Found found;
  do {
    search<float>(seed, found);
    search<double>(seed, found);
    ++seed;
  } while (Clock::now() < end && found.wrong < 20);
  std::cout << found.runs << " runs, " << found.repaired << " rows repaired, errors up to " << found.nearest
            << " of their bounds, " << found.wrong << " wrong\n";
  return found.wrong > 0 ? 1 : 0;
}
