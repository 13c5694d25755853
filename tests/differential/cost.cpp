// SPDX-License-Identifier: MIT
//
// Searches among random calls (random_case.hpp), made n tokens long, for those that take far longer than a benign call:
//
//     nprf_cost SECONDS [n] [SEED]
//
// A benign call has the same map, kind of position, direction and precision, but N(0,1) tokens of norm 1, values N(0,1)
// and small biases. Both are by Engine::automatic. Prints the largest ratios of their processor times, forward alone
// and with gradients, each also beside a benign call of Engine::direct. See "Cost" in tests/accuracy.md.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "differential/inputs.hpp"
#include "differential/random_case.hpp"
#include "differential/run.hpp"

namespace {

using namespace nprf;
using namespace nprf::test::differential;

double processor_seconds() {
  std::timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Cost {
  double forward, both;  // seconds; `both` is of forward with saved data and backward
};

// the best of two
template <Real T>
Cost cost(const Case& c, Engine engine) {
  const Inputs<T> inputs(c);
  const auto runner = make_runner(inputs, engine);
  Cost best{1e9, 1e9};
  for (int repeat = 0; repeat < 2; ++repeat) {
    Report report;
    double start = processor_seconds();
    runner->forward(inputs, report);
    const double forward = processor_seconds() - start;
    start = processor_seconds();
    runner->run(inputs);  // forward once more
    best = {std::min(best.forward, forward), std::min(best.both, processor_seconds() - start - forward)};
  }
  return best;
}
Cost cost(const Case& c, Engine engine) { return c.in_double ? cost<double>(c, engine) : cost<float>(c, engine); }

// the random case, for n tokens: what depends on their number is drawn again
Case long_case(std::uint64_t seed, Index n) {
  Case c = random_case(seed);
  const Place place = c.biases[0].place;
  c.d = 32, c.m = 32, c.d_v = 16, c.batch = c.heads = 1, c.by_heads = c.own_map = false;
  c.n_q = c.n_k = n;
  c.gradient_rows = 0;
  if (c.padding != Padding::none)
    c.padding = Padding::none, c.lengths.clear(), c.query_ends.clear(), c.key_ends.clear();
  if (std::abs(c.offset) > n) c.offset = 0;
  if (c.near > 0) c.near = std::min<Index>(c.near, 64);
  if (c.sinks > 0) c.sinks = std::min<Index>(c.sinks, 8);
  Draw draw(seed + 5);
  if (draw.one_in(3)) c.radius > 0 ? c.radius = draw.one_of({20., 30., 100.}) : c.norm = draw.one_of({20., 30.});
  Bias grid;
  grid.place = Place::grid, grid.height = n / 64, grid.width = 64;
  const bool is_far = seed >= first_seed_of_far_biases;
  c.biases = {random_bias(draw, place, n, c.causal, grid)};
  if (is_far) nprf::test::differential::detail::draw_far_biases(draw, c.biases[0], -1e30);
  return c;
}

Case benign(const Case& of) {
  Case c = of;
  c.queries = c.keys = Tokens::normal, c.q_scale = c.k_scale = 1;
  c.radius > 0 ? c.radius = 1 : c.norm = 1;
  c.values = c.gradients = {};
  c.masked = Masked::none, c.has_non_finite_padding = false, c.non_finite_in = NonFiniteIn::none, c.offset = 0;
  Draw draw(7);
  for (auto* all : {&c.biases[0].weights, &c.biases[0].extra})
    for (Exact& b : *all) b = 0.1 * draw.normal();
  if (c.biases[0].place == Place::alibi) c.biases[0].slope = 0.05;
  return c;
}

struct Worst {
  double ratio = 0;
  std::uint64_t seed = 0;
  std::string what;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    std::cerr << "usage: nprf_cost SECONDS [n] [SEED]\n";
    return 2;
  }
  set_num_threads(1);
  const double seconds = std::atof(argv[1]);
  const Index n = argc > 2 ? std::atol(argv[2]) : 8192;
  std::uint64_t seed = argc > 3 ? std::stoull(argv[3]) : 1;
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  std::map<std::tuple<bool, Map, Place, bool, Index, Index>, std::pair<Cost, Cost>> known;  // benign: automatic, direct
  std::map<std::string, std::vector<Worst>> all;
  do {
    for (const std::uint64_t first :
         {std::uint64_t{0}, first_seed_of_softmax_pairs, first_seed_of_sinks, first_seed_of_far_biases}) {
      const Case c = long_case(first + seed, n), easy = benign(c);
      const std::tuple key{c.in_double, c.map, c.biases[0].place, c.causal, c.near, c.sinks};
      if (!known.contains(key)) known[key] = {cost(easy, Engine::automatic), cost(easy, Engine::direct)};
      const auto& [automatic, direct] = known[key];
      const Cost is = cost(c, Engine::automatic);
      for (const auto& [name, ratio] :
           {std::pair{"forward", is.forward / automatic.forward}, std::pair{"with gradients", is.both / automatic.both},
            std::pair{"forward, over direct", is.forward / direct.forward},
            std::pair{"with gradients, over direct", is.both / direct.both}})
        all[name].push_back({ratio, first + seed, c.name()});
    }
    ++seed;
  } while (std::chrono::duration<double>(Clock::now() - start).count() < seconds);
  for (auto& [name, worst] : all) {
    std::ranges::sort(worst, std::greater(), &Worst::ratio);
    std::cout << name << ", of " << worst.size() << " calls:\n";
    for (std::size_t at = 0; at < std::min<std::size_t>(worst.size(), 12); ++at)
      std::cout << "  " << worst[at].ratio << "  seed " << worst[at].seed << ": " << worst[at].what << "\n";
  }
}
