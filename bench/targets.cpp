// SPDX-License-Identifier: MIT
//
// targets OUT.json [OTHERS.json ...]: how fast nprf is to be, and how fast it is. Prints one Markdown table of what is
// measured here, contenders of one n taking turns in one process, and of what other programs have left: rows, and times
// of rivals to lanes.

#include <array>
#include <cstdlib>
#include <iostream>
#include <map>

#include "bench/reference/hand_tiled.hpp"
#include "bench/support/curve.hpp"
#include "bench/support/positions.hpp"
#include "bench/support/race.hpp"
#include "bench/support/row.hpp"
#include "bench/toeplitz/fftw/bare_fftw.hpp"

namespace nprf::bench {
namespace {

constexpr Index m = 32;

enum class Who {
  softmax,
  softmax_causal,
  hand_tiled,
  bare_fftw,
  direct,
  lanes,
  lanes_backward,
  block_causal,
  smooth_causal,
  smooth,
  smooth_backward,
  t5_causal,
  t5,
  alibi_causal,
  alibi,
  alibi_table,
  no_position,
  near_dense,
  near_t5,
  bare_gemms,
  features,
  bare_projections,
};

const char* name(Who who) {
  switch (who) {
    case Who::softmax: return "exact softmax";
    case Who::softmax_causal: return "exact softmax, causal";
    case Who::hand_tiled: return "softmax tiled by hand";
    case Who::bare_fftw: return "bare FFTW";
    case Who::direct: return "direct, dense";
    case Who::lanes: return "lanes, dense";
    case Who::lanes_backward: return "backward, lanes, dense";
    case Who::block_causal: return "block_causal, dense causal";
    case Who::smooth_causal: return "smooth, causal";
    case Who::smooth: return "smooth";
    case Who::smooth_backward: return "backward, smooth, causal";
    case Who::t5_causal: return "banded, T5 causal";
    case Who::t5: return "banded, T5";
    case Who::alibi_causal: return "recurrence, ALiBi causal";
    case Who::alibi: return "recurrence, ALiBi";
    case Who::alibi_table: return "automatic, ALiBi as a table";
    case Who::no_position: return "no position, the product";
    case Who::near_dense: return "first-order Taylor, near 32, dense";
    case Who::near_t5: return "first-order Taylor, near 32, T5";
    case Who::bare_gemms: return "phi(k)^T U, phi(q) S";
    case Who::features: return "phi(q), phi(k), normalised";
    case Who::bare_projections: return "q W^T, k W^T";
  }
  return "unknown";
}

struct Target {
  Who ours;
  Index n;
  double at_most;
  std::optional<double> stretch;
  Who rival;
  double plus_ns = 0;  // that each value may take besides
};

constexpr std::array targets{
    Target{Who::direct, 512, 1.0, 0.7, Who::softmax},
    Target{Who::direct, 1024, 1.0, 0.7, Who::softmax},
    Target{Who::lanes, 1024, 1.0, 0.8, Who::softmax},
    Target{Who::near_dense, 1024, 1.0, 0.7, Who::softmax},
    Target{Who::near_t5, 1024, 0.6, 0.4, Who::softmax},
    Target{Who::near_dense, 8192, 1.0 / 3, 1.0 / 4, Who::softmax},
    Target{Who::near_t5, 8192, 1.0 / 12, 1.0 / 20, Who::softmax},
    Target{Who::lanes, 8192, 0.36, 0.25, Who::bare_fftw},
    Target{Who::lanes, 8192, 1.0 / 7, {}, Who::softmax},
    Target{Who::lanes_backward, 8192, 2.2, 2.0, Who::lanes},
    Target{Who::block_causal, 8192, 1.3, 1.1, Who::lanes},
    Target{Who::smooth_causal, 4096, 1.0 / 5, {}, Who::softmax_causal},
    Target{Who::smooth_causal, 8192, 1.0 / 6, {}, Who::block_causal},
    Target{Who::smooth, 8192, 1.0 / 3.3, {}, Who::lanes},
    Target{Who::smooth_causal, 8192, 0.75, {}, Who::smooth},
    Target{Who::smooth_causal, 8192, 2.2, {}, Who::t5_causal},
    Target{Who::smooth_backward, 8192, 2.6, {}, Who::smooth_causal},
    Target{Who::smooth_causal, 16384, 1.0 / 18, {}, Who::softmax_causal},
    Target{Who::smooth_causal, 65536, 1.0 / 9, {}, Who::block_causal},
    Target{Who::t5, 8192, 1.0 / 26, 1.0 / 35, Who::softmax},
    Target{Who::alibi_causal, 8192, 1.0 / 60, 1.0 / 90, Who::softmax},
    Target{Who::alibi, 8192, 1.0 / 35, 1.0 / 50, Who::softmax},
    Target{Who::alibi_table, 8192, 1.2, 1.1, Who::alibi},
    Target{Who::no_position, 8192, 3, 1.5, Who::bare_gemms},
    Target{Who::features, 8192, 1.5, {}, Who::bare_projections, 0.3},
    Target{Who::softmax, 8192, 1.1, {}, Who::hand_tiled},  // or the yardstick would flatter us
    Target{Who::lanes, 32768, 0.38, 0.28, Who::bare_fftw},
    Target{Who::lanes, 32768, 1.0 / 20, {}, Who::softmax},
    Target{Who::near_dense, 32768, 1.0 / 9, {}, Who::softmax},
    Target{Who::near_t5, 32768, 1.0 / 48, {}, Who::softmax},
};

// a whole forward call
Race::Contender forward(Index n, PositionKind kind, Engine engine, Direction direction = Direction::bidirectional) {
  const auto attention = make_attention(make_position(kind, direction, n), m, engine, direction);
  return [&p = problem(n), attention] { keep(attention(p.q, p.k, p.v)); };
}

template <class P>
Race::Contender backward(Index n, const P& position, Engine engine, Direction direction = Direction::bidirectional) {
  const Problem& p = problem(n);
  const auto attention = make_attention(position, m, engine, direction);
  const auto saved = std::make_shared<Saved<float>>();
  attention.forward(p.q, p.k, p.v, *saved);
  return [attention, saved, dy = draw(n, head_dim, 4)] { keep(attention.backward(*saved, dy).queries); };
}

// a scalar for every lag, which automatic has to recognise
Race::Contender alibi_table(Index n) {
  const LagBias<float> alibi = make_position(PositionKind::alibi, Direction::bidirectional, n).bias();
  Vector<float> b(2 * n - 1);
  for (Index lag = -(n - 1); lag < n; ++lag) b[n - 1 + lag] = static_cast<float>(alibi[lag]);
  const auto attention = make_attention(RelativePosition<float>(b), m, Engine::automatic);
  return [&p = problem(n), attention] { keep(attention(p.q, p.k, p.v)); };
}

// d + 1 deterministic features, and exact weights for the nearest 63 keys
Race::Contender near_field(Index n, PositionKind kind) {
  const Attention attention(TaylorFeatures<float>({.input_dim = head_dim}),
                            make_position(kind, Direction::bidirectional, n), {.near = 32});
  return [&p = problem(n), attention] { keep(attention(p.q, p.k, p.v)); };
}

Race::Contender no_position(Index n) {
  const auto product = std::make_shared<Product>(problem(n), m, LagBias<float>());
  return [product] {
    product->contract(Engine::automatic);
    keep(product->Y);
  };
}

// what a product without positions cannot do without
Race::Contender bare_gemms(Index n) {
  const auto product = std::make_shared<Product>(problem(n), m, LagBias<float>());
  return [product, S = Matrix<float>(m, head_dim + 1)]() mutable {
    auto& [lags, A, B, U, Y] = *product;
    S.noalias() = B.transpose() * U;  // (m,d_v+1)
    Y.noalias() = A * S;              // (n,d_v+1)
    keep(Y);
  };
}

Race::Contender features(Index n) {
  const auto attention = make_attention(NoPosition<float>(), m, Engine::automatic);
  return [&p = problem(n), attention] {
    keep(attention.query_features(p.q));
    keep(attention.key_features(p.k));
  };
}

// what features cannot do without
Race::Contender bare_projections(Index n) {
  const Matrix<float> Wt = orf<float>(head_dim, m).projection().transpose();  // (d,m)
  return [&p = problem(n), Wt, z = Matrix<float>(n, m)]() mutable {
    z.noalias() = p.q * Wt;  // (n,m)
    keep(z);
    z.noalias() = p.k * Wt;
    keep(z);
  };
}

Race::Contender contender(Who who, Index n) {
  switch (who) {
    case Who::softmax: return [&p = problem(n)] { keep(softmax(p)); };
    case Who::softmax_causal: return [&p = problem(n)] { keep(softmax(p, head_dim, Direction::causal)); };
    case Who::hand_tiled: return [&p = problem(n)] { keep(hand_tiled_softmax(p)); };
    case Who::bare_fftw: return [pairs = std::make_shared<BareFftw>(n, m, head_dim)] { (*pairs)(); };
    case Who::direct: return forward(n, PositionKind::dense, Engine::direct);
    case Who::lanes: return forward(n, PositionKind::dense, Engine::lanes);
    case Who::lanes_backward: return backward(n, problem(n).position, Engine::lanes);
    case Who::block_causal: return forward(n, PositionKind::dense, Engine::block_causal, Direction::causal);
    case Who::smooth_causal: return forward(n, PositionKind::smooth, Engine::smooth, Direction::causal);
    case Who::smooth: return forward(n, PositionKind::smooth, Engine::smooth);
    case Who::smooth_backward:
      return backward(n, KerpleLogPosition<float>({1, 1}, n), Engine::smooth, Direction::causal);
    case Who::t5_causal: return forward(n, PositionKind::t5, Engine::banded, Direction::causal);
    case Who::t5: return forward(n, PositionKind::t5, Engine::banded);
    case Who::alibi_causal: return forward(n, PositionKind::alibi, Engine::recurrence, Direction::causal);
    case Who::alibi: return forward(n, PositionKind::alibi, Engine::recurrence);
    case Who::alibi_table: return alibi_table(n);
    case Who::no_position: return no_position(n);
    case Who::near_dense: return near_field(n, PositionKind::dense);
    case Who::near_t5: return near_field(n, PositionKind::t5);
    case Who::bare_gemms: return bare_gemms(n);
    case Who::features: return features(n);
    case Who::bare_projections: return bare_projections(n);
  }
  return {};
}

// the targets of one n; `curves` have the times of smaller ones
std::vector<Row> measure(Index n, std::map<Who, Curve>& curves) {
  std::map<Who, std::optional<std::size_t>> places;  // in the race; none where it would take too long
  std::vector<Race::Contender> contenders;
  const auto enter = [&](Who who) {
    if (places.contains(who)) return;
    if (curves[who].too_long(n)) {
      places[who] = std::nullopt;
    } else {
      places[who] = contenders.size();
      contenders.push_back(contender(who, n));
    }
  };
  std::vector<Target> here;
  for (const Target& target : targets)
    if (target.n == n) here.push_back(target);
  for (const Target& target : here) enter(target.ours), enter(target.rival);

  const Race race(contenders, {.budget = 8});
  for (const auto& [who, place] : places)
    if (place) curves[who].measured(n, race.seconds(*place));

  std::vector<Row> rows;
  for (const auto& [ours, _, at_most, stretch, rival, plus_ns] : here) {
    const Curve::Point &a = curves[ours].last(), &b = curves[rival].last();
    const bool extrapolated = a.extrapolated || b.extrapolated;
    const double allowed = plus_ns * 1e-9 * static_cast<double>(2 * n * m) / b.seconds;
    rows.push_back({.ours = name(ours),
                    .rival = name(rival),
                    .n = n,
                    .m = ours == Who::near_dense || ours == Who::near_t5 ? head_dim + 1 : m,
                    .ours_ms = 1e3 * a.seconds,
                    .rival_ms = 1e3 * b.seconds,
                    .ratio = extrapolated ? a.seconds / b.seconds : race.ratio(*places[ours], *places[rival]),
                    .extrapolated = extrapolated,
                    .at_most = at_most + allowed,
                    .stretch = stretch});
  }
  return rows;
}

// lanes beside what another program has timed
std::optional<Row> beside_lanes(const nlohmann::json& other, const Curve& lanes) {
  for (const Curve::Point& point : lanes.points())
    if (point.n == other.at("n")) {
      const double ms = other.at("ms");
      return Row{.ours = name(Who::lanes),
                 .rival = other.at("rival"),
                 .n = point.n,
                 .m = m,
                 .ours_ms = 1e3 * point.seconds,
                 .rival_ms = ms,
                 .ratio = 1e3 * point.seconds / ms};
    }
  return std::nullopt;
}

// a rival that computes something else is none
bool same_softmax() {
  const Problem& small = problem(512);
  const float difference = (softmax(small) - hand_tiled_softmax(small)).cwiseAbs().maxCoeff();
  if (!(difference < 1e-5f)) std::cerr << "targets: exact softmax and the one tiled by hand differ by " << difference;
  return difference < 1e-5f;
}

}  // namespace
}  // namespace nprf::bench

int main(int argc, char** argv) {
  using namespace nprf::bench;
  if (argc < 2) {
    std::cerr << "usage: targets OUT.json [OTHERS.json ...]\n";
    return EXIT_FAILURE;
  }
  if (!same_softmax()) return EXIT_FAILURE;
  try {
    std::vector<Row> rows;
    std::map<Who, Curve> curves;
    for (const nprf::Index n : {512, 1024, 4096, 8192, 16384, 32768, 65536})
      for (const Row& row : measure(n, curves)) rows.push_back(row);
    for (int file = 2; file < argc; ++file) {
      const nlohmann::json others = read_json(argv[file]);
      for (const auto& row : others.value("rows", nlohmann::json::array())) rows.push_back(row_from(row));
      for (const auto& rival : others.value("rivals", nlohmann::json::array()))
        if (const auto row = beside_lanes(rival, curves[Who::lanes])) rows.push_back(*row);
    }
    std::cout << "\nWhole forward calls unless stated otherwise, d = d_v = 64, float, one thread; ~ extrapolated\n\n";
    print_rows(rows);
    write_json(argv[1], {{"rows", to_json(rows)}});
  } catch (const std::exception& error) {
    std::cerr << "targets: " << error.what() << '\n';
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
