// SPDX-License-Identifier: MIT
//
// million_tokens: one forward call over a million tokens with a bias of its own for every lag: time, and memory beyond
// inputs and output. Then the same tokens with T5's buckets: time a token beside that of 16,384 tokens.

#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>

#include "bench/support/positions.hpp"
#include "bench/support/race.hpp"

namespace nprf::bench {
namespace {

constexpr Index n = 1'000'000, m = 32, few = 16'384;

double peak_GiB() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1024 * 1024);  // Linux counts in KiB
}

const char* mark(double x, double at_most) { return x <= at_most ? "" : "  MISSED"; }

bool dense() {
  const Problem& p = problem(n);
  const auto attention =
      make_attention(make_position(PositionKind::dense, Direction::bidirectional, n), m, Engine::lanes);
  Matrix<float> y;
  Report report;
  const double seconds = seconds_of([&] { y = attention(p.q, p.k, p.v, {.report = &report}); });

  constexpr double most = 1, stretch = 0.25, GiB = 1024.0 * 1024 * 1024;
  const Index biases = p.position.bias().table.size();
  const double arrays = static_cast<double>(4 * n * head_dim + 2 * biases) * sizeof(float) / GiB;  // b stands twice
  const double beyond = peak_GiB() - arrays;
  std::printf("lanes, dense, n = %td, d = d_v = %td, m = %td, float, bidirectional, one thread\n", n, head_dim, m);
  std::printf("  seconds                %8.1f\n", seconds);
  std::printf("  recomputed rows        %8td\n", report.repaired_rows);
  std::printf("  indefinite rows        %8td\n", report.indefinite_rows);
  std::printf("  error bound            %8.1e\n", report.error_bound);
  std::printf("  workspace              %8.2f GiB\n", static_cast<double>(report.workspace_bytes) / GiB);
  std::printf("  inputs and output      %8.2f GiB\n", arrays);
  std::printf("  resident beyond them   %8.2f GiB (at most %.2f, stretch %.2f)%s\n", beyond, most, stretch,
              mark(beyond, most));
  return y.allFinite() && beyond <= most;
}

bool banded() {
  const auto attention = [](Index tokens) {
    return make_attention(make_position(PositionKind::t5, Direction::bidirectional, tokens), m, Engine::banded);
  };
  const auto forward = [&](Index tokens) {
    return [&p = problem(tokens), head = attention(tokens)] { keep(head(p.q, p.k, p.v)); };
  };
  const Race race({forward(few), forward(n)}, {.budget = 10, .longest_repeated = 30});
  const auto nanoseconds = [&](std::size_t contender, Index tokens) {
    return 1e9 * race.seconds(contender) / static_cast<double>(tokens);
  };
  constexpr double most = 1.3, stretch = 1.1;
  const double ratio = nanoseconds(1, n) / nanoseconds(0, few);
  std::printf("banded, T5\n");
  std::printf("  ns a token, n = %-7td%8.1f\n", few, nanoseconds(0, few));
  std::printf("  ns a token, n = %-7td%8.1f\n", n, nanoseconds(1, n));
  std::printf("  ratio                  %8.2f     (at most %.2f, stretch %.2f)%s\n", ratio, most, stretch,
              mark(ratio, most));
  return ratio <= most;
}

}  // namespace
}  // namespace nprf::bench

int main() {
  const bool dense = nprf::bench::dense();  // first: memory is counted at its peak
  const bool banded = nprf::bench::banded();
  return dense && banded ? EXIT_SUCCESS : EXIT_FAILURE;
}
