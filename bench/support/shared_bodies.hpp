// SPDX-License-Identifier: MIT
#pragma once

#include <benchmark/benchmark.h>

#include "bench/support/problem.hpp"
#include "bench/toeplitz/fftw/bare_fftw.hpp"

/// What several Google Benchmark programs share.
namespace nprf::bench {

inline void softmax_attention(benchmark::State& state) {
  const Problem& problem = bench::problem(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(softmax(problem).data());
}

/// The product by one engine, and nothing else.
inline void contract(benchmark::State& state, Product product, Engine engine) {
  for (auto _ : state) {
    product.contract(engine);
    benchmark::DoNotOptimize(product.Y.data());
  }
}

inline void bare_fftw_pairs(benchmark::State& state) {
  const BareFftw pairs(state.range(0), state.range(1), head_dim);
  for (auto _ : state) pairs();
}

/// The repetitions, of which the median counts, are the caller's.
inline void milliseconds(benchmark::internal::Benchmark* b) { b->Unit(benchmark::kMillisecond); }

inline void lengths(benchmark::internal::Benchmark* b) {
  b->ArgNames({"n", "m"})->ArgsProduct({benchmark::CreateRange(1024, 32768, 2), {32}})->Apply(milliseconds);
}

}  // namespace nprf::bench
