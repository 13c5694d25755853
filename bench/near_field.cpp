// SPDX-License-Identifier: MIT
//
// near_field: the time of one head by the options that README.md advises, d + 1 Taylor features and a near field of 32
// tokens, beside random features without a near field, and exact softmax.

#include <cstdio>
#include <vector>

#include "bench/support/positions.hpp"
#include "bench/support/problem.hpp"
#include "bench/support/race.hpp"

namespace nprf::bench {
namespace {

Race::Contender near_field(const Problem& p, PositionKind kind, Direction direction) {
  const Attention attention(TaylorFeatures<float>({.input_dim = head_dim}), make_position(kind, direction, p.q.rows()),
                            {.direction = direction, .near = 32});
  return [&p, attention] { keep(attention(p.q, p.k, p.v)); };
}

Race::Contender random_features(const Problem& p, PositionKind kind, Direction direction) {
  const auto attention = make_attention(make_position(kind, direction, p.q.rows()), 32, Engine::automatic, direction);
  return [&p, attention] { keep(attention(p.q, p.k, p.v)); };
}

void print_times(Direction direction) {
  std::printf("\n%s: milliseconds of one head, d = d_v = 64, one thread, n tokens\n\n",
              direction == Direction::causal ? "Causal" : "Bidirectional");
  std::puts(
      "| n | softmax | every lag: `orf` 32 | Taylor, near 32 | T5: `orf` 32 | Taylor, near 32 | ALiBi: `orf` 32 | "
      "Taylor, near 32 |\n|---|---|---|---|---|---|---|---|");
  for (const Index n : {256, 512, 1024, 4096, 16384}) {
    const Problem& p = problem(n);
    std::vector<Race::Contender> contenders{[&] { keep(softmax(p, head_dim, direction)); }};
    for (const PositionKind kind : {PositionKind::dense, PositionKind::t5, PositionKind::alibi}) {
      contenders.push_back(random_features(p, kind, direction));
      contenders.push_back(near_field(p, kind, direction));
    }
    const Race race(contenders, {.budget = 3});
    std::printf("| %td ", n);
    for (std::size_t c = 0; c < contenders.size(); ++c) std::printf("| %.3g ", 1e3 * race.seconds(c));
    std::puts("|");
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace nprf::bench

int main() {
  nprf::bench::print_times(nprf::Direction::bidirectional);
  nprf::bench::print_times(nprf::Direction::causal);
}
