// SPDX-License-Identifier: MIT

// One file for the tests and for nprf_search: it takes longest to compile.

#include "differential/search.hpp"

#include <algorithm>
#include <exception>
#include <memory>

#include "differential/check.hpp"
#include "differential/inputs.hpp"
#include "differential/random_case.hpp"
#include "differential/reference.hpp"
#include "differential/run.hpp"
#include "differential/stability.hpp"
#include "nprf/nprf.hpp"

namespace nprf::test::differential {

template std::unique_ptr<Runner<float>> make_runner(const Inputs<float>&, Engine);
template std::unique_ptr<Runner<double>> make_runner(const Inputs<double>&, Engine);

std::vector<Engine> engines_of(const Case& c) {
  // recurrence and banded are the same engine
  std::vector<Engine> all{Engine::automatic, Engine::direct, Engine::lanes, Engine::block_causal,
                          c.seed % 4 == 0 ? Engine::recurrence : Engine::banded};
  if (NPRF_USE_FFTW) all.push_back(Engine::fftw);
  // elsewhere few cases have chunks of slots
  if (c.seed >= first_seed_of_smooth_tables || c.seed % 8 == 0) all.push_back(Engine::smooth);
  if (c.biases[0].place == Place::grid) all.push_back(Engine::grid);
  return all;
}

namespace {

template <Real T>
std::vector<FailedEngine> failed_engines_of(const Case& c, Tally& tally) {
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
      // which rows are those of exact softmax is the library's choice
      if (result.softmax_rows != truth.is_softmax) {
        Problem by_rows = problem;
        by_rows.is_softmax = result.softmax_rows;
        truth = solve(by_rows);
      }
      failed.failures = Checker<T>(inputs, truth, tally, engine != Engine::smooth)(result);
      check_stability(inputs, *runner, engine, result, failed.failures);
    } catch (const std::exception& e) {
      failed.failures.push_back({Kind::thrown, 0, 0, e.what()});
    }
    if (!failed.failures.empty()) all.push_back(failed);
  }
  return all;
}

}  // namespace

std::vector<FailedEngine> failed_engines(const Case& c, Tally& tally) {
  return c.in_double ? failed_engines_of<double>(c, tally) : failed_engines_of<float>(c, tally);
}

}  // namespace nprf::test::differential
