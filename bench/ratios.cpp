// SPDX-License-Identifier: MIT
//
// The ratios that matter, each from contenders that took turns in one process, as Markdown tables.

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "bench/reference/hand_tiled.hpp"
#include "bench/support/problem.hpp"
#include "bench/support/race.hpp"
#include "bench/toeplitz/bare_fftw.hpp"

namespace nprf::bench {
namespace {

constexpr Index headline_n = 8192, headline_m = 32;
constexpr std::array<Index, 3> features{16, 32, 64};

// keeps a result that nobody reads from being optimised away
volatile float sink;
void keep(const Matrix<float>& y) { sink = y(0, 0); }

// a rival that computes something else is none
bool same_softmax() {
  const Problem& small = problem(512);
  const float difference = (softmax(small) - hand_tiled_softmax(small)).cwiseAbs().maxCoeff();
  if (!(difference < 1e-5f)) std::printf("softmax_attention and the hand-tiled version differ by %g\n", difference);
  return difference < 1e-5f;
}

void headline() {
  const Problem& p = problem(headline_n);
  const auto attention = make_attention(p.position, headline_m, Engine::fftw);
  Product product(p, headline_m);
  const BareFftw bare(headline_n, headline_m, head_dim);
  const Matrix<float> dy = draw(headline_n, head_dim, 4);
  enum { call, engine, pairs, exact, hand, both };
  const Race race({[&] { keep(attention(p.q, p.k, p.v)); },
                   [&] {
                     product.contract(Engine::fftw);
                     keep(product.Y);
                   },
                   [&] { bare(); }, [&] { keep(softmax(p)); }, [&] { keep(hand_tiled_softmax(p)); },
                   [&] {
                     Saved<float> saved;
                     attention.forward(p.q, p.k, p.v, saved);
                     keep(attention.backward(saved, dy).queries);
                   }},
                  6);
  const auto row = [&](const char* what, std::size_t a, std::size_t b, const char* target) {
    std::printf("| %-50s | %8.1f | %8.1f | %5.2f | %-26s |\n", what, 1e3 * race.seconds(a), 1e3 * race.seconds(b),
                race.ratio(a, b), target);
  };
  std::printf("| %-50s | %8s | %8s | %5s | %-26s |\n",
              ("n = " + std::to_string(headline_n) + ", m = " + std::to_string(headline_m)).c_str(), "ms", "rival ms",
              "ratio", "target");
  std::printf("|---|---|---|---|---|\n");
  row("whole call, Engine::fftw / bare FFTW pairs", call, pairs, "at most 1.35, stretch 1.2");
  row("toeplitz::contract, Engine::fftw / bare FFTW pairs", engine, pairs, "at most 1.35, stretch 1.2");
  row("forward and backward / forward, Engine::fftw", both, call, "at most 3.5");
  row("reference::softmax_attention / hand-tiled Eigen", exact, hand, "at most 1.1");
}

// times and ratios of one n, for each m
struct Sweep {
  struct Point {
    double direct, fftw, automatic;  // seconds
    double fftw_over_direct, automatic_over_softmax, automatic_over_best;
    Engine choice;
  };
  Index n;
  double softmax;  // seconds
  std::array<Point, features.size()> at;
};

Sweep sweep(Index n) {
  const Problem& p = problem(n);
  std::vector<Race::Contender> contenders{[&] { keep(softmax(p)); }};
  Sweep result{n, 0, {}};
  for (std::size_t i = 0; i < features.size(); ++i) {
    for (Engine engine : {Engine::direct, Engine::fftw, Engine::automatic})
      contenders.emplace_back(
          [&p, attention = make_attention(p.position, features[i], engine)] { keep(attention(p.q, p.k, p.v)); });
    result.at[i].choice = toeplitz::choose(Product(p, features[i]).lags.view(), {n, n, features[i], head_dim + 1});
  }
  const Race race(contenders, 2);
  result.softmax = race.seconds(0);
  for (std::size_t i = 0; i < features.size(); ++i) {
    const std::size_t direct = 3 * i + 1, fftw = direct + 1, automatic = direct + 2;
    Sweep::Point& at = result.at[i];
    at.direct = race.seconds(direct);
    at.fftw = race.seconds(fftw);
    at.automatic = race.seconds(automatic);
    at.fftw_over_direct = race.ratio(fftw, direct);
    at.automatic_over_softmax = race.ratio(automatic, 0);
    at.automatic_over_best = std::max(race.ratio(automatic, direct), race.ratio(automatic, fftw));
  }
  return result;
}

// the n from which on a ratio stays below 1, between two measured lengths by their logarithms
template <class Ratio>
std::string crossover(const std::vector<Sweep>& sweeps, Ratio&& ratio) {
  std::size_t first = sweeps.size();
  while (first > 0 && ratio(sweeps[first - 1]) < 1) --first;
  if (first == 0) return "below " + std::to_string(sweeps.front().n);
  if (first == sweeps.size()) return "above " + std::to_string(sweeps.back().n);
  const Sweep &before = sweeps[first - 1], &after = sweeps[first];
  const double above = std::log(ratio(before)), below = std::log(ratio(after));
  const double growth = std::log(static_cast<double>(after.n) / static_cast<double>(before.n));
  return std::to_string(std::lround(static_cast<double>(before.n) * std::exp(growth * above / (above - below))));
}

void lengths() {
  std::vector<Sweep> sweeps;
  std::printf("\nWhole forward calls, ms; * the engine that Engine::automatic takes\n\n| %6s | %8s |", "n", "softmax");
  for (Index m : features) std::printf(" direct m=%td | fftw m=%td | automatic m=%td |", m, m, m);
  std::printf("\n|---|---|");
  for (std::size_t column = 0; column < 3 * features.size(); ++column) std::printf("---|");
  std::printf("\n");
  for (Index n = 64; n <= 32768; n *= 2) {
    sweeps.push_back(sweep(n));
    const Sweep& s = sweeps.back();
    std::printf("| %6td | %8.3f |", n, 1e3 * s.softmax);
    for (const Sweep::Point& at : s.at)
      std::printf(" %10.3f%c | %8.3f%c | %14.3f |", 1e3 * at.direct, at.choice == Engine::direct ? '*' : ' ',
                  1e3 * at.fftw, at.choice == Engine::fftw ? '*' : ' ', 1e3 * at.automatic);
    std::printf("\n");
    std::fflush(stdout);
  }

  std::printf("\n| %-58s |", "");
  for (Index m : features) std::printf(" %11s |", ("m = " + std::to_string(m)).c_str());
  std::printf(" %-11s |\n|---|---|---|---|---|\n", "target");
  std::printf("| %-58s |", "fftw is faster than direct from n =");
  for (std::size_t i = 0; i < features.size(); ++i)
    std::printf(" %11s |", crossover(sweeps, [i](const Sweep& s) { return s.at[i].fftw_over_direct; }).c_str());
  std::printf(" %-11s |\n| %-58s |", "", "automatic is faster than softmax_attention from n =");
  for (std::size_t i = 0; i < features.size(); ++i)
    std::printf(" %11s |", crossover(sweeps, [i](const Sweep& s) { return s.at[i].automatic_over_softmax; }).c_str());
  std::printf(" %-11s |\n| %-58s |", "", "automatic / best engine, worst of n = 64..32768");
  for (std::size_t i = 0; i < features.size(); ++i) {
    const auto worst = std::max_element(sweeps.begin(), sweeps.end(), [i](const Sweep& a, const Sweep& b) {
      return a.at[i].automatic_over_best < b.at[i].automatic_over_best;
    });
    char cell[32];
    std::snprintf(cell, sizeof(cell), "%.2f @ %td", worst->at[i].automatic_over_best, worst->n);
    std::printf(" %11s |", cell);
  }
  std::printf(" %-11s |\n", "at most 1.2");
}

}  // namespace
}  // namespace nprf::bench

int main() {
  if (!nprf::bench::same_softmax()) return EXIT_FAILURE;
  nprf::bench::headline();
  nprf::bench::lengths();
  return EXIT_SUCCESS;
}
