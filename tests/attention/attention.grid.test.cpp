// SPDX-License-Identifier: MIT

// GridPosition: attention between the cells of a grid and extra tokens.

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/reference/kernelized_attention.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::attention_grid {

namespace {

constexpr double never = -std::numeric_limits<double>::infinity();
constexpr Index d = 3, m = 6;

template <class T>
using Picture = Attention<PositiveFeatures<T>, GridPosition<T>>;

struct Setting {
  Index H, W, E;
  AttentionOptions options;

  Index tokens() const { return E + H * W; }
};

// body for every engine and direction, grids of several shapes, without and with extra tokens
template <class Body>
void for_each_setting(const std::vector<std::pair<Index, Index>>& sizes, Body&& body) {
  for (const Engine engine : engines())
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      for (const auto& [H, W] : sizes)
        for (const Index E : {0, 1, 3}) {
          INFO(std::string(name(engine)) << (direction == Direction::causal ? " causal " : " bidirectional ") << H
                                         << " x " << W << " and " << E << " extra tokens");
          body(Setting{H, W, E, {.direction = direction, .engine = engine}});
        }
}

const std::vector<std::pair<Index, Index>> sizes{{1, 1}, {1, 9}, {9, 1}, {2, 3}, {5, 7}, {16, 16}};

struct Weights {
  Matrix<double> b, extra;
};

// biases N(0,1); with holes, every third of the table and every fourth of the extra tokens is -infinity
Weights weights(Index H, Index W, Index E, bool holes = false) {
  Weights x{normal<double>(2 * H - 1, 2 * W - 1, 40), normal<double>(E, E + 2, 41)};
  if (!holes) return x;
  for (Index k = 1; k < x.b.size(); k += 3) x.b.data()[k] = never;
  for (Index k = 1; k < x.extra.size(); k += 4) x.extra.data()[k] = never;
  return x;
}

template <class T>
Picture<T> make(const Setting& s, const Weights& x) {
  return Picture<T>(orf<T>(d, m, 7), GridPosition<T>(s.H, s.W, x.b.cast<T>(), x.extra.cast<T>()), s.options);
}

// masks: empty, random, only extra tokens, only cells, one cell, no key, all but the first token
std::vector<Mask> masks(const Setting& s) {
  const Index n = s.tokens();
  std::vector<Mask> masks(7);
  for (std::size_t k = 1; k < masks.size(); ++k) masks[k] = Mask::Constant(n, false);
  const Vector<double> coin = normal_vector<double>(n, 90);
  for (Index j = 0; j < n; ++j) {
    masks[1][j] = coin[j] > 0;
    masks[2][j] = j < s.E;
    masks[3][j] = j >= s.E;
    masks[4][j] = j == n - 1;
    masks[6][j] = j > 0;
  }
  return masks;
}

// counted by a loop over keys
template <class T>
Index empty_rows(const Picture<T>& attention, const Setting& s, const Mask& mask) {
  Index empty = 0;
  for (Index i = 0; i < s.tokens(); ++i) {
    bool attends = false;
    for (Index j = 0; j < s.tokens(); ++j)
      attends =
          attends || ((mask.size() == 0 || mask[j]) && (s.options.direction == Direction::bidirectional || j <= i) &&
                      std::isfinite(attention.position().bias(i, j)));
    empty += !attends;
  }
  return empty;
}

template <class T>
void check_twin(const Setting& s, const Weights& weights) {
  const Index n = s.tokens();
  const Tokens<T> x = random_tokens<T>(n, n, d, 2);
  const Picture<T> attention = make<T>(s, weights);
  for (const Mask& mask : masks(s)) {
    const auto attends = [&](Index, Index j) { return mask.size() == 0 || mask[j]; };
    Tokens<T> clean = x, filled = x;
    for (Index j = 0; j < n; ++j)
      if (!attends(0, j)) {
        clean.k.row(j).setZero();
        filled.k.row(j).setConstant(std::numeric_limits<T>::quiet_NaN());
        filled.v.row(j).setConstant(std::numeric_limits<T>::infinity());
      }
    Report report;
    const Matrix<T> y = attention(filled.q, filled.k, filled.v, {.key_mask = view(mask), .report = &report});
    const Matrix<T> expected = reference::kernelized_attention(attention, clean.q, clean.k, clean.v, 0, attends);
    INFO((sizeof(T) == 4 ? "float, " : "double, ") << mask.count() << " keys");
    CHECK(worst_ratio(y, expected, 2 * attention_tolerance(attention, s.options.engine, x, expected, 0, mask)) <= 1);
    CHECK(report.empty_rows == empty_rows(attention, s, mask));
    if (sizeof(T) == 8) CHECK(report.repaired_rows == 0);
  }
}

}  // namespace

TEST_CASE("attention over a grid equals the reference, in double", "[attention]") {
  for_each_setting(sizes, [](const Setting& s) {
    if (!NPRF_TEST_SANITIZED) check_twin<double>(s, weights(s.H, s.W, s.E));
    check_twin<double>(s, weights(s.H, s.W, s.E, true));
  });
}

TEST_CASE("attention over a grid equals the reference, in float", "[attention]") {
  for_each_setting({{1, 4}, {5, 7}}, [](const Setting& s) {
    check_twin<float>(s, weights(s.H, s.W, s.E));
    check_twin<float>(s, weights(s.H, s.W, s.E, true));
  });
}

TEST_CASE("a grid of more tokens than a tile has", "[attention]") {
  for (const Engine engine : engines())
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      const Setting s{12, 31, 3, {.direction = direction, .engine = engine}};
      INFO(std::string(name(engine)) << (direction == Direction::causal ? " causal " : " bidirectional "));
      check_twin<double>(s, weights(s.H, s.W, s.E));
    }
}

