// SPDX-License-Identifier: MIT
//
// One forward call over a million tokens with a bias of its own for every lag: time, and peak resident memory.

#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>

#include "bench/support/problem.hpp"
#include "bench/support/race.hpp"

int main() {
  using namespace nprf;
  constexpr Index n = 1'000'000, m = 16;
  constexpr double GiB = 1024.0 * 1024 * 1024, most_GiB = 4;

  bench::Problem problem(n);
  const Index scalars = 4 * n * bench::head_dim + problem.position.bias().table.size();  // q k v y, and b
  const auto attention = bench::make_attention(std::move(problem.position), m, Engine::automatic);

  Matrix<float> y;
  Report report;
  const double seconds =
      bench::seconds_of([&] { y = attention(problem.q, problem.k, problem.v, {.report = &report}); });

  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const double peak = static_cast<double>(usage.ru_maxrss) * 1024;  // Linux counts in KiB
  const auto gibibytes = [](double bytes) { return bytes / GiB; };

  std::printf("n = %td, d = d_v = %td, m = %td, float, bidirectional, %td biases\n", n, bench::head_dim, m,
              attention.position().bias().table.size());
  std::printf("seconds            %10.1f\n", seconds);
  std::printf("engine             %10s\n", name(report.engine).data());
  std::printf("repaired rows      %10td\n", report.repaired_rows);
  std::printf("indefinite rows    %10td\n", report.indefinite_rows);
  std::printf("empty rows         %10td\n", report.empty_rows);
  std::printf("error bound        %10.1e\n", report.error_bound);
  std::printf("workspace          %10.2f GiB\n", gibibytes(static_cast<double>(report.workspace_bytes)));
  std::printf("inputs and output  %10.2f GiB\n", gibibytes(static_cast<double>(scalars) * sizeof(float)));
  std::printf("peak resident      %10.2f GiB (target: at most %.0f)\n", gibibytes(peak), most_GiB);
  if (!y.allFinite()) {
    std::printf("the output holds a NaN or an infinity\n");
    return EXIT_FAILURE;
  }
  return gibibytes(peak) <= most_GiB ? EXIT_SUCCESS : EXIT_FAILURE;
}
