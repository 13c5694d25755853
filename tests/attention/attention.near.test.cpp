// SPDX-License-Identifier: MIT
//
// Attention with a near field.

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "attention/exact_pairs_case.hpp"
#include "nprf/attention/attention.hpp"
#include "nprf/attention/batch/head.hpp"
#include "nprf/attention/scaling/key_log_scales.hpp"
#include "nprf/attention/weights/prepared_position.hpp"
#include "nprf/feature_map/balance.hpp"
#include "nprf/feature_map/centred.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/positive.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "nprf/feature_map/trigonometric.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/t5.hpp"
#include "nprf/reference/kernelized_attention.hpp"
#include "nprf/reference/softmax_attention.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::attention_attention_near {

namespace {

constexpr Index n = 150, d = 5, d_v = 3;
constexpr Index widths[] = {1, 2, 17, 64, 400};

template <Real T>
PositiveFeatures<T> positive() {
  return exact_pairs_map<T>(d);
}

template <Real T>
Centred<TaylorFeatures<T>> taylor() {
  const Matrix<T> q = normal<T>(60, d, 90), k = normal<T>(60, d, 91);
  return {TaylorFeatures<T>({.input_dim = d, .directions = 3}), balance<T>(q, k).constants};
}

template <Real T, class F>
void check_engines(const F& map, std::uint64_t seed) {
  Mask mask = Mask::Constant(n, true);
  for (Index j = 0; j < n; ++j) mask[j] = j % 7 != 2 && j % 11 != 3;
  std::vector<ExactPairsOptions> all;
  for (const Index near : widths) all.push_back({near});
  test::check_engines<T>(map, seed, random_tokens<T>(n, n, d, d_v, seed), random_tokens<T>(n, 97, d, d_v, seed + 1),
                         mask, all);
}

// a table of biases that decay, and of which some are -infinity
template <Real T>
Vector<T> decaying(Index reach) {
  Vector<T> b(2 * reach + 1);
  for (Index l = -reach; l <= reach; ++l)
    b[l + reach] = l % 13 == 5 ? -std::numeric_limits<T>::infinity() : T(-0.03) * static_cast<T>(std::abs(l));
  return b;
}

}  // namespace

TEST_CASE("attention with a near field equals the formula, by every engine", "[attention]") {
  if (!NPRF_TEST_SANITIZED) check_engines<double>(positive<double>(), 1);
  check_engines<float>(positive<float>(), 2);
  if (!NPRF_TEST_SANITIZED) check_engines<double>(taylor<double>(), 3);
}

TEST_CASE("a near field with masked lags equals the formula", "[attention]") {
  const Tokens<double> x = random_tokens<double>(n, n, d, d_v, 4);
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const Index near : widths)
      CHECK(agrees(Attention(positive<double>(), RelativePosition<double>(decaying<double>(n)),
                             {.direction = direction, .near = near}),
                   x));
}

TEST_CASE("the near field of a grid is a square of cells", "[attention]") {
  constexpr Index height = 7, width = 9, E = 2;
  const Tokens<double> x = random_tokens<double>(E + height * width, E + height * width, d, d_v, 5);
  Mask mask = Mask::Constant(x.k.rows(), true);
  for (Index j = 0; j < mask.size(); ++j) mask[j] = j % 5 != 1;
  const GridPosition<double> grid(height, width, normal<double>(2 * height - 1, 2 * width - 1, 6),
                                  normal<double>(E, E + 2, 7));
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const Engine engine : {Engine::automatic, Engine::direct, Engine::grid})
      for (const Index near : {1, 2, 3, 7, 20}) {
        const Attention attention(positive<double>(), grid, {.direction = direction, .engine = engine, .near = near});
        CHECK(agrees(attention, x));
        CHECK(agrees(attention, x, 0, mask));
      }
}

