// SPDX-License-Identifier: MIT

#include "bench/support/shared_bodies.hpp"

namespace nprf::bench {
namespace {

void fftw_engine(benchmark::State& state) {
  contract(state, Product(problem(state.range(0)), state.range(1)), Engine::fftw);
}

BENCHMARK(fftw_engine)->Apply(lengths);
BENCHMARK(bare_fftw_pairs)->Apply(lengths);

}  // namespace
}  // namespace nprf::bench

BENCHMARK_MAIN();
