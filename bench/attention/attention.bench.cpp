// SPDX-License-Identifier: MIT

#include "bench/support/shared_bodies.hpp"

// Time over sequence length of the whole forward call, features included, as in figure 1(a) of Luo et al. 2021.
namespace nprf::bench {
namespace {

void kernelized_attention(benchmark::State& state, Engine engine) {
  const Problem& problem = bench::problem(state.range(0));
  const auto attention = make_attention(problem.position, state.range(1), engine);
  for (auto _ : state) benchmark::DoNotOptimize(attention(problem.q, problem.k, problem.v).data());
}

using Benchmark = benchmark::internal::Benchmark;
constexpr int shortest = 256, longest = 32768;

template <int last>
void lengths(Benchmark* b) {
  b->ArgName("n")->RangeMultiplier(2)->Range(shortest, last);
}

template <int last, int first = shortest>
void lengths_and_features(Benchmark* b) {
  b->ArgNames({"n", "m"})->ArgsProduct({benchmark::CreateRange(first, last, 2), {16, 32, 64}});
}

// a quadratic call takes seconds at the longest n
void once(Benchmark* b) { b->Iterations(1)->Repetitions(1)->Apply(milliseconds); }

BENCHMARK(softmax_attention)->Apply(lengths<longest / 2>)->Apply(milliseconds);
BENCHMARK(softmax_attention)->ArgName("n")->Arg(longest)->Apply(once);

BENCHMARK_CAPTURE(kernelized_attention, direct, Engine::direct)
    ->Apply(lengths_and_features<longest / 2>)
    ->Apply(milliseconds);
BENCHMARK_CAPTURE(kernelized_attention, direct, Engine::direct)
    ->Apply(lengths_and_features<longest, longest>)
    ->Apply(once);

BENCHMARK_CAPTURE(kernelized_attention, fftw, Engine::fftw)->Apply(lengths_and_features<longest>)->Apply(milliseconds);

}  // namespace
}  // namespace nprf::bench

BENCHMARK_MAIN();