TEST_CASE("a near field of all lags is softmax attention", "[attention]") {
  constexpr Index tokens = 600;  // three runs of keys
  const Tokens<double> x = random_tokens<double>(tokens, tokens, d, d_v, 8);
  Vector<double> ahead = random_table<double>(tokens, 9);  // only keys from 300 tokens ahead: few in the first run
  ahead.head(tokens + 300).setConstant(-std::numeric_limits<double>::infinity());
  ahead[tokens + 550] = 900;  // exp overflows; the largest comes last
  for (const Vector<double>& b : {decaying<double>(n), ahead})
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      for (const Normalization normalization : {Normalization::unit(8), Normalization::none()}) {
        const RelativePosition<double> position(b);
        const Matrix<double> expected =
            reference::softmax_attention<double>(x.q, x.k, x.v, position, direction, normalization);
        const AttentionOptions options{.direction = direction, .normalization = normalization, .near = tokens};
        const Matrix<double> y = Attention(taylor<double>(), position, options)(x.q, x.k, x.v);
        CHECK((y - expected).cwiseAbs().maxCoeff() <= 256 * epsilon<double> * x.v.cwiseAbs().maxCoeff());
      }
}

TEMPLATE_TEST_CASE("without a near field y is bitwise the quotient of products of features", "[attention]", float,
                   double) {
  using T = TestType;
  const Tokens<T> x = random_tokens<T>(n, n, d, d_v, 9);
  const auto check = [&](const auto& position, Direction direction, Engine engine) {
    INFO(name(engine) << ", direction " << static_cast<int>(direction));
    const PositiveFeatures<T> map = positive<T>();
    const AttentionOptions options{.direction = direction, .engine = engine};
    Workspace workspace;
    const Team team(workspace);
    const Index r = map.output_dim();
    const PreparedPosition<T> prepared(position, options, {n, n, r, d_v + 1}, 0, Pass::forward, team);
    const Head<T> head{map, options.normalization, &prepared};
    Vector<T> scale(n), D(n);
    Matrix<T> A(n, r), B(n, r), N(n, d_v);
    head.query_features(x.q, scale, A, team);
    double* log_scales = scaled_key_features<T>(head.features, head.normalize(x.k, scale, team).rows(),
                                                Head<T>::as_span(scale), B, team);
    REQUIRE(merge_close_log_scales<T>(B, log_scales, team) == nullptr);
    const toeplitz::Factors<T> factors{A, B, x.v, prepared.queries(), prepared.problem().keys};
    prepared.products().product().contract(factors, N, team, D.data());
    const Matrix<T> expected = N.array().colwise() / D.array();
    Report report;
    const Matrix<T> y = Attention(map, position, options)(x.q, x.k, x.v, {.report = &report});
    Index recomputed = 0;
    for (Index i = 0; i < n; ++i) recomputed += same_bits<T>(y.row(i), expected.row(i)) ? 0 : 1;
    CHECK(recomputed <= report.repaired_rows);
    CHECK(report.repaired_rows <= n / 20);
  };
  const RelativePosition<T> table(T(0.3) * random_table<T>(n, 10));
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    for (const Engine engine : {Engine::direct, Engine::lanes}) check(table, direction, engine);
    check(T5Position<T>(normal<T>(1, 32, 11).row(0), direction), direction, Engine::banded);
  }
}

TEST_CASE("centred maps count far pairs of large norms beside a near field", "[attention]") {
  // the means of queries and keys are far from 0, and their norms 8
  Tokens<double> x = random_tokens<double>(n, n, d, d_v, 49);
  x.q.array() += 0.7, x.k.array() -= 0.4;
  const Normalization sphere = Normalization::unit(8);
  const Matrix<double> q = sphere.row_scale<double>(x.q).asDiagonal() * x.q,
                       k = sphere.row_scale<double>(x.k).asDiagonal() * x.k;
  const Centring<double> constants = balance<double>(q, k).constants;
  const RelativePosition<double> position(random_table<double>(n, 50));
  const auto check = [&](const auto& map) {
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      for (const Engine engine : {Engine::direct, Engine::block_causal, Engine::lanes}) {
        const Attention attention(map, position,
                                  {.direction = direction, .normalization = sphere, .engine = engine, .near = 10});
        Report report;
        const Matrix<double> y = attention(x.q, x.k, x.v, {.report = &report}),
                             expected = reference::kernelized_attention(attention, x.q, x.k, x.v);
        const Matrix<double> exact = reference::softmax_attention<double>(x.q, x.k, x.v, position, direction, sphere);
        CHECK(report.error_bound <= 1e-9);
        const double bound = report.error_bound * x.v.cwiseAbs().maxCoeff();
        Index recomputed = 0;
        for (Index i = 0; i < n; ++i) {
          if ((y.row(i) - expected.row(i)).cwiseAbs().maxCoeff() <= bound) continue;
          ++recomputed;  // by exact softmax
          CHECK((y.row(i) - exact.row(i)).cwiseAbs().maxCoeff() <= bound);
        }
        CHECK(recomputed <= report.repaired_rows);
        CHECK(report.repaired_rows < n);
      }
  };
  check(Centred(positive<double>(), constants));
  check(Centred(taylor<double>(), constants));
}

