// SPDX-License-Identifier: MIT

#include "nprf/toeplitz/smooth/engine.hpp"
#include "bench/support/positions.hpp"
#include "bench/support/shared_bodies.hpp"

namespace nprf::bench {
namespace {

void moments(benchmark::State& state, Direction direction) {
  const Index n = state.range(0);
  const Product product(problem(n), state.range(1), make_position(PositionKind::smooth, direction, n).bias(),
                        direction);
  contract(state, product, Engine::smooth);
}

// what is computed once for a table
void plan(benchmark::State& state, Direction direction) {
  const Index n = state.range(0), m = state.range(1);
  const Product product(problem(n), m, make_position(PositionKind::smooth, direction, n).bias(), direction);
  Workspace workspace;
  for (auto _ : state) {
    const Workspace::Scope scope(workspace);
    const toeplitz::SmoothEngine<float> engine(product.lags.view(), {n, n, m, head_dim + 1}, Team(workspace));
    benchmark::DoNotOptimize(engine.plan().error());
  }
}

BENCHMARK_CAPTURE(moments, bidirectional, Direction::bidirectional)->Apply(lengths);
BENCHMARK_CAPTURE(moments, causal, Direction::causal)->Apply(lengths);
BENCHMARK_CAPTURE(plan, bidirectional, Direction::bidirectional)->Apply(lengths);
BENCHMARK_CAPTURE(plan, causal, Direction::causal)->Apply(lengths);

}  // namespace
}  // namespace nprf::bench

BENCHMARK_MAIN();
