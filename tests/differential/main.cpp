// SPDX-License-Identifier: MIT
//
// Searches among random calls of all kinds (random_case.hpp) for those whose results violate what tests/accuracy.md
// promises (check.hpp), in comparison with a reference implementation (reference.hpp):
//
//     nprf_search SECONDS [SEED] [--keep-going]    cases of the seeds SEED, SEED + 1, ...; 0 seconds: only of SEED
//
// After each of these come a case with a near field or a series, of SEED + first_seed_of_softmax_pairs, one with
// attention sinks, of SEED + first_seed_of_sinks, one with biases far from each other, of SEED +
// first_seed_of_far_biases, one with a smooth table, of SEED + first_seed_of_smooth_tables, and lives of decoders
// (random_life.hpp) for as long as these took, of seeds from first_seed_of_lives + SEED and first_seed_of_smooth_lives
// + SEED on; a SEED of lives gives lives alone. It stops at 20 failed cases, unless --keep-going is given. The seeds of
// failures become regression tests (search.hpp).

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
#include "differential/random_life.hpp"
#include "differential/search.hpp"

namespace {

using namespace nprf;
using namespace nprf::test::differential;

struct Found {
  std::uint64_t cases = 0, lives = 0, failed_cases = 0, runs = 0, failures = 0;
  std::map<std::string, std::uint64_t> by_engine;  // "engine kind"
  Tally tally;
};

// adds the failures of a case by an engine or by a decoder, and prints them as one line
void add(const std::vector<Failure>& failures, const std::string& by, const Case& c, const std::string& name,
         Found& found) {
  std::cout << "nprf_search 0 " << c.seed << "    " << by;
  for (const Failure& f : failures) {
    ++found.failures;
    const char* kind = kind_names[static_cast<std::size_t>(f.kind)];
    ++found.by_engine[by.substr(0, by.find(' ')) + " " + kind +
                      (c.non_finite_in == NonFiniteIn::none ? "" : " with non-finite inputs")];
    std::cout << ", " << kind << " of " << f.where << " off by " << f.error << " (bound " << f.bound << ")";
  }
  std::cout << ": " << name << "\n";
}

void search_case(std::uint64_t seed, Found& found) {
  const Case c = random_case(seed);
  ++found.cases;
  found.runs += engines_of(c).size();
  const std::vector<FailedEngine> all = failed_engines(c, found.tally);
  found.failed_cases += !all.empty();
  for (const FailedEngine& by : all) {
    std::string engine(name(by.requested));
    if (by.used != by.requested) engine += " (" + std::string(name(by.used)) + ")";
    add(by.failures, engine, c, c.name(), found);
  }
}

void search_life(std::uint64_t seed, Found& found) {
  const Life life = random_life(seed);
  ++found.lives;
  const std::vector<Failure> failures = failures_of(life, found.tally);
  found.failed_cases += !failures.empty();
  if (!failures.empty()) add(failures, "decoder", life.of, life.name(), found);
}

void print(const Found& found, double seconds) {
  const Tally& t = found.tally;
  std::cout << found.cases << " cases and " << found.lives << " lives ("
            << static_cast<double>(found.cases + found.lives) / seconds << " a second), " << found.runs << " runs, "
            << t.rows << " rows, " << t.gradients << " gradients, " << t.ill_conditioned_rows
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
  const std::uint64_t first = words.size() > 1 ? std::stoull(words[1]) : 1;
  const bool is_of_all = seconds > 0 && first < first_seed_of_softmax_pairs;
  Found found;
  double of_lives = 0;  // seconds
  const auto next_life = [&] {
    const double begin = passed();
    const std::uint64_t band = found.lives % 4 == 3 ? first_seed_of_smooth_lives : first_seed_of_lives;
    search_life(is_of_all ? band + first + found.lives : first + found.lives, found);
    of_lives += passed() - begin;
  };
  std::uint64_t seed = first;
  do {
    if (first >= first_seed_of_lives) {
      next_life();
      continue;
    }
    search_case(seed, found);
    if (is_of_all) {
      for (const std::uint64_t band :
           {first_seed_of_softmax_pairs, first_seed_of_sinks, first_seed_of_far_biases, first_seed_of_smooth_tables})
        search_case(band + seed, found);
      while (2 * of_lives < passed() && (keep_going || found.failed_cases < 20)) next_life();
    }
    ++seed;
  } while (passed() < seconds && (keep_going || found.failed_cases < 20));
  print(found, passed());
  return found.failures > 0 ? 1 : 0;
}
