// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <vector>

#include "differential/check.hpp"
#include "differential/inputs.hpp"
#include "differential/random_case.hpp"
#include "differential/reference.hpp"
#include "differential/run.hpp"
#include "differential/stability.hpp"
#include "nprf/nprf.hpp"

namespace nprf::test::differential {

/// Seeds of cases that have failed once.
inline constexpr std::uint64_t regression_seeds[] = {
    950,      995,      1611,     1776,     2019,     2880,      3108,      3579,      6310,      7385,
    7760,     12364,    12619,    20346,    201814,   205922,    218972,    222490,    3001211,   3001859,
    3003283,  3004663,  3004797,  3005642,  3013621,  3014406,   3016299,   3017978,   3018821,   3022031,
    5001268,  5002963,  5018179,  5033556,  5037496,  5041061,   6009008,   6009011,   6014078,   10025483,
    20067008, 20081924, 30062584, 60012346, 90083120, 110050389, 140089488, 180025667, 230032923,
};

/// The same, counted from first_seed_of_softmax_pairs.
inline constexpr std::uint64_t regression_seeds_of_softmax_pairs[] = {
    13, 21, 456, 815, 830, 871, 960, 1066, 1392, 10990, 11560, 12236, 12883, 14834, 15022, 19021, 23839, 24441, 106905,
};

/// The failures of a case with one engine.
struct FailedEngine {
  Engine requested, used;
  std::vector<Failure> failures;
};

inline std::vector<Engine> engines_of(const Case& c) {
  // recurrence and banded are the same engine
  std::vector<Engine> all{Engine::automatic, Engine::direct, Engine::lanes, Engine::block_causal,
                          c.seed % 4 == 0 ? Engine::recurrence : Engine::banded};
  if (NPRF_USE_FFTW) all.push_back(Engine::fftw);
  if (c.biases[0].place == Place::grid) all.push_back(Engine::grid);
  return all;
}

namespace detail {

template <Real T>
std::vector<FailedEngine> failed_engines(const Case& c, Tally& tally) {
  Inputs<T> inputs(c);
  Problem problem = inputs.problem();
  Truth truth = solve(problem);
  std::transform(problem.dy.begin(), problem.dy.end(), inputs.dy.begin(), [](Exact x) { return static_cast<T>(x); });
  std::vector<FailedEngine> all;
  for (const Engine engine : engines_of(c)) {
    FailedEngine failed{engine, engine, {}};
    try {
      const auto runner = make_runner(inputs, engine);
      const Result<T> result = runner->run(inputs);
      failed.used = result.report.engine;
      // where rows may be those of exact softmax, those are that forward recomputed
      if (c.has_softmax_rows() && result.recomputed_rows != truth.is_softmax) {
        Problem by_rows = problem;
        by_rows.is_softmax = result.recomputed_rows;
        truth = solve(by_rows);
      }
      failed.failures = Checker<T>(inputs, truth, tally)(result);
      check_stability(inputs, *runner, engine, result, failed.failures);
    } catch (const std::exception& e) {
      failed.failures.push_back({Kind::thrown, 0, 0, e.what()});
    }
    if (!failed.failures.empty()) all.push_back(failed);
  }
  return all;
}

}  // namespace detail

/// The engines with which a case fails.
inline std::vector<FailedEngine> failed_engines(const Case& c, Tally& tally) {
  return c.in_double ? detail::failed_engines<double>(c, tally) : detail::failed_engines<float>(c, tally);
}

}  // namespace nprf::test::differential
