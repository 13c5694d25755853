// SPDX-License-Identifier: MIT
//
// settings OUT.json: the six settings of Luo et al. 2021, all heads of a layer, beside exact softmax over the same
// heads and in the same direction.

#include <array>
#include <optional>
#include <type_traits>

#include "bench/support/curve.hpp"
#include "bench/support/positions.hpp"
#include "bench/support/race.hpp"
#include "bench/support/row.hpp"
#include "bench/support/write_results.hpp"

namespace nprf::bench {
namespace {

struct Setting {
  const char* what;
  Index heads, d, n, m;
  Direction direction;
  Index side = 0;  // of the picture whose cells the tokens are
};

constexpr std::array settings{
    Setting{"speed", 1, 64, 1024, 32, Direction::bidirectional},
    Setting{"speed", 1, 64, 8192, 32, Direction::bidirectional},
    Setting{"speed", 1, 64, 16384, 32, Direction::bidirectional},
    Setting{"speed", 1, 64, 40960, 32, Direction::bidirectional},
    Setting{"language pre-training", 12, 64, 512, 32, Direction::bidirectional},
    Setting{"language model", 8, 64, 512, 64, Direction::causal},
    Setting{"translation, encoder", 4, 128, 256, 16, Direction::bidirectional},
    Setting{"translation, decoder", 4, 128, 256, 24, Direction::causal},
    Setting{"images", 12, 64, 196, 32, Direction::bidirectional, 14},
    Setting{"image generation", 8, 64, 3072, 32, Direction::causal},
};

// a bias of its own for each lag, or for each displacement of two cells
auto position_of(const Setting&, std::type_identity<RelativePosition<float>>, const Matrix<float>& b) {
  return RelativePosition<float>(b.col(0));
}
auto position_of(const Setting& x, std::type_identity<GridPosition<float>>, const Matrix<float>& b) {
  return GridPosition<float>(x.side, x.side, b);
}

// q, k, v and y [1, heads, n, d], and a position a head
template <class P>
struct Layer {
  explicit Layer(const Setting& x)
      : setting(x),
        q(draw(x.heads * x.n, x.d, 0)),
        k(draw(x.heads * x.n, x.d, 1)),
        v(draw(x.heads * x.n, x.d, 2)),
        y(x.heads * x.n, x.d) {
    const Index rows = x.side > 0 ? 2 * x.side - 1 : 2 * x.n - 1, cols = x.side > 0 ? rows : 1;
    for (Index h = 0; h < x.heads; ++h)
      positions.push_back(position_of(x, std::type_identity<P>(), draw(rows, cols, 3 + static_cast<std::uint64_t>(h))));
  }

  HeadsView<float> view(Matrix<float>& x) const { return {x.data(), 1, setting.heads, setting.n, setting.d}; }

  void softmax() {
    for (Index h = 0; h < setting.heads; ++h)
      view(y)(0, h) = reference::softmax_attention<float>(view(q)(0, h), view(k)(0, h), view(v)(0, h),
                                                          positions[static_cast<std::size_t>(h)], setting.direction,
                                                          Normalization::unit(1));
  }

  Setting setting;
  Matrix<float> q, k, v, y;
  std::vector<P> positions;
};

struct Measured {
  Engine engine;
  Row row;
};

template <class P>
Measured measure(const Setting& x, Curve& softmax) {
  Layer<P> layer(x);
  const MultiHeadAttention attention(orf<float>(x.d, x.m), layer.positions, {.direction = x.direction});
  Report report;
  const auto ours = [&] {
    attention(layer.view(layer.q), layer.view(layer.k), layer.view(layer.v), layer.view(layer.y), {.report = &report});
    keep(layer.y);
  };
  std::vector<Race::Contender> contenders{ours};
  const std::optional<double> extrapolated = softmax.too_long(x.n);
  if (!extrapolated)
    contenders.emplace_back([&] {
      layer.softmax();
      keep(layer.y);
    });
  const Race race(contenders, {.budget = 0.5, .longest_repeated = 0.5});
  if (!extrapolated) softmax.measured(x.n, race.seconds(1));
  const double ms = 1e3 * race.seconds(0), softmax_ms = 1e3 * softmax.last().seconds;
  return {report.engine,
          {.ours = x.what,
           .rival = "exact softmax",
           .n = x.n,
           .m = x.m,
           .ours_ms = ms,
           .rival_ms = softmax_ms,
           .ratio = extrapolated ? ms / softmax_ms : race.ratio(0, 1),
           .extrapolated = extrapolated.has_value()}};
}

nlohmann::json print_settings() {
  std::printf("\nThe settings of Luo et al. 2021, a bias of its own for every lag, one thread; ~ extrapolated\n\n");
  std::printf("| %-21s | %8s | %5s | %2s | %-13s | %-12s | %9s | %10s | %7s |\n|---|---|---|---|---|---|---|---|---|\n",
              "setting", "h x d", "n", "m", "direction", "takes", "ms", "softmax ms", "ratio");
  nlohmann::json all = nlohmann::json::array();
  std::string before;
  Curve softmax;
  for (const Setting& x : settings) {
    if (before != x.what) softmax = {};
    before = x.what;
    const auto [engine, row] =
        x.side > 0 ? measure<GridPosition<float>>(x, softmax) : measure<RelativePosition<float>>(x, softmax);
    const std::string heads = std::to_string(x.heads) + " x " + std::to_string(x.d);
    const std::string places =
        x.side > 0 ? std::to_string(x.side) + " x " + std::to_string(x.side) : std::string(name(x.direction));
    std::printf("| %-21s | %8s | %5td | %2td | %-13s | %-12s | %9.3f | %10s | %7s |\n", x.what, heads.c_str(), x.n, x.m,
                places.c_str(), name(engine).data(), row.ours_ms, format_ms(row.rival_ms, row.extrapolated).c_str(),
                format_ratio(row.ratio).c_str());
    std::fflush(stdout);
    nlohmann::json one = to_json(row);
    one["heads"] = x.heads;
    one["d"] = x.d;
    one["direction"] = name(x.direction);
    one["engine"] = name(engine);
    all.push_back(one);
  }
  return all;
}

}  // namespace
}  // namespace nprf::bench

int main(int argc, char** argv) {
  using namespace nprf::bench;
  return write_results(argc, argv, "settings", [] { return nlohmann::json{{"settings", print_settings()}}; });
}