TEST_CASE("far pairs count in a row that does not attend to the largest bias", "[attention]") {
  // beside the peak at lag 0 the weights of all other lags underflow, and their biases have few digits or none in float
  const auto check = []<Real T>(T peak) {
    constexpr Index keys = 60;
    const Tokens<T> x = random_tokens<T>(n, keys, d, d_v, 36);
    Vector<T> b = random_table<T>(n - 1, 37);
    b[n - 1] = peak;
    const RelativePosition<T> position(b);
    const auto in_double = [](const auto& m) { return m.template cast<double>().eval(); };
    const Matrix<double> exact = reference::softmax_attention<double>(in_double(x.q), in_double(x.k), in_double(x.v),
                                                                      RelativePosition<double>(in_double(b)),
                                                                      Direction::bidirectional, Normalization::unit(1));
    for (const Engine engine : {Engine::direct, Engine::lanes, Engine::block_causal})
      for (const Index near : {4, 100}) {
        Report report;
        const Matrix<T> y =
            Attention(positive<T>(), position, {.engine = engine, .near = near})(x.q, x.k, x.v, {.report = &report});
        const double bound = report.error_bound * static_cast<double>(x.v.cwiseAbs().maxCoeff());
        CHECK(report.repaired_rows == n - keys);
        CHECK((in_double(y) - exact).bottomRows(n - keys).cwiseAbs().maxCoeff() <= bound);
      }
  };
  check(200.0F);
  check(1e6F);
  check(2000.0);
}

TEST_CASE("far pairs of small weights have gradients beside large near ones", "[attention]") {
  // the near weight of each row is about exp(60) times as large as that of any far pair
  const Tokens<double> x = random_tokens<double>(n, n, d, d_v, 38);
  const Vector<double> b = random_table<double>(n - 1, 39);
  const Matrix<double> dy = normal<double>(n, d_v, 40);
  const auto gradient = [&](double at, Index near) {
    Vector<double> biases = b;
    biases[n - 1] = at;
    const Attention attention(positive<double>(), RelativePosition<double>(biases),
                              {.direction = Direction::causal, .engine = Engine::direct, .near = near});
    return both_passes(attention, x, dy).g;
  };
  // gradients by biases before lag 0 are proportional to exp(-b_0) there
  const Gradients<double> large = gradient(60, 1), larger = gradient(62, 1);
  for (Index lag = 1; lag < n; ++lag) {
    const double far = large.bias(n - 1 - lag, 0), farther = larger.bias(n - 1 - lag, 0) * std::exp(2.0);
    CHECK(far != 0);
    CHECK(std::abs(far - farther) <= 1e-8 * std::abs(far));
  }
}

TEST_CASE("the gradient of a query has its precision beside far larger ones, with a near field", "[attention]") {
  // row 3 has a gradient that is 1e-280 times as large as those of others
  constexpr double tiny = 1e-280;
  const Tokens<double> x = random_tokens<double>(n, n, d, d_v, 41);
  const Attention attention(positive<double>(), RelativePosition<double>(random_table<double>(n, 42)), {.near = n});
  Matrix<double> dy = normal<double>(n, d_v, 43);
  const Matrix<double> expected = both_passes(attention, x, dy).g.queries;
  dy.row(3) *= tiny;
  const Matrix<double> got = both_passes(attention, x, dy).g.queries;
  CHECK((got.row(3) / tiny - expected.row(3)).norm() <= 1e-12 * expected.row(3).norm());
}

