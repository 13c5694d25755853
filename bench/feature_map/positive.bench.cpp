// SPDX-License-Identifier: MIT

#include "bench/support/shared_bodies.hpp"

namespace nprf::bench {
namespace {

// phi(q) and phi(k), normalised
void query_and_key_features(benchmark::State& state) {
  const Problem& problem = bench::problem(state.range(0));
  const auto attention = make_attention(problem.position, state.range(1), Engine::automatic);
  for (auto _ : state) {
    benchmark::DoNotOptimize(attention.query_features(problem.q).data());
    benchmark::DoNotOptimize(attention.key_features(problem.k).data());
  }
}

// the two products that no implementation can do without
void bare_products(benchmark::State& state) {
  const Problem& problem = bench::problem(state.range(0));
  const Matrix<float> wt = orf<float>(head_dim, state.range(1)).projection().transpose();  // (d,m)
  Matrix<float> zq(problem.q.rows(), wt.cols()), zk(problem.k.rows(), wt.cols());
  for (auto _ : state) {
    zq.noalias() = problem.q * wt;  // (n,m)
    zk.noalias() = problem.k * wt;  // (n,m)
    benchmark::DoNotOptimize(zq.data());
    benchmark::DoNotOptimize(zk.data());
  }
}

void axes(benchmark::internal::Benchmark* b) { b->ArgNames({"n", "m"})->Args({8192, 32}); }

BENCHMARK(query_and_key_features)->Apply(axes)->Apply(milliseconds);
BENCHMARK(bare_products)->Apply(axes)->Apply(milliseconds);

}  // namespace
}  // namespace nprf::bench

BENCHMARK_MAIN();
