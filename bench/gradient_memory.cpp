// SPDX-License-Identifier: MIT
//
// Forward and backward of one head over 65,536 tokens: time, and peak resident memory.

#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>

#include "bench/support/problem.hpp"
#include "bench/support/race.hpp"

int main() {
  using namespace nprf;
  constexpr Index n = 65'536, m = 32;
  constexpr double GiB = 1024.0 * 1024 * 1024;

  bench::Problem problem(n);
  const auto attention = bench::make_attention(std::move(problem.position), m, Engine::automatic);
  const Matrix<float> dy = bench::draw(n, bench::head_dim, 4);

  Saved<float> saved;
  Report report;
  Matrix<float> y;
  Gradients<float> g;
  const double forward =
      bench::seconds_of([&] { y = attention.forward(problem.q, problem.k, problem.v, saved, {.report = &report}); });
  const double backward = bench::seconds_of([&] { g = attention.backward(saved, dy); });

  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const double peak = static_cast<double>(usage.ru_maxrss) * 1024 / GiB;  // Linux counts in KiB
  const double arrays = 9.0 * static_cast<double>(n * bench::head_dim) * sizeof(float) / GiB;

  std::printf("n = %td, d = d_v = %td, m = %td, float, bidirectional, a bias for each lag\n", n, bench::head_dim, m);
  std::printf("engine             %10s\n", name(report.engine).data());
  std::printf("seconds forward    %10.1f\n", forward);
  std::printf("seconds backward   %10.1f\n", backward);
  std::printf("peak resident      %10.2f GiB\n", peak);
  std::printf("of it q k v y dy and gradients %.2f GiB\n", arrays);
  return y.allFinite() && g.queries.allFinite() && g.keys.allFinite() && g.values.allFinite() ? EXIT_SUCCESS
                                                                                              : EXIT_FAILURE;
}