TEST_CASE("automatic selects no FFT for a table that gives the edge of a grid far smaller weights", "[attention]") {
  const Index H = 64, n = H * H;
  const Tokens<float> x = random_tokens<float>(n, n, d, 2);
  for (const float slope : {0.0f, 0.3f})
    for (const bool by_rows : {false, true}) {
      Matrix<float> b =
          Vector<float>::LinSpaced(2 * H - 1, -slope * static_cast<float>(H - 1), slope * static_cast<float>(H - 1))
              .replicate(1, 2 * H - 1);
      if (!by_rows) b.transposeInPlace();
      b += 0.1f * normal<float>(b.rows(), b.cols(), 3);
      Report report;
      const Picture<float> attention(orf<float>(d, 2, 7), GridPosition<float>(H, H, b));
      attention(x.q, x.k, x.v, {.report = &report});
      INFO("slope " << slope << (by_rows ? " by rows" : " by columns"));
      CHECK(report.engine == (slope > 0 ? Engine::direct : Engine::grid));
    }
}

TEST_CASE("the row of an extra token has its own scale", "[attention]") {
  const Setting s{5, 7, 1, {.engine = Engine::direct}};
  const Weights plain = weights(s.H, s.W, s.E);
  Weights shifted = plain;
  shifted.extra(0, 0) += 64;
  shifted.extra(0, 2) += 64;
  const Tokens<double> x = random_tokens<double>(s.tokens(), s.tokens(), d, 2);
  Report report;
  const Matrix<double> y =
      make<float>(s, shifted)(x.q.cast<float>(), x.k.cast<float>(), x.v.cast<float>(), {.report = &report})
          .cast<double>();
  CHECK(report.repaired_rows == 0);
  const Matrix<double> expected = make<double>(s, plain)(x.q, x.k, x.v);
  // the rounding errors of inputs, features and sums in float; the offset adds 64 eps in the biases of the extra row
  CHECK(largest_row_error(y, expected) <= 256 * epsilon<float>);
}

