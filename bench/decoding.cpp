// SPDX-License-Identifier: MIT
//
// decoding OUT.json [TOKENS]: the time of the next token and the memory of the state after t tokens, t = 256, 512, ...,
// TOKENS (131072), by Decoder and by exact softmax with a cache of keys and values. d = d_v = 64, float, one thread.

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/support/positions.hpp"
#include "bench/support/race.hpp"
#include "bench/support/row.hpp"

namespace nprf::bench {
namespace {

constexpr Index m = 32;
constexpr Index rounds = 9, steps = 16;  // of a measurement
constexpr const char* rival_name = "exact softmax, cache";

enum class Map { orf, taylor };

struct Kind {
  PositionKind position;
  Map map;
  Index near = 0;

  std::string name() const {
    return std::string(bench::name(position)) + (map == Map::orf ? ", orf" : ", Taylor") +
           (near > 0 ? ", near " + std::to_string(near) : "");
  }
  Index features() const { return map == Map::orf ? m : head_dim + 1; }
};

constexpr std::array kinds{Kind{PositionKind::t5, Map::orf},        Kind{PositionKind::alibi, Map::orf},
                           Kind{PositionKind::dense, Map::orf},     Kind{PositionKind::t5, Map::taylor},
                           Kind{PositionKind::alibi, Map::taylor},  Kind{PositionKind::dense, Map::taylor},
                           Kind{PositionKind::t5, Map::taylor, 32}, Kind{PositionKind::smooth, Map::orf},
                           Kind{PositionKind::spline, Map::orf}};

template <class F>
Decoder<float> decoder_of(F features, const Kind& kind, const BiasPosition& position, Index most_tokens, Index batch) {
  return Decoder(MultiHeadAttention(std::move(features), position, {.direction = Direction::causal, .near = kind.near}),
                 {.batch = batch, .most_tokens = most_tokens});
}
Decoder<float> decoder_of(const Kind& kind, const BiasPosition& position, Index most_tokens, Index batch = 1) {
  if (kind.map == Map::orf) return decoder_of(orf<float>(head_dim, m), kind, position, most_tokens, batch);
  return decoder_of(TaylorFeatures<float>({.input_dim = head_dim}), kind, position, most_tokens, batch);
}

/// Both contenders, after the same tokens of one head.
class Contenders {
 public:
  Contenders(const Kind& kind, Index most_tokens)
      : m_tokens(problem(most_tokens)),
        m_position(make_position(kind.position, Direction::causal, most_tokens)),
        m_decoder(decoder_of(kind, m_position, most_tokens)),
        m_cache(m_position, Normalization::unit(1), head_dim, head_dim) {}

  std::size_t bytes() const { return m_decoder.bytes(); }
  std::size_t cache_bytes() const { return m_cache.bytes(); }

  /// The first n tokens; the cache needs no queries of them.
  void prefill(Index n) {
    Matrix<float> y(n, head_dim);
    m_decoder.prefill(rows(m_tokens.q, 0, n), rows(m_tokens.k, 0, n), rows(m_tokens.v, 0, n), one_head(y));
    m_cache.append(m_tokens.k.topRows(n), m_tokens.v.topRows(n));
  }

  /// Seconds of a token, of both: the mean of the next `steps`.
  std::pair<double, double> step() {
    const Index t = m_cache.tokens();
    const double ours = seconds([&] {
      for (Index i = t; i < t + steps; ++i)
        m_decoder.step(rows(m_tokens.q, i, 1), rows(m_tokens.k, i, 1), rows(m_tokens.v, i, 1), one_head(m_y));
    });
    keep(m_y);
    const double cache = seconds([&] {
      for (Index i = t; i < t + steps; ++i) m_cache.step(m_tokens.q.row(i), m_tokens.k.row(i), m_tokens.v.row(i), m_y);
    });
    keep(m_y);
    return {ours / static_cast<double>(steps), cache / static_cast<double>(steps)};
  }

 private:
  static HeadsView<const float> rows(const Matrix<float>& x, Index first, Index count) {
    return {x.row(first).data(), 1, 1, count, head_dim};
  }
  // processor time, in nanoseconds where std::clock has microseconds
  template <class Work>
  static double seconds(Work&& work) {
    const auto now = [] {
      timespec time{};
      clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
      return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    };
    const double start = now();
    work();
    return now() - start;
  }

