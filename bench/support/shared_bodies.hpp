// SPDX-License-Identifier: MIT
#pragma once

#include <benchmark/benchmark.h>

#include "bench/support/problem.hpp"

/// What several Google Benchmark programs share.
namespace nprf::bench {

inline void softmax_attention(benchmark::State& state) {
  const Problem& problem = bench::problem(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(softmax(problem).data());
}

/// run_bench gives the repetitions, of which the median counts.
inline void milliseconds(benchmark::internal::Benchmark* b) { b->Unit(benchmark::kMillisecond); }

}  // namespace nprf::bench
