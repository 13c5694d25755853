// SPDX-License-Identifier: MIT

#include "bench/support/shared_bodies.hpp"
#include "bench/toeplitz/bare_fftw.hpp"

namespace nprf::bench {
namespace {

void fftw_engine(benchmark::State& state) {
  Product product(problem(state.range(0)), state.range(1));
  for (auto _ : state) {
    product.contract(Engine::fftw);
    benchmark::DoNotOptimize(product.Y.data());
  }
}

void bare_fftw_pairs(benchmark::State& state) {
  const BareFftw pairs(state.range(0), state.range(1), head_dim);
  for (auto _ : state) pairs();
}

void axes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"n", "m"})->ArgsProduct({benchmark::CreateRange(1024, 32768, 2), {32}});
}

BENCHMARK(fftw_engine)->Apply(axes)->Apply(milliseconds);
BENCHMARK(bare_fftw_pairs)->Apply(axes)->Apply(milliseconds);

}  // namespace
}  // namespace nprf::bench

BENCHMARK_MAIN();