  const Problem& m_tokens;
  BiasPosition m_position;
  Decoder<float> m_decoder;
  reference::SoftmaxDecoder<float> m_cache;
  Matrix<float> m_y = Matrix<float>(1, head_dim);
};

/// Time of a token and memory after t tokens.
struct Point {
  Index t;
  double seconds, cache_seconds, ratio;
  std::size_t bytes, cache_bytes;
};

// medians over rounds of 16 steps, in the middle of which t tokens have been decoded
Point measure(const Kind& kind, Index t, Index most_tokens) {
  Contenders contenders(kind, most_tokens);
  contenders.prefill(t - rounds * steps / 2);
  std::vector<double> ours, cache, ratios;
  for (Index round = 0; round < rounds; ++round) {
    const auto [a, b] = contenders.step();
    ours.push_back(a), cache.push_back(b), ratios.push_back(a / b);
  }
  return {t, median(ours), median(cache), median(ratios), contenders.bytes(), contenders.cache_bytes()};
}

using Curves = std::map<std::string, std::vector<Point>>;

void print_curves(const Curves& curves, const char* what, const std::function<double(const Point&)>& ours,
                  const std::function<double(const Point&)>& cache) {
  std::printf("\n%s after t tokens\n\n| %7s | %20s |", what, "t", rival_name);
  for (const Kind& kind : kinds) std::printf(" %13s |", kind.name().c_str());
  std::printf("\n|---|---|");
  for (std::size_t i = 0; i < kinds.size(); ++i) std::printf("---|");
  std::printf("\n");
  const std::vector<Point>& first = curves.at(kinds[0].name());
  for (std::size_t i = 0; i < first.size(); ++i) {
    std::printf("| %7td | %20.1f |", first[i].t, cache(first[i]));
    for (const Kind& kind : kinds) std::printf(" %13.1f |", ours(curves.at(kind.name())[i]));
    std::printf("\n");
  }
}

// the points as {t, microseconds}, for the picture
nlohmann::json picture_of(const Curves& curves) {
  nlohmann::json picture;
  for (const auto& [name, points] : curves)
    for (const Point& point : points) {
      picture[name].push_back({point.t, 1e6 * point.seconds});
      if (name == kinds[0].name()) picture["softmax"].push_back({point.t, 1e6 * point.cache_seconds});
    }
  return picture;
}

Row row_of(const Kind& kind, const Point& point, double at_most) {
  return {.ours = kind.name(),
          .rival = rival_name,
          .n = point.t,
          .m = kind.features(),
          .ours_ms = 1e3 * point.seconds,
          .rival_ms = 1e3 * point.cache_seconds,
          .ratio = point.ratio,
          .at_most = at_most};
}

// T5 with random features after 8192 tokens, and the t at which a kind is slowest in comparison
std::vector<Row> targets_of(const Curves& curves) {
  std::vector<Row> rows;
  for (const Point& point : curves.at(kinds[0].name()))
    if (point.t == 8192) rows.push_back(row_of(kinds[0], point, 1.0 / 15));
  for (const Kind& kind : kinds) {
    const std::vector<Point>& points = curves.at(kind.name());
    const auto by_ratio = [](const Point& a, const Point& b) { return a.ratio < b.ratio; };
    rows.push_back(row_of(kind, *std::max_element(points.begin(), points.end(), by_ratio), 1.2));
    rows.back().ours += ", at worst";
  }
  return rows;
}

void print_memory_target(const Curves& curves) {
  for (const Point& point : curves.at(kinds[0].name()))
    if (point.t == 8192) {
      Row row = row_of(kinds[0], point, 1.0 / 30);
      row.ratio = static_cast<double>(point.bytes) / static_cast<double>(point.cache_bytes);
      std::printf("\nState over cache, %s, t = %td: %s, at most %s: %s\n", kinds[0].name().c_str(), point.t,
                  format_ratio(row.ratio).c_str(), format_ratio(*row.at_most).c_str(), row.mark());
    }
}

/// The products with a vector that a step with T5 and orf cannot do without, of some heads: the projections of q and
/// k, phi(q)^T S of the tokens in the last bucket, and the weights and sums of the tokens before it, in allocated
/// memory.
struct BareProducts {
  BareProducts(Index heads, Index near)
      : W(draw(m, head_dim, 20)), x(draw(head_dim, 2, 21)), S(draw(m, head_dim + 1, 22)) {
    for (Index h = 0; h < heads; ++h) K.push_back(draw(near, m, 23)), U.push_back(draw(near, head_dim + 1, 24));
    y.resize(1, head_dim + 1);
  }