TEST_CASE("a grid of one row equals a relative position", "[attention]") {
  for (const Engine engine : engines())
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      const Index n = 40;
      const Setting s{1, n, 0, {.direction = direction, .engine = engine}};
      const Weights w = weights(1, n, 0, true);
      const Tokens<double> x = random_tokens<double>(n, n, d, 2);
      const Picture<double> attention = make<double>(s, w);
      const Attention relative(orf<double>(d, m, 7), RelativePosition<double>(w.b.row(0).transpose()), s.options);
      const Matrix<double> dy = normal<double>(n, 2, 77);
      const Passes<double> got = both_passes(attention, x, dy);
      Passes<double> expected = both_passes(relative, x, dy);
      INFO(std::string(name(engine)) << (direction == Direction::causal ? " causal" : ""));
      CHECK(worst_ratio(got.y, expected.y, attention_tolerance(attention, engine, x, expected.y)) <= 1);
      expected.g.bias.transposeInPlace(), expected.g.extra.resize(0, 2);  // the shapes of a grid without extra tokens
      CHECK(gradients_difference(got.g, expected.g) <= 1e4 * epsilon<double>);
    }
}

namespace {

void check_gradients(const Setting& s, const Weights& w, const Mask& mask, Index repaired = 0) {
  const Index n = s.tokens();
  const Tokens<double> x = random_tokens<double>(n, n, d, 2);
  const Matrix<double> dy = normal<double>(n, 2, 77);
  const CallOptions call{.key_mask = view(mask)};
  INFO(mask.count() << " keys of " << n);
  const auto of_table = [&](const Matrix<double>& b) { return make<double>(s, {b, w.extra}); };
  const auto [y, g, report] = check_differences(of_table, w.b, x, dy, call);
  CHECK(same_bits<double>(of_table(w.b)(x.q, x.k, x.v, call), y));
  CHECK(report.repaired_rows >= repaired);
  REQUIRE((g.extra.rows() == s.E && g.extra.cols() == s.E + 2));
  CHECK(difference_error(w.extra, g.extra, [&](const auto& extra) {
          return make<double>(s, {w.b, extra})(x.q, x.k, x.v, call).cwiseProduct(dy).sum();
        }) <= 1e-6);
  // a common offset of all biases changes nothing
  const double sum = g.bias.sum() + g.extra.sum();
  const double size = g.bias.cwiseAbs().sum() + g.extra.cwiseAbs().sum();
  CHECK(std::abs(sum) <= 100 * epsilon<double> * (1 + size));
  for (Index j = 0; j < mask.size(); ++j)
    if (!mask[j]) CHECK((all_zero(g.keys.row(j)) && all_zero(g.values.row(j))));
}

}  // namespace

TEST_CASE("gradients over a grid are central differences", "[attention][long]") {
  for_each_setting({{1, 1}, {1, 4}, {3, 1}, {2, 3}}, [](const Setting& s) {
    check_gradients(s, weights(s.H, s.W, s.E), {});
    for (const Mask& mask : masks(s)) check_gradients(s, weights(s.H, s.W, s.E, true), mask);
  });
}

TEST_CASE("gradients over a larger grid are central differences", "[attention]") {
  for (const Engine engine : engines())
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      const Setting s{5, 7, 3, {.direction = direction, .engine = engine}};
      INFO(std::string(name(engine)) << (direction == Direction::causal ? " causal" : ""));
      check_gradients(s, weights(5, 7, 3), masks(s)[1]);
    }
}

