// SPDX-License-Identifier: MIT
//
// Searches among random calls of all kinds (random_case.hpp) for those whose results violate what tests/accuracy.md
// promises (check.hpp), in comparison with a reference implementation (reference.hpp):
//
//     nprf_search SECONDS [SEED] [--keep-going]    cases of the seeds SEED, SEED + 1, ...; 0 seconds: only of SEED
//
// After each of these come a case with a near field or a series, of SEED + first_seed_of_softmax_pairs, one with
// attention sinks, of SEED + first_seed_of_sinks, and one with biases far from each other, of SEED +
// first_seed_of_far_biases.
// It stops at 20 failed cases, unless --keep-going is given. The seeds of failures become regression tests
// (search.hpp).

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "differential/random_case.hpp"
#include "differential/search.hpp"

namespace {

using namespace nprf;
using namespace nprf::test::differential;

struct Found {
  std::uint64_t cases = 0, failed_cases = 0, runs = 0, failures = 0;
  std::map<std::string, std::uint64_t> by_engine;  // "engine kind"
  Tally tally;
};

void search(std::uint64_t seed, Found& found) {
  const Case c = random_case(seed);
  ++found.cases;
  found.runs += engines_of(c).size();
  const std::vector<FailedEngine> all = failed_engines(c, found.tally);
  found.failed_cases += !all.empty();
  for (const FailedEngine& by : all) {
    std::cout << "nprf_search 0 " << seed << "    " << name(by.requested);
    if (by.used != by.requested) std::cout << " (" << name(by.used) << ")";
    for (const Failure& f : by.failures) {
      ++found.failures;
      const char* kind = kind_names[static_cast<std::size_t>(f.kind)];
      ++found.by_engine[std::string(name(by.requested)) + " " + kind +
                        (c.non_finite_in == NonFiniteIn::none ? "" : " with non-finite inputs")];
      std::cout << ", " << kind << " of " << f.where << " off by " << f.error << " (bound " << f.bound << ")";
    }
    std::cout << ": " << c.name() << "\n";
  }
}

void print(const Found& found, double seconds) {
  const Tally& t = found.tally;
  std::cout << found.cases << " cases (" << static_cast<double>(found.cases) / seconds << " a second), " << found.runs
            << " runs, " << t.rows << " rows, " << t.gradients << " gradients, " << t.ill_conditioned_rows
            << " ill-conditioned rows, " << t.softmax_rows << " by exact softmax beside " << t.mixed_rows
            << " with exact pairs or a series, " << t.unrepresentable << " too large; errors up to";
  for (const Kind kind : {Kind::y, Kind::saved_y, Kind::dq, Kind::dk, Kind::dv, Kind::db})
    std::cout << " " << t.worst[static_cast<std::size_t>(kind)] << " (" << kind_names[static_cast<std::size_t>(kind)]
              << ")";
  std::cout << " of their bounds, bounds of gradients up to " << t.largest_gradient_bound << "; " << found.failures
            << " failures in " << found.failed_cases << " cases";
  const char* separator = ": ";
  for (const auto& [what, count] : found.by_engine) std::cout << separator << count << " " << what, separator = ", ";
  std::cout << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  bool keep_going = false;
  std::vector<std::string> words;
  for (int at = 1; at < argc; ++at)
    if (std::strcmp(argv[at], "--keep-going") == 0)
      keep_going = true;
    else
      words.push_back(argv[at]);
  if (words.empty() || words.size() > 2) {
    std::cerr << "usage: nprf_search SECONDS [SEED] [--keep-going]\n";
    return 2;
  }
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const double seconds = std::atof(words[0].c_str());
  const auto passed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  std::uint64_t seed = words.size() > 1 ? std::stoull(words[1]) : 1;
  Found found;
  do {
    search(seed, found);
    if (seconds > 0 && seed < first_seed_of_softmax_pairs)
      for (const std::uint64_t first : {first_seed_of_softmax_pairs, first_seed_of_sinks, first_seed_of_far_biases})
        search(first + seed, found);
    ++seed;
  } while (passed() < seconds && (keep_going || found.failed_cases < 20));
  print(found, passed());
  return found.failures > 0 ? 1 : 0;
}