  void operator()() {
    for (std::size_t h = 0; h < K.size(); ++h) {
      phi.noalias() = W * x.col(0);  // (m)
      phi.noalias() = W * x.col(1);
      w.noalias() = K[h] * phi;             // (near)
      y.noalias() = phi.transpose() * S;    // (1,d_v+1)
      y.noalias() += w.transpose() * U[h];  // (1,d_v+1)
    }
    keep(y);
  }

  Matrix<float> W, x, S;            // (m,d) (d,2) (m,d_v+1)
  std::vector<Matrix<float>> K, U;  // of each head (near,m) (near,d_v+1)
  Vector<float> phi, w;
  Matrix<float> y;
};

// of 8 heads of each sequence
Row step_beside_its_products(Index batch, std::optional<double> at_most) {
  constexpr Index heads = 8, n = 1024;
  const BiasPosition position = make_position(PositionKind::t5, Direction::causal, n);
  Decoder<float> decoder = decoder_of(kinds[0], position, 0, batch);
  const Matrix<float> x = draw(batch * heads * n, head_dim, 25);
  Matrix<float> y(batch * heads * n, head_dim);
  const HeadsView<const float> prompt{x.data(), batch, heads, n, head_dim}, token{x.data(), batch, heads, 1, head_dim};
  const HeadsView<float> out{y.data(), batch, heads, n, head_dim}, next{y.data(), batch, heads, 1, head_dim};
  decoder.prefill(prompt, prompt, prompt, out);
  BareProducts products(batch * heads, -position.bias().first);
  const Race race({[&] { decoder.step(token, token, token, next), keep(y); }, [&] { products(); }}, {.budget = 2});
  return {.ours = "step of " + std::to_string(batch) + " x 8 heads, T5",
          .rival = "its products with a vector",
          .n = n,
          .m = m,
          .ours_ms = 1e3 * race.seconds(0),
          .rival_ms = 1e3 * race.seconds(1),
          .ratio = race.ratio(0, 1),
          .at_most = at_most};
}

nlohmann::json measure_all(Index most_tokens) {
  Curves curves;
  for (const Kind& kind : kinds) {
    for (Index t = 256; t <= most_tokens; t *= 2)
      curves[kind.name()].push_back(measure(kind, t, most_tokens + rounds * steps));
    std::cerr << kind.name() << " measured\n";
  }
  std::printf("\nOne head, d = d_v = 64, float, one thread; orf: %td features, Taylor: %td\n", m, head_dim + 1);
  print_curves(
      curves, "Microseconds of a token", [](const Point& x) { return 1e6 * x.seconds; },
      [](const Point& x) { return 1e6 * x.cache_seconds; });
  print_curves(
      curves, "KiB of the state", [](const Point& x) { return static_cast<double>(x.bytes) / 1024; },
      [](const Point& x) { return static_cast<double>(x.cache_bytes) / 1024; });
  std::vector<Row> rows = targets_of(curves);
  rows.push_back(step_beside_its_products(1, 1.3));
  rows.push_back(step_beside_its_products(4, {}));
  std::printf("\n");
  print_rows(rows);
  print_memory_target(curves);
  return {{"rows", to_json(rows)}, {"pictures", {{"decoding", picture_of(curves)}}}};
}

}  // namespace
}  // namespace nprf::bench

int main(int argc, char** argv) {
  using namespace nprf::bench;
  if (argc < 2 || argc > 3) {
    std::cerr << "usage: decoding OUT.json [TOKENS]\n";
    return EXIT_FAILURE;
  }
  try {
    write_json(argv[1], measure_all(argc > 2 ? std::max(256L, std::atol(argv[2])) : 131072));
  } catch (const std::exception& error) {
    std::cerr << "decoding: " << error.what() << '\n';
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
