// SPDX-License-Identifier: MIT
//
// What threads gain: wall time of many heads and of one long head on one thread and on all, beside a matrix product of
// the same run, which has nothing that could not be spread.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "bench/support/problem.hpp"
#include "bench/support/race.hpp"

namespace nprf::bench {
namespace {

// heads of n tokens with a bias of its own for every lag of each
struct ManyHeads {
  using Array = std::vector<float>;

  ManyHeads(Index heads, Index n)
      : q(array(heads, n, 0)),
        k(array(heads, n, 1)),
        v(array(heads, n, 2)),
        y(q.size()),
        dq(q.size()),
        dk(q.size()),
        dv(q.size()),
        h(heads),
        tokens(n),
        attention(orf<float>(head_dim, 32), positions(heads, n), {.engine = Engine::lanes}) {}

  static Array array(Index heads, Index n, std::uint64_t stream) {
    const Matrix<float> x = draw(heads * n, head_dim, stream);
    return Array(x.data(), x.data() + x.size());
  }
  static std::vector<RelativePosition<float>> positions(Index heads, Index n) {
    std::vector<RelativePosition<float>> drawn;
    for (Index head = 0; head < heads; ++head)
      drawn.emplace_back(draw(2 * n - 1, 1, 4 + static_cast<std::uint64_t>(head)));
    return drawn;
  }

  HeadsView<float> view(Array& x) const { return {x.data(), 1, h, tokens, head_dim}; }
  void forward() { attention(view(q), view(k), view(v), view(y)); }
  void both() {
    attention.forward(view(q), view(k), view(v), view(y), saved);
    attention.backward(saved, view(y), view(dq), view(dk), view(dv), dbias);
  }

  Array q, k, v, y, dq, dk, dv;
  Index h, tokens;
  MultiHeadAttention<PositiveFeatures<float>, RelativePosition<float>> attention;
  Saved<float> saved;
  std::vector<Matrix<float>> dbias;
};

void speed_ups(Index threads) {
  ManyHeads many(8, 4096), one(1, 16384);
  const Index n = 2048, tile = 128;
  const Matrix<float> A = draw(n, n, 0), B = draw(n, n, 1);
  Matrix<float> C(n, n);
  std::vector<Workspace> workspaces(static_cast<std::size_t>(threads));
  const auto gemm = [&] {
    Team(std::span(workspaces).first(static_cast<std::size_t>(num_threads())))
        .run_tiles(n, tile, [&](Index i0, Index rows, Workspace&) {
          C.middleRows(i0, rows).noalias() = A.middleRows(i0, rows) * B;
        });
  };

  struct Row {
    std::string what;
    Race::Contender run;
  };
  const std::vector<Row> rows{{"matrix product, 2048 x 2048 x 2048, by rows", gemm},
                              {"8 heads, n = 4096, forward", [&] { many.forward(); }},
                              {"1 head, n = 16384, forward", [&] { one.forward(); }},
                              {"8 heads, n = 4096, forward and backward", [&] { many.both(); }},
                              {"1 head, n = 16384, forward and backward", [&] { one.both(); }}};
  std::vector<Race::Contender> contenders;
  for (const Row& row : rows)
    for (const Index count : {Index{1}, threads})
      contenders.emplace_back([&row, count] {
        set_num_threads(count);
        row.run();
      });
  const Race race(contenders, {.budget = 10, .clock = Clock::wall});

  std::printf(
      "\n| Engine::lanes, m = 32, d = d_v = 64                | 1 thread, ms | %2td threads, ms | speed-up | over the "
      "product's |\n",
      threads);
  std::printf("|---|---|---|---|---|\n");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double gain = race.ratio(2 * i, 2 * i + 1);
    std::printf("| %-50s | %12.1f | %14.1f | %8.2f | %8.2f %s |\n", rows[i].what.c_str(), 1e3 * race.seconds(2 * i),
                1e3 * race.seconds(2 * i + 1), gain, gain / race.ratio(0, 1), i == 0 ? "         " : "(>= 0.95)");
  }
}

}  // namespace
}  // namespace nprf::bench

int main() {
  const auto threads = static_cast<nprf::Index>(std::max(std::thread::hardware_concurrency(), 1u));
  if (threads == 1) {
    std::printf("one processor: threads have nothing to gain here\n");
    return EXIT_SUCCESS;
  }
  nprf::bench::speed_ups(threads);
  return EXIT_SUCCESS;
}
