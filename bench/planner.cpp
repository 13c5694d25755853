// SPDX-License-Identifier: MIT
//
// planner OUT.json [--full]: does Engine::automatic take the best engine, and is it faster than exact softmax? And what
// its cost model (toeplitz::product_cost) is worth: measured over modelled time of each engine.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <utility>

#include "bench/support/curve.hpp"
#include "bench/support/positions.hpp"
#include "bench/support/race.hpp"
#include "bench/support/row.hpp"
#include "nprf/toeplitz/plan/choose.hpp"

namespace nprf::bench {
namespace {

constexpr double longest_repeated = 0.2;
constexpr Index usual_m = 32;

enum class Grid { quick, full };

struct Case {
  PositionKind kind;
  Direction direction;
  Index m, d_v = head_dim;

  std::string text() const {
    return std::string(name(kind)) + " " + std::string(name(direction)) + ", m = " + std::to_string(m) +
           (d_v == head_dim ? "" : ", d_v = " + std::to_string(d_v));
  }

  /// The engines that can serve it and keep their digits there.
  std::vector<Engine> engines() const {
    std::vector<Engine> engines{Engine::direct};
    if (kind == PositionKind::smooth)
      engines.push_back(Engine::smooth);
    else if (kind != PositionKind::dense)
      engines.push_back(kind == PositionKind::alibi ? Engine::recurrence : Engine::banded);
    if (direction == Direction::bidirectional) {
      engines.push_back(Engine::lanes);
      if (kind == PositionKind::dense) engines.push_back(Engine::fftw);
    } else {
      engines.push_back(Engine::block_causal);
    }
    return engines;
  }
};

std::vector<Case> cases(Grid grid) {
  std::vector<Case> all;
  for (const Index m : {32, 16, 64})
    for (const PositionKind kind :
         {PositionKind::dense, PositionKind::smooth, PositionKind::t5, PositionKind::alibi, PositionKind::none})
      for (const Direction direction : {Direction::bidirectional, Direction::causal})
        if (grid == Grid::full || m == usual_m || kind == PositionKind::dense) all.push_back({kind, direction, m});
  for (const Index m : {8, 128})
    for (const PositionKind kind : {PositionKind::dense, PositionKind::alibi})
      for (const Direction direction : {Direction::bidirectional, Direction::causal})
        all.push_back({kind, direction, m, 1});
  return all;
}

std::vector<Index> lengths(Grid grid, const Case& of) {
  if (of.d_v != head_dim) return {200, 700, 3000};
  if (grid == Grid::full) return {64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072};
  if (of.m == usual_m) return {64, 256, 1024, 4096, 16384, 65536};
  return {256, 1024, 4096};
}

// what was measured of one case at one n
struct Choice {
  Index n;
  Engine taken;  // by automatic; automatic where it was not run
  Engine best;
  Curve::Point softmax, automatic, least;  // least: of the best engine
  double over_best, over_softmax;

