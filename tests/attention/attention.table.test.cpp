// SPDX-License-Identifier: MIT

// Attention equals the reference for every feature map, projection, direction, position, engine, shape and
// normalisation.

#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/positive.hpp"
#include "nprf/feature_map/trigonometric.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/t5.hpp"
#include "nprf/reference/kernelized_attention.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_table {

namespace {

constexpr int maps = 10, directions = 2, positions = 7, table_engines = 5, widths = 4, normalizations = 3;
constexpr Index d = 4;

struct Shape {
  Index n_q, n_k;
};

// the index of the value of each axis
struct Case {
  int map, direction, position, engine, width, normalization, shape;
};

template <class T, class Body>
void with_features(int map, Body&& body) {
  const auto projection = static_cast<Projection>(map % 3);
  const FeatureOptions options{.input_dim = d, .num_features = 5, .projection = projection, .seed = 11};
  switch (map / 3) {
    case 0: return body(PositiveFeatures<T>(options));
    case 1: return body(TrigonometricFeatures<T>(options));
    case 2: return body(HyperbolicFeatures<T>(options));
    default: return body(EluFeatures<T>(d));
  }
}

template <class T>
HeldPosition<T> position(int kind, const Shape& s) {
  constexpr T never = -std::numeric_limits<T>::infinity();
  switch (kind) {
    case 0: return {NoPosition<T>().bias()};
    case 1: return {RelativePosition<T>(random_table<T>(2, 21)).bias()};  // clipped
    case 2: return {RelativePosition<T>(random_table<T>(std::max(s.n_q, s.n_k), 22)).bias()};
    case 3: return {t5_position<T>(normal_vector<T>(8, 23), Direction::bidirectional, 20).bias()};
    case 4: return {t5_position<T>(normal_vector<T>(8, 24), Direction::causal, 20).bias()};
    case 5: return {AlibiPosition<T>(T(0.03125)).bias()};
    default: break;
  }
  Vector<T> b = random_table<T>(6, 25);  // lags -6..6; no key more than 6 tokens back is attended to
  b[0] = b[3] = b[7] = b[8] = never;
  return {RelativePosition<T>(b).bias()};
}

// the number of rows that attend to no key, by a loop over pairs
template <class T>
Index empty_rows(const Shape& s, const LagBias<T>& b, Direction direction) {
  Index empty = 0;
  for (Index i = 0; i < s.n_q; ++i) {
    bool attends = false;
    for (Index j = 0; j < s.n_k; ++j)
      attends = attends || ((direction == Direction::bidirectional || j <= i) && std::isfinite(b[j - i]));
    empty += !attends;
  }
  return empty;
}

template <class T>
void check(const Case& x, const Shape& s) {
  constexpr Index widths_of_v[widths] = {1, 2, 5, 16};
  const Normalization normalization[normalizations] = {Normalization::unit(1), Normalization::none(),
                                                       Normalization::unit(1.5)};
  const auto direction = static_cast<Direction>(x.direction);
  const auto engine = std::array{Engine::direct, NPRF_USE_FFTW ? Engine::fftw : Engine::direct, Engine::lanes,
                                 Engine::banded, Engine::automatic}[static_cast<std::size_t>(x.engine)];
  Tokens<T> tokens = random_tokens<T>(s.n_q, s.n_k, d, widths_of_v[x.width]);
  if (tokens.v.cols() > 1)
    tokens.v.col(1) *= T(1e4);  // far larger than the column of ones, with which it may share an FFT
  with_features<T>(x.map, [&](const auto& features) {
    INFO((sizeof(T) == 4 ? "float" : "double")
         << " map " << x.map << " direction " << x.direction << " position " << x.position << " engine "
         << std::string(name(engine)) << " d_v " << tokens.v.cols() << " normalization " << x.normalization << " n_q "
         << s.n_q << " n_k " << s.n_k);
    const Attention attention(
        features, position<T>(x.position, s),
        {.direction = direction, .normalization = normalization[x.normalization], .engine = engine});
    Report report;
    const Matrix<T> y = attention(tokens.q, tokens.k, tokens.v, {.report = &report});
    const Matrix<T> expected = reference::kernelized_attention(attention, tokens.q, tokens.k, tokens.v);
    const Matrix<double> tolerance = attention_tolerance(attention, report.engine, tokens, expected);
    CHECK(worst_ratio(y, expected, tolerance) <= 1);
    CHECK(report.empty_rows == empty_rows(s, attention.position().bias(), direction));
    CHECK((engine == Engine::automatic ? report.engine != engine : report.engine == engine));
    // only few rows may have an infinite tolerance
    Index unknown = 0;
    for (Index i = 0; i < s.n_q; ++i) unknown += std::isinf(tolerance(i, 0));
    CHECK(unknown <= (sizeof(T) == 4 && x.map / 3 == 1 ? 1 + s.n_q / 20 : 0));
    if (x.map / 3 != 1) CHECK(report.indefinite_rows == 0);
    if (sizeof(T) == 8 && x.map / 3 != 1 && !is_fft(report.engine)) CHECK(report.repaired_rows == 0);
  });
}

// whether each pair of values of two axes has occurred
class Pairs {
 public:
  void saw(const Case& x) {
    const std::array<int, 7> values{x.map, x.direction, x.position, x.engine, x.width, x.normalization, x.shape};
    for (int a = 0; a < 7; ++a)
      for (int b = a + 1; b < 7; ++b)
        m_seen.insert({a, values[static_cast<std::size_t>(a)], b, values[static_cast<std::size_t>(b)]});
  }
  bool complete(int shapes) const {
    const std::array<int, 7> sizes{maps, directions, positions, table_engines, widths, normalizations, shapes};
    int pairs = 0;
    for (std::size_t a = 0; a < 7; ++a)
      for (std::size_t b = a + 1; b < 7; ++b) pairs += sizes[a] * sizes[b];
    return static_cast<int>(m_seen.size()) == pairs;
  }

