// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "differential/case.hpp"
#include "differential/check.hpp"
#include "differential/life.hpp"
#include "nprf/core/engine.hpp"

namespace nprf::test::differential {

/// Seeds of cases that have failed once.
inline constexpr std::uint64_t regression_seeds[] = {
    950,      995,      1611,     1776,     2019,     2880,      3108,      3579,      6310,      7385,
    7760,     12364,    12619,    20346,    201814,   205922,    218972,    222490,    3001211,   3001859,
    3003283,  3004663,  3004797,  3005642,  3013621,  3014406,   3016299,   3017978,   3018821,   3022031,
    5001268,  5002963,  5018179,  5033556,  5037496,  5041061,   6009008,   6009011,   6014078,   10025483,
    20067008, 20081924, 30062584, 60012346, 90083120, 110050389, 140089488, 180025667, 230032923, 3848310056645,
};

/// The same, counted from first_seed_of_softmax_pairs.
inline constexpr std::uint64_t regression_seeds_of_softmax_pairs[] = {
    13, 21, 456, 815, 830, 871, 960, 1066, 1392, 10990, 11560, 12236, 12883, 14834, 15022, 19021, 23839, 24441, 106905,
};

/// The same of lives of decoders, counted from first_seed_of_lives.
inline constexpr std::uint64_t regression_seeds_of_lives[] = {
    283,  352,  472,  605,  730,  959,    1006,   1012,   1263,   1276,
    1378, 1646, 1833, 2001, 2195, 100073, 100828, 200043, 200056, 200437,
};

/// The failures of a case with one engine.
struct FailedEngine {
  Engine requested, used;
  std::vector<Failure> failures;
};

std::vector<Engine> engines_of(const Case& c);

/// The engines with which a case fails.
std::vector<FailedEngine> failed_engines(const Case& c, Tally& tally);

/// The failures of a life of a decoder, of each kind the worst.
std::vector<Failure> failures_of(const Life& life, Tally& tally);

}  // namespace nprf::test::differential