  bool extrapolated() const { return automatic.extrapolated; }
};

// the curves of one case; key: the engine, automatic included
using Curves = std::map<Engine, Curve>;

// exact softmax with a bias for every lag, of the case's direction: once an n for all cases of a direction and d_v
Curve::Point softmax_at(Index n, const Case& at, Curve& curve) {
  for (const Curve::Point& point : curve.points())
    if (point.n == n) return point;
  if (!curve.too_long(n)) {
    const Race race({[&p = problem(n), at] { keep(softmax(p, at.d_v, at.direction)); }},
                    {.budget = 0.2, .longest_repeated = longest_repeated});
    curve.measured(n, race.seconds(0));
  }
  return curve.last();
}

Choice measure(const Case& at, Index n, const Curve::Point& softmax, Curves& curves) {
  const Problem& p = problem(n);
  const BiasPosition position = make_position(at.kind, at.direction, n);
  std::vector<Engine> entered, engines = at.engines();
  engines.push_back(Engine::automatic);
  Report report;
  std::vector<Race::Contender> contenders;
  for (const Engine engine : engines) {
    if (curves[engine].too_long(n)) continue;
    const auto attention = make_attention(position, at.m, engine, at.direction);
    Report* asked = engine == Engine::automatic ? &report : nullptr;
    contenders.emplace_back(
        [&p, attention, asked, d_v = at.d_v] { keep(attention(p.q, p.k, p.v.leftCols(d_v), {.report = asked})); });
    entered.push_back(engine);
  }
  const Race race(contenders, {.budget = 0.2, .longest_repeated = longest_repeated});
  for (std::size_t c = 0; c < entered.size(); ++c) curves[entered[c]].measured(n, race.seconds(c));

  const auto seconds = [&](Engine engine) { return curves[engine].last().seconds; };
  Engine best = Engine::direct;
  for (const Engine engine : at.engines())
    if (seconds(engine) < seconds(best)) best = engine;
  const auto place = [&](Engine engine) {
    return static_cast<std::size_t>(std::ranges::find(entered, engine) - entered.begin());
  };
  const bool both = place(best) < entered.size() && place(Engine::automatic) < entered.size();
  const Curve::Point automatic = curves[Engine::automatic].last(), least = curves[best].last();

  return {n,
          report.engine,
          best,
          softmax,
          automatic,
          least,
          both ? race.ratio(place(Engine::automatic), place(best)) : automatic.seconds / least.seconds,
          automatic.seconds / softmax.seconds};
}

std::string milliseconds(const Curve::Point& point) { return format_ms(1e3 * point.seconds, point.extrapolated); }

void print(const Case& at, const Choice& x) {
  std::printf("| %-33s | %6td | %10s | %10s | %-12s | %10s | %-12s | %6.2f | %7s |\n", at.text().c_str(), x.n,
              milliseconds(x.softmax).c_str(), milliseconds(x.automatic).c_str(), name(x.taken).data(),
              milliseconds(x.least).c_str(), name(x.best).data(), x.over_best, format_ratio(x.over_softmax).c_str());
  std::fflush(stdout);
}

// gnuplot's points: n, milliseconds, and whether they are extrapolated
nlohmann::json points(const Curve& curve) {
  nlohmann::json all = nlohmann::json::array();
  for (const Curve::Point& x : curve.points()) all.push_back({x.n, 1e3 * x.seconds, x.extrapolated ? 1 : 0});
  return all;
}

// the rows of the table of targets, and the curves of the pictures
nlohmann::json choices(Grid grid) {
  std::printf("\nWhole forward calls, ms; ~ extrapolated: more than %g s\n\n", longest_measured);
  std::printf(
      "| %-33s | %6s | %10s | %10s | %-12s | %10s | %-12s | %6s | %7s |\n|---|---|---|---|---|---|---|---|---|\n",
      "position", "n", "softmax", "automatic", "takes", "best", "which is", "/ best", "/ soft.");
  Row over_best{.ours = "automatic", .rival = "best engine", .at_most = 1.2, .stretch = 1.05};
  Row over_softmax{.ours = "automatic", .rival = "exact softmax", .at_most = 1.1};
  const auto note = [](Row& worst, double ratio, const Case& at, const Choice& x, const Curve::Point& rival) {
    if (x.extrapolated() || ratio <= worst.ratio) return;
    worst.ours = "automatic, worst of all: " + at.text();
    worst.n = x.n;
    worst.m = at.m;
    worst.ours_ms = 1e3 * x.automatic.seconds;
    worst.rival_ms = 1e3 * rival.seconds;
    worst.ratio = ratio;
    worst.extrapolated = rival.extrapolated;
  };
  std::map<std::pair<Index, Direction>, Curve> softmax;  // key: d_v and direction
  nlohmann::json measured = nlohmann::json::array(), speed, ratios;
  for (const Case& at : cases(grid)) {
    Curves curves;
    nlohmann::json of_best = nlohmann::json::array();
    for (const Index n : lengths(grid, at)) {
      const Choice x = measure(at, n, softmax_at(n, at, softmax[{at.d_v, at.direction}]), curves);
      print(at, x);
      note(over_best, x.over_best, at, x, x.least);
      if (n >= 256) note(over_softmax, x.over_softmax, at, x, x.softmax);
      of_best.push_back({n, x.over_best, x.extrapolated() ? 1 : 0});
    }
    nlohmann::json engines;
    for (const auto& [engine, curve] : curves) engines[name(engine).data()] = points(curve);
    measured.push_back({{"position", name(at.kind)},
                        {"direction", name(at.direction)},
                        {"m", at.m},
                        {"d_v", at.d_v},
                        {"ms", engines},
                        {"automatic / best", of_best}});
    if (at.m != usual_m) continue;
    ratios[std::string(name(at.kind)) + " " + std::string(name(at.direction))] = of_best;
    if (at.direction == Direction::causal) continue;
    switch (at.kind) {
      case PositionKind::dense:
        speed["fftw"] = points(curves[Engine::fftw]);
        speed["lanes"] = points(curves[Engine::lanes]);
        speed["automatic"] = points(curves[Engine::automatic]);
        break;
      case PositionKind::smooth: speed["smooth"] = points(curves[Engine::smooth]); break;
      case PositionKind::spline: break;  // is not measured here
      case PositionKind::t5: speed["banded"] = points(curves[Engine::banded]); break;
      case PositionKind::alibi: speed["recurrence"] = points(curves[Engine::recurrence]); break;
      case PositionKind::none: speed["linear"] = points(curves[Engine::banded]);
    }
  }
  speed["softmax"] = points(softmax[{head_dim, Direction::bidirectional}]);
  return {{"rows", to_json(std::vector{over_best, over_softmax})},
          {"choices", measured},
          {"pictures", {{"speed", speed}, {"planner", ratios}}}};
}

// measured over modelled time of the products alone; the unit is what a multiply-add of the direct engine's tiles takes
nlohmann::json calibration(Grid grid) {
  struct Use {
    Engine engine;
    PositionKind kind;
    Direction direction;
  };
  constexpr Use unit{Engine::direct, PositionKind::dense, Direction::bidirectional};
  constexpr std::array uses{unit,
                            Use{Engine::direct, PositionKind::dense, Direction::causal},
                            Use{Engine::lanes, PositionKind::dense, Direction::bidirectional},
                            Use{Engine::block_causal, PositionKind::dense, Direction::causal},
                            Use{Engine::smooth, PositionKind::smooth, Direction::bidirectional},
                            Use{Engine::smooth, PositionKind::smooth, Direction::causal},
                            Use{Engine::banded, PositionKind::t5, Direction::bidirectional},
                            Use{Engine::banded, PositionKind::t5, Direction::causal},
                            Use{Engine::recurrence, PositionKind::alibi, Direction::bidirectional},
                            Use{Engine::banded, PositionKind::none, Direction::bidirectional}};
  const auto nanoseconds_a_unit = [](const Use& use, Index n, Index m) {
    Product product(problem(n), m, make_position(use.kind, use.direction, n).bias(), use.direction);
    const ProductShape shape{n, n, m, head_dim + 1};
    const double units =
        toeplitz::product_cost<float>(use.engine, {product.lags.view().with_equal_ends(), shape, shape});
    if (!std::isfinite(units)) return static_cast<double>(NAN);
    const Race race({[&] {
                      product.contract(use.engine);
                      keep(product.Y);
                    }},
                    {.budget = 0.2, .longest_repeated = longest_repeated});
    return 1e9 * race.seconds(0) / units;
  };

  const std::vector<Index> features = grid == Grid::full ? std::vector<Index>{16, 32, 64} : std::vector<Index>{32};
  const std::vector<Index> tokens =
      grid == Grid::full ? std::vector<Index>{128, 512, 2048, 8192, 32768} : std::vector<Index>{512, 2048, 8192};
  const double one = nanoseconds_a_unit(unit, 2048, usual_m);
  std::printf("\nThe planner's model: measured over modelled time of a product, in units of %.4f ns\n\n", one);
  std::printf("| %-38s | %3s |", "engine", "m");
  for (const Index n : tokens) std::printf(" n = %-5td |", n);
  std::printf("\n|---|---|");
  for (std::size_t column = 0; column < tokens.size(); ++column) std::printf("---|");
  std::printf("\n");
  nlohmann::json all = nlohmann::json::array();
  for (const Use& use : uses) {
    const std::string what =
        std::string(name(use.engine)) + ", " + std::string(name(use.kind)) + " " + std::string(name(use.direction));
    for (const Index m : features) {
      std::printf("| %-38s | %3td |", what.c_str(), m);
      for (const Index n : tokens) {
        const double over_model = nanoseconds_a_unit(use, n, m) / one;
        std::printf(" %9.2f |", over_model);
        all.push_back({{"engine", what}, {"n", n}, {"m", m}, {"measured / modelled", over_model}});
      }
      std::printf("\n");
    }
  }
  return all;
}

}  // namespace
}  // namespace nprf::bench

int main(int argc, char** argv) {
  using namespace nprf::bench;
  const bool full = argc == 3 && std::string(argv[2]) == "--full";
  if (argc != 2 && !full) {
    std::cerr << "usage: planner OUT.json [--full]\n";
    return EXIT_FAILURE;
  }
  try {
    const Grid grid = full ? Grid::full : Grid::quick;
    nlohmann::json result = choices(grid);
    result["model"] = calibration(grid);
    write_json(argv[1], result);
    if (full) {
      std::printf("\n");
      print_rows({row_from(result["rows"][0]), row_from(result["rows"][1])});
    }
  } catch (const std::exception& error) {
    std::cerr << "planner: " << error.what() << '\n';
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
