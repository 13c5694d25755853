// SPDX-License-Identifier: MIT

#include "bench/reference/hand_tiled.hpp"
#include "bench/support/shared_bodies.hpp"

namespace nprf::bench {
namespace {

void hand_tiled_eigen(benchmark::State& state) {
  const Problem& problem = bench::problem(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(hand_tiled_softmax(problem).data());
}

void axes(benchmark::internal::Benchmark* b) { b->ArgName("n")->RangeMultiplier(2)->Range(1024, 8192); }

BENCHMARK(softmax_attention)->Apply(axes)->Apply(milliseconds);
BENCHMARK(hand_tiled_eigen)->Apply(axes)->Apply(milliseconds);

}  // namespace
}  // namespace nprf::bench

BENCHMARK_MAIN();