TEST_CASE("a near field may be wider than any sequence", "[attention]") {
  const Tokens<double> x = random_tokens<double>(21, 21, d, d_v, 44);
  const auto check = [&](const auto& position, Index offset) {
    const auto y_of = [&](Index near) {
      return Attention(positive<double>(), position, {.near = near})(x.q, x.k, x.v, {.offset = offset});
    };
    CHECK(same_bits(y_of(std::numeric_limits<Index>::max()), y_of(21 + std::abs(offset))));
  };
  check(RelativePosition<double>(random_table<double>(21, 45)), 0);
  check(RelativePosition<double>(random_table<double>(21, 45)), -5);
  check(GridPosition<double>(3, 7, normal<double>(5, 13, 46)), 0);
}

TEST_CASE("rows whose features cancel become those of exact softmax, and so do their gradients", "[attention]") {
  // key i + 7 mod n is the opposite of query i and has the largest bias: 1 + q.k = -8 makes every denominator negative
  const TaylorFeatures<double> map({.input_dim = d});
  Tokens<double> x = random_tokens<double>(n, n, d, d_v, 25);
  for (Index i = 0; i < n; ++i) x.k.row((i + 7) % n) = -x.q.row(i);
  Vector<double> b = random_table<double>(n - 1, 26);
  b[7 + n - 1] = b[7 - n + n - 1] = 12;
  const RelativePosition<double> position(b);
  const Matrix<double> dy = normal<double>(n, d_v, 27);
  const Normalization normalization = Normalization::unit(3);
  const Matrix<double> exact =
      reference::softmax_attention<double>(x.q, x.k, x.v, position, Direction::bidirectional, normalization);
  const Attention all_near(map, position, {.normalization = normalization, .near = n});
  const Gradients<double> expected = both_passes(all_near, x, dy).g;
  for (const Index near : {0, 5}) {
    const Attention attention(map, position, {.normalization = normalization, .near = near});
    const auto [y, g, report] = both_passes(attention, x, dy);
    CHECK(report.repaired_rows == n);
    CHECK(report.indefinite_rows == 0);
    CHECK((y - exact).cwiseAbs().maxCoeff() <= report.error_bound * x.v.cwiseAbs().maxCoeff());
    CHECK(gradients_difference(g, expected) <= 1e4 * epsilon<double>);
  }
}

TEST_CASE("a non-finite token changes only the rows that attend to it, with a near field", "[attention]") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  const Tokens<double> clean = random_tokens<double>(n, n, d, d_v, 28);
  const Attention attention(positive<double>(), RelativePosition<double>(random_table<double>(n, 29)),
                            {.direction = Direction::causal, .near = 8});
  const Matrix<double> expected = attention(clean.q, clean.k, clean.v), dy = normal<double>(n, d_v, 30);
  Tokens<double> x = clean;
  x.k(100, 1) = nan;
  x.q(40, 2) = nan;
  const auto [y, g, report] = both_passes(attention, x, dy);
  for (Index i = 0; i < n; ++i) {
    const bool affected = i >= 100 || i == 40;
    CHECK(y.row(i).array().isNaN().all() == affected);
    if (!affected) CHECK((y.row(i) - expected.row(i)).cwiseAbs().maxCoeff() <= 1e-12);
    CHECK(g.queries.row(i).array().isNaN().all() == affected);
  }
  // key 41 and later ones are attended to by row 40 not at all, and key 120 by rows that attend to key 100
  CHECK(g.keys.row(41).array().isNaN().all());
  CHECK(g.values.row(120).array().isNaN().all());
}

TEST_CASE("what has no near field is refused", "[attention]") {
  check_invalid([] { Attention(positive<float>(), {.near = -1}); }, {"near", "expected 0 or more", "got -1"});
  check_invalid([] { Attention(EluFeatures<float>(d), {.near = 3}); }, {"near", "does not estimate exp", "got 3"});
}

}  // namespace nprf::test::attention_attention_near
