// SPDX-License-Identifier: MIT

#include "bench/support/positions.hpp"
#include "bench/support/shared_bodies.hpp"

namespace nprf::bench {
namespace {

void tails(benchmark::State& state, PositionKind kind, Direction direction) {
  const Index n = state.range(0);
  const Product product(problem(n), state.range(1), make_position(kind, direction, n).bias(), direction);
  contract(state, product, Engine::banded);
}

// what a product without positions cannot do without
void bare_products(benchmark::State& state) {
  Product product(problem(state.range(0)), state.range(1));
  Matrix<float> S(product.B.cols(), product.U.cols());
  for (auto _ : state) {
    S.noalias() = product.B.transpose() * product.U;  // (m,d_v+1)
    product.Y.noalias() = product.A * S;              // (n,d_v+1)
    benchmark::DoNotOptimize(product.Y.data());
  }
}

BENCHMARK_CAPTURE(tails, t5, PositionKind::t5, Direction::bidirectional)->Apply(lengths);
BENCHMARK_CAPTURE(tails, t5_causal, PositionKind::t5, Direction::causal)->Apply(lengths);
BENCHMARK_CAPTURE(tails, alibi, PositionKind::alibi, Direction::bidirectional)->Apply(lengths);
BENCHMARK_CAPTURE(tails, alibi_causal, PositionKind::alibi, Direction::causal)->Apply(lengths);
BENCHMARK_CAPTURE(tails, no_position, PositionKind::none, Direction::bidirectional)->Apply(lengths);
BENCHMARK(bare_products)->Apply(lengths);

}  // namespace
}  // namespace nprf::bench

BENCHMARK_MAIN();
