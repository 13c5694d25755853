// SPDX-License-Identifier: MIT

#include "bench/support/shared_bodies.hpp"

// The whole call, features included, and backwards.
namespace nprf::bench {
namespace {

void forward(benchmark::State& state, Engine engine) {
  const Problem& problem = bench::problem(state.range(0));
  const auto attention = make_attention(problem.position, state.range(1), engine);
  for (auto _ : state) benchmark::DoNotOptimize(attention(problem.q, problem.k, problem.v).data());
}

void backward(benchmark::State& state, Engine engine) {
  const Problem& problem = bench::problem(state.range(0));
  const auto attention = make_attention(problem.position, state.range(1), engine);
  const Matrix<float> dy = draw(problem.v.rows(), head_dim, 4);
  Saved<float> saved;
  attention.forward(problem.q, problem.k, problem.v, saved);
  for (auto _ : state) benchmark::DoNotOptimize(attention.backward(saved, dy).queries.data());
}

template <int last>
void sizes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"n", "m"})->ArgsProduct({benchmark::CreateRange(256, last, 2), {16, 32, 64}})->Apply(milliseconds);
}

BENCHMARK(softmax_attention)->ArgName("n")->RangeMultiplier(2)->Range(256, 8192)->Apply(milliseconds);
BENCHMARK_CAPTURE(forward, direct, Engine::direct)->Apply(sizes<4096>);
BENCHMARK_CAPTURE(forward, lanes, Engine::lanes)->Apply(sizes<8192>);
BENCHMARK_CAPTURE(forward, fftw, Engine::fftw)->Apply(sizes<8192>);
BENCHMARK_CAPTURE(backward, direct, Engine::direct)->Apply(sizes<2048>);
BENCHMARK_CAPTURE(backward, lanes, Engine::lanes)->Apply(sizes<8192>);

}  // namespace
}  // namespace nprf::bench

BENCHMARK_MAIN();