TEST_CASE("gradients of a grid's rows whose weights underflow are central differences", "[attention]") {
  // the displacements (0, 0) and (1, -1), and the cells for extra token 0, have e^800 times the weight of all others.
  // Masks exclude such keys, so that the rows without one are recomputed
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const Index E : {0, 2}) {
      const Setting s{3, 4, E, {.direction = direction, .engine = Engine::direct}};
      Weights w = weights(s.H, s.W, E);
      w.b(2, 3) += 800;
      w.b(3, 2) += 800;
      if (E > 0) w.extra(0, 0) += 800;
      Mask mask(s.tokens());
      for (Index j = 0; j < s.tokens(); ++j) mask[j] = j < E || (j - E) % 3 == 1;
      INFO(E << " extra tokens" << (direction == Direction::causal ? ", causal" : ""));
      check_gradients(s, w, mask, 4);
      const Picture<double> attention = make<double>(s, w);
      const Tokens<double> x = random_tokens<double>(s.tokens(), s.tokens(), d, 2);
      const Matrix<double> y = attention(x.q, x.k, x.v, {.key_mask = view(mask)});
      const Matrix<double> expected =
          reference::kernelized_attention(attention, x.q, x.k, x.v, 0, [&](Index, Index j) { return mask[j]; });
      // values are at most 4, and exponents of up to 800 have errors of 800 eps
      CHECK(worst_ratio(y, expected, 4 * 800 * epsilon<double>) <= 1);
    }
}

TEST_CASE("packed grids equal separate calls", "[attention]") {
  for (const Engine engine : engines()) {
    const Setting s{3, 4, 2, {.engine = engine}};
    const Index n = s.tokens();
    const Picture<double> attention = make<double>(s, weights(s.H, s.W, s.E));
    const Tokens<double> x = random_tokens<double>(3 * n, 3 * n, d, 2);
    const Matrix<double> dy = normal<double>(3 * n, 2, 77);
    const std::vector<Index> lengths{0, n, 2 * n, 3 * n};
    Mask mask = Mask::Constant(3 * n, true);
    mask[0] = mask[n + 1] = mask[n + 7] = false;
    const auto [y, g, report] = both_passes(attention, x, dy, {.key_mask = view(mask), .cumulative_lengths = lengths});
    Matrix<double> bias = Matrix<double>::Zero(5, 7), extra = Matrix<double>::Zero(2, 4);
    for (Index k = 0; k < 3; ++k) {
      const Mask own = mask.segment(k * n, n);
      const Tokens<double> of{x.q.middleRows(k * n, n), x.k.middleRows(k * n, n), x.v.middleRows(k * n, n)};
      const Passes<double> alone = both_passes(attention, of, dy.middleRows(k * n, n), {.key_mask = view(own)});
      CHECK(same_bits<double>(y.middleRows(k * n, n), alone.y));
      CHECK(same_bits<double>(g.queries.middleRows(k * n, n), alone.g.queries));
      CHECK(same_bits<double>(g.keys.middleRows(k * n, n), alone.g.keys));
      bias += alone.g.bias;
      extra += alone.g.extra;
    }
    CHECK(worst_ratio(g.bias, bias, 8 * epsilon<double> * bias.norm()) <= 1);
    CHECK(worst_ratio(g.extra, extra, 8 * epsilon<double> * extra.norm()) <= 1);
  }
}

TEST_CASE("a grid rejects other numbers of tokens, and an offset", "[attention]") {
  const Setting s{3, 4, 2, {}};
  const Picture<double> attention = make<double>(s, weights(3, 4, 2));
  const auto call = [&](Index n_q, Index n_k, const CallOptions& options = {}) {
    const Tokens<double> x = random_tokens<double>(n_q, n_k, d, 2);
    attention(x.q, x.k, x.v, options);
  };
  check_invalid([&] { call(13, 14); }, {"queries: expected 14 rows", "position's tokens", "got 13"});
  check_invalid([&] { call(15, 14); }, {"queries: expected 14 rows", "got 15"});
  check_invalid([&] { call(14, 12); }, {"keys: expected 14 rows", "position's tokens", "got 12"});
  check_invalid([&] { call(0, 0); }, {"queries: expected 14 rows", "got 0"});
  check_invalid([&] { call(14, 14, {.offset = 1}); }, {"offset: expected 0", "got 1"});
  check_invalid([&] { call(14, 14, {.offset = -3}); }, {"offset: expected 0", "got -3"});
  const std::vector<Index> lengths{0, 14, 27};
  check_invalid([&] { call(27, 27, {.cumulative_lengths = lengths}); }, {"queries: expected 14 rows", "got 13"});
}

}  // namespace nprf::test::attention_grid