 private:
  std::set<std::array<int, 4>> m_seen;
};

// the full product of the axes, except that widths and normalisations alternate
template <class T>
void check_all(const std::vector<Shape>& shapes) {
  Pairs pairs;
  int turn = 0;
  for (int shape = 0; shape < static_cast<int>(shapes.size()); ++shape)
    for (int map = 0; map < maps; ++map)
      for (int direction = 0; direction < directions; ++direction)
        for (int k = 0; k < positions; ++k)
          for (int engine = 0; engine < table_engines; ++engine, ++turn) {
            const Case x{map,  direction, k, engine, (turn + turn / 12) % widths, (turn / 2 + map) % normalizations,
                         shape};
            check<T>(x, shapes[static_cast<std::size_t>(shape)]);
            pairs.saw(x);
          }
  CHECK(pairs.complete(static_cast<int>(shapes.size())));
}

// shapes x maps x positions; the other axes alternate
template <class T>
void check_pairs(const std::vector<Shape>& shapes) {
  Pairs pairs;
  for (int shape = 0; shape < static_cast<int>(shapes.size()); ++shape)
    for (int map = 0; map < maps; ++map)
      for (int k = 0; k < positions; ++k) {
        const int turn = map + 3 * k + shape;
        const Case x{map,           (map + k + k / 2 + shape) % directions, k,    (turn + map / 3) % table_engines,
                     turn % widths, (turn / 2 + k) % normalizations,        shape};
        check<T>(x, shapes[static_cast<std::size_t>(shape)]);
        pairs.saw(x);
      }
  CHECK(pairs.complete(static_cast<int>(shapes.size())));
}

}  // namespace

TEST_CASE("attention equals the reference for few tokens", "[attention]") {
  check_all<double>(
      NPRF_TEST_SANITIZED
          ? std::vector<Shape>{{1, 1}, {3, 3}, {17, 17}, {65, 65}}
          : std::vector<Shape>{{1, 1}, {2, 2}, {3, 3}, {5, 5}, {16, 16}, {17, 17}, {63, 63}, {64, 64}, {65, 65}});
}

TEST_CASE("attention equals the reference for different numbers of queries and keys", "[attention]") {
  check_all<double>(NPRF_TEST_SANITIZED ? std::vector<Shape>{{1, 17}, {9, 3}, {30, 129}}
                                        : std::vector<Shape>{{1, 17}, {17, 1}, {3, 9}, {9, 3}, {30, 129}, {129, 30}});
}

TEST_CASE("attention equals the reference for more tokens", "[attention]") {
  check_pairs<double>(NPRF_TEST_SANITIZED
                          ? std::vector<Shape>{{128, 130}, {65, 300}, {300, 65}}
                          : std::vector<Shape>{{127, 127}, {128, 130}, {257, 257}, {65, 300}, {300, 65}, {521, 521}});
}

TEST_CASE("attention equals the reference in float", "[attention]") {
  check_pairs<float>({{1, 1}, {5, 5}, {17, 17}, {64, 64}, {127, 127}, {40, 200}, {200, 40}});
}

}  // namespace nprf::test::attention_table
