// SPDX-License-Identifier: MIT

// Threads that share an attention get the same bits as one thread.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

#if NPRF_USE_FFTW
#include <complex>
#include <mutex>

#include "nprf/fft/fftw.hpp"
#endif

namespace nprf::test::attention_sharing {

namespace {

constexpr Index d = 4, m = 8, d_v = 3;
constexpr std::size_t crowd = 8;

template <Real T>
using Shared = Attention<PositiveFeatures<T>, RelativePosition<T>>;

template <Real T>
Shared<T> make(const AttentionOptions& options) {
  return {orf<T>(d, m, 7), RelativePosition<T>(random_table<T>(300, 40)), options};
}

template <Real T>
Passes<T> run(const Shared<T>& attention, const Tokens<T>& x, Saved<T>& saved) {
  return both_passes(attention, x, x.v, {}, saved);
}
template <Real T>
Passes<T> run(const Shared<T>& attention, const Tokens<T>& x) {
  return both_passes(attention, x, x.v);
}

// a number of tokens for each thread and round; one in eight is large enough to use several threads itself
template <Real T>
Tokens<T> tokens_of(std::size_t thread, std::size_t round) {
  const auto turn = static_cast<Index>(thread + round);
  const Index n = turn % 8 == 7 ? 600 : 31 + 53 * (turn % 8);
  return random_tokens<T>(n, n, d, d_v, static_cast<std::uint64_t>(n));
}

template <class Body>
void together(Body&& body) {
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < crowd; ++t) threads.emplace_back([&body, t] { body(t); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

TEMPLATE_TEST_CASE("threads share an attention, forward and backward, for different inputs", "[attention][threads]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr std::size_t rounds = 3;
  for (const Engine engine : all_engines())
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      const Shared<T> attention = make<T>({.direction = direction, .engine = engine});
      std::array<std::array<Passes<T>, rounds>, crowd> outcomes;
      together([&](std::size_t t) {
        Saved<T> saved;  // reused in all rounds
        for (std::size_t round = 0; round < rounds; ++round)
          outcomes[t][round] = run(attention, tokens_of<T>(t, round), saved);
      });
      for (std::size_t turn = 0; turn < crowd; ++turn) {
        const Passes<T> alone = run(attention, tokens_of<T>(turn, 0));
        INFO(std::string(name(engine)) << (direction == Direction::causal ? " causal" : "") << ", turn " << turn);
        for (std::size_t round = 0; round < rounds; ++round)
          CHECK(same_bits(outcomes[(turn + crowd - round) % crowd][round], alone));
      }
    }
}

TEMPLATE_TEST_CASE("threads share saved data", "[attention][threads]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Engine engine : engines()) {
    const Shared<T> attention = make<T>({.direction = Direction::causal, .engine = engine});
    Saved<T> saved;
    const Tokens<T> x = tokens_of<T>(3, 0);
    const Passes<T> expected = run(attention, x, saved);
    std::array<Gradients<T>, crowd> gradients;
    together([&](std::size_t t) { gradients[t] = attention.backward(saved, x.v); });
    INFO(std::string(name(engine)));
    CHECK(std::ranges::all_of(gradients, [&](const Gradients<T>& g) { return same_bits(g, expected.g); }));
  }
}

#if NPRF_USE_FFTW

namespace {

// whether a program's own transform and inverse transform by FFTW return the signal
bool transforms(int n, unsigned effort) {
  const auto size = static_cast<std::size_t>(n);
  std::vector<double> x(size), y(size);
  std::vector<std::complex<double>> bins(size / 2 + 1);
  auto* z = reinterpret_cast<fftw_complex*>(bins.data());
  fftw_plan there, back;
  {
    const std::scoped_lock lock(fft::planner_mutex());
    there = fftw_plan_dft_r2c_1d(n, x.data(), z, effort);
    back = fftw_plan_dft_c2r_1d(n, z, y.data(), effort);
  }
  for (std::size_t j = 0; j < size; ++j) x[j] = static_cast<double>(j % 7) - 3;
  const std::vector<double> signal = x;
  fftw_execute(there);
  fftw_execute(back);
  double worst = 0;
  for (std::size_t j = 0; j < size; ++j) worst = std::max(worst, std::abs(y[j] / n - signal[j]));
  {
    const std::scoped_lock lock(fft::planner_mutex());
    fftw_destroy_plan(there);
    fftw_destroy_plan(back);
  }
  return worst <= 2 * epsilon<double> * 3 * (1 + std::log2(n));
}

}  // namespace

TEST_CASE("a program uses FFTW itself while other threads run attention", "[attention][threads]") {
  constexpr std::size_t rounds = 6;
  const Shared<double> doubles = make<double>({.engine = Engine::fftw});
  const Shared<float> floats = make<float>({.direction = Direction::causal, .engine = Engine::fftw});
  std::array<std::array<Passes<double>, rounds>, crowd> of_doubles;
  std::array<std::array<Passes<float>, rounds>, crowd> of_floats;
  std::array<int, crowd> right{};
  // new lengths in each round, so that new plans are made
  const auto n = [](std::size_t t, std::size_t round) { return static_cast<Index>(20 + 29 * t + 233 * round % 230); };
  const auto tokens = [&]<Real T>(T, std::size_t t, std::size_t round) {
    return random_tokens<T>(n(t, round), n(t, round), d, d_v);
  };
  together([&](std::size_t t) {
    for (std::size_t round = 0; round < rounds; ++round)
      if (t % 2 == 0) {
        right[t] += round % 2 == 0 ? transforms(static_cast<int>(2 * n(t, round)), FFTW_ESTIMATE)
                                   : transforms(static_cast<int>(32 * (t + round)), FFTW_MEASURE);
      } else if (t % 4 == 1) {
        of_doubles[t][round] = run(doubles, tokens(double{}, t, round));
      } else {
        of_floats[t][round] = run(floats, tokens(float{}, t, round));
      }
  });
  for (std::size_t t = 0; t < crowd; ++t) {
    INFO("thread " << t);
    if (t % 2 == 0) CHECK(right[t] == static_cast<int>(rounds));
    for (std::size_t round = 0; round < rounds; ++round)
      if (t % 4 == 1) {
        CHECK(same_bits(of_doubles[t][round], run(doubles, tokens(double{}, t, round))));
      } else if (t % 4 == 3) {
        CHECK(same_bits(of_floats[t][round], run(floats, tokens(float{}, t, round))));
      }
  }
}

#endif  // NPRF_USE_FFTW

}  // namespace nprf::test::attention_sharing
