// SPDX-License-Identifier: MIT

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/relative.hpp"
#include "support/adversarial.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/gradient_errors.hpp"

/// The errors of gradients by FFT are below the reported bound.
namespace nprf::test::attention_gradient_errors {

namespace {

Index recomputed(const GradientReport& report) {
  return report.recomputed_queries + report.recomputed_keys + report.recomputed_lags;
}

// dy of one magnitude; with a large row or large columns; decreasing; with halves of different magnitudes
template <class T>
Matrix<T> hostile_dy(Index n, Index d_v, std::uint64_t seed) {
  Matrix<T> dy = normal<T>(n, d_v, seed);
  switch (seed % 6) {
    case 1: dy.row(n / 2) *= T(1e6); break;
    case 2: dy.rightCols((d_v + 1) / 2) *= T(1e-5), dy.row(n / 3).setOnes(); break;
    case 3: dy.setOnes(); break;
    case 4:
      for (Index i = 0; i < n; ++i) dy.row(i) *= std::exp(T(-0.1) * static_cast<T>(i));
      break;
    case 5: dy.bottomRows(n / 2) *= T(1e-8); break;
    default: break;
  }
  return dy;
}

template <template <class> class Features, class T>
void check_bound(const adversarial::Case& c, const Features<T>& features, const adversarial::Problem<T>& problem) {
  const bool causal = c.sides == adversarial::Sides::causal;
  const Matrix<T> dy = hostile_dy<T>(c.n_q, c.d_v, c.seed);
  const CheckedGradients<Features, T> checked(features, problem.table, problem.x, dy,
                                              {causal ? Direction::causal : Direction::bidirectional,
                                               c.normalised ? Normalization::unit(c.norm) : Normalization::none()});
  // in double the reference has errors of its own
  const double of_expected = sizeof(T) == 8 ? checked.expected().report.error_bound : 0;
  for (const Engine engine : engines()) {
    bool has_softmax_rows = false;
    const Gradients<T> g = checked.by(engine, nullptr, 0, &has_softmax_rows);
    if (has_softmax_rows) continue;  // of features that underflow
    const GradientErrors e = checked.errors(g);
    INFO(name(engine) << ", " << c.name() << ": dq " << e.queries << ", dk " << e.keys << ", dv " << e.values << ", db "
                      << e.bias << ", bound " << g.report.error_bound);
    // a bound of about 1 would be useless
    const double most = engine == Engine::smooth ? std::max({e.queries, e.keys, e.values}) : e.most();
    if (g.report.error_bound < 0.1) CHECK(most <= g.report.error_bound + of_expected);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("gradients are exact for values and dy of any power of two", "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  using Limits = std::numeric_limits<T>;
  const Index n = 24, d = 4, d_v = 3;
  const Matrix<T> q = normal<T>(n, d, 1), k = normal<T>(n, d, 2), dy = normal<T>(n, d_v, 4);
  // integers of a few bits, so that multiplication by powers of two is exact
  Matrix<T> v = normal<T>(n, d_v, 3).unaryExpr([](T x) { return std::round(2 * x); });
  const int least = Limits::min_exponent - Limits::digits, most = Limits::max_exponent - 4;
  const RelativePosition<T> table(random_table<T>(n, 5));
  for (const Engine engine : engines()) {
    const Attention attention(prf<T>(d, 8, 7), table, {.direction = Direction::causal, .engine = engine});
    const auto gradients = [&](const Matrix<T>& values, const Matrix<T>& of_y) {
      return both_passes(attention, {q, k, values}, of_y).g;
    };
    const Gradients<T> expected = gradients(v, dy);
    const auto is_near = [&](const Matrix<T>& got, const Matrix<T>& to) {
      return (got - to).cwiseAbs().maxCoeff() <= static_cast<T>(10 * default_tolerance<T>) * to.cwiseAbs().maxCoeff();
    };
    // block_causal must not scale by later values
    for (const int of_v : {engine == Engine::block_causal ? Limits::min_exponent + Limits::digits : least, 0, most}) {
      const int of_dy = of_v < 0 ? most - 10 : of_v > 0 ? 10 - most : 0;
      const Gradients<T> g = gradients(v * std::ldexp(T(1), of_v), dy * std::ldexp(T(1), of_dy));
      const T back = std::ldexp(T(1), -of_v - of_dy);
      INFO(name(engine) << ", values times 2^" << of_v);
      CHECK(is_near(g.queries * back, expected.queries));
      CHECK(is_near(g.keys * back, expected.keys));
      CHECK(is_near(g.values * std::ldexp(T(1), -of_dy), expected.values));
    }
    // beside a large value that no row with a gradient attends to
    const int far = Limits::min_exponent + 12;
    Matrix<T> small = v * std::ldexp(T(1), far), of_y = dy;
    small.row(n - 1).setConstant(std::ldexp(T(1), 30));
    of_y.row(n - 1).setZero();
    const Gradients<T> alone = gradients(v, of_y), beside = gradients(small, of_y);
    INFO(name(engine));
    CHECK(is_near(beside.queries * std::ldexp(T(1), -far), alone.queries));
    CHECK(is_near(beside.keys * std::ldexp(T(1), -far), alone.keys));
  }
}

TEMPLATE_TEST_CASE("small features beside large ones do not overflow gradients", "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const bool is_float = sizeof(T) == 4;
  Matrix<T> q(1, 2), k(3, 2);
  q << (is_float ? T(-42) : T(-350)), (is_float ? T(-200) : T(-800));
  k.col(0).setZero();
  k.col(1).setConstant(is_float ? T(1e30) : T(1e200));
  const Matrix<T> v = normal<T>(3, 2, 1), dy = normal<T>(1, 2, 2);
  const Attention attention(EluFeatures<T>(2), RelativePosition<T>(Vector<T>::Zero(3)),
                            {.normalization = Normalization::none()});
  const Gradients<T> g = both_passes(attention, {q, k, v}, dy).g;
  // all keys are equal, so that y is the mean for any query
  CHECK(g.queries.isZero(8 * epsilon<T>));
  CHECK((g.keys.allFinite() && g.values.isApprox((Matrix<T>::Ones(3, 1) * dy) / T(3))));
}

TEST_CASE("small weights beside large features of a map without factors do not underflow gradients", "[attention]") {
  // later rows attend to their keys with small weights, and those of the second half to far smaller values
  const Index n = 160, d = 4, half = 100, near = 8;
  Mask mask(n);
  for (Index j = 0; j < n; ++j) mask[j] = j % half < near;
  const CallOptions call{.key_mask = view(mask)};
  const Matrix<float> dy = normal<float>(n, 3, 6);
  for (const float of_features : {1.0f, 1e9f})
    for (const float depth : {40.0f, 60.0f, 72.0f, 83.0f}) {
      Tokens<float> x = random_tokens<float>(n, n, d, 3);
      x.q = of_features * x.q.cwiseAbs(), x.k = of_features * x.k.cwiseAbs();
      x.v.bottomRows(n - half) *= 1e-9f;
      Vector<float> table(2 * n - 1);
      for (Index lag = 1 - n; lag < n; ++lag)
        table[n - 1 + lag] = lag > -near ? 0 : lag > -half / 2 ? -depth : -std::numeric_limits<float>::infinity();
      const auto by = [&]<class T>(const Tokens<T>& tokens, const Matrix<T>& of_rows, Engine engine) {
        const Attention attention(EluFeatures<T>(d), RelativePosition<T>(Vector<T>(table.cast<T>())),
                                  {.direction = Direction::causal, .engine = engine});
        return both_passes(attention, tokens, of_rows, call).g;
      };
      const Gradients<double> expected = by(in_double(x), Matrix<double>(dy.cast<double>()), Engine::direct);
      for (const Engine engine : engines()) {
        const Gradients<float> g = by(x, dy, engine);
        INFO(name(engine) << ", features of " << of_features << ", weights of exp(-" << depth << ")");
        for (Index j = 0; j < n; ++j) {
          CHECK(g.keys.row(j).cast<double>().isApprox(expected.keys.row(j), default_tolerance<float>));
          CHECK(g.values.row(j).cast<double>().isApprox(expected.values.row(j), default_tolerance<float>));
        }
      }
    }
}

TEMPLATE_TEST_CASE("gradients of adversarial inputs are within their bound, with every engine", "[attention]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  // these exceeded the bound before it contained the FFT errors of the rows
  std::vector<std::uint64_t> seeds{114, 152, 162, 277, 574, 653, 670, 674, 954};
  for (std::uint64_t seed = 1; seed <= 30; ++seed) seeds.push_back(seed);
  for (const std::uint64_t seed : seeds) {
    const adversarial::Case c = adversarial::random_case(seed);
    const adversarial::Problem<T> problem(c);
    if (seed % 4 == 0)
      check_bound(c, trf<T>(c.d, c.m, seed), problem);
    else
      check_bound(c, problem.features, problem);
  }
}

TEMPLATE_TEST_CASE("gradients of queries and keys of large norms are within their bound", "[attention]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 400, d = 16, d_v = 4;
  const PositiveFeatures<T> features = prf<T>(d, 16, 1);
  const Tokens<T> x = random_tokens<T>(n, n, d, d_v);
  const Matrix<T> dy = normal<T>(n, d_v, 6);
  const Vector<T> table = random_table<T>(n, 9) / T(2);
  for (const double norm : {6.0, 8.0, 12.0}) {
    const CheckedGradients<PositiveFeatures, T> checked(features, table, x, dy,
                                                        {Direction::causal, Normalization::unit(norm)});
    for (const Engine engine : fft_engines()) {
      const Gradients<T> g = checked.by(engine);
      const GradientErrors e = checked.errors(g);
      INFO(name(engine) << ", norm " << norm << ": dq " << e.queries << ", dk " << e.keys << ", dv " << e.values
                        << ", db " << e.bias << ", bound " << g.report.error_bound);
      CHECK(e.most() <= g.report.error_bound);
      CHECK(g.report.error_bound <= (sizeof(T) == 4 ? 3e-3 : 3e-10));
      CHECK(g.report.engine == engine);
    }
  }
}

TEMPLATE_TEST_CASE("gradients of keys of small norms are within their bound: sines are small beside cosines",
                   "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 200, d_v = 16;
  const Vector<T> table = random_table<T>(n, 9) / T(4);
  const Matrix<T> dy = normal<T>(n, d_v, 6);
  // numbers of columns that do not fill a register; sines and cosines share an FFT, or are in different registers
  for (const auto& [d, m] : {std::pair<Index, Index>{16, 32}, {64, 4}, {64, 8}, {64, 16}})
    for (const double size : {1.0, 1e-2, 1e-4, 1e-9, 1e-20}) {
      const TrigonometricFeatures<T> features = trf<T>(d, m, 1);
      Tokens<T> x = random_tokens<T>(n, n, d, d_v);
      x.q /= T(2), x.k *= static_cast<T>(size);
      const CheckedGradients<TrigonometricFeatures, T> checked(features, table, x, dy,
                                                               {Direction::bidirectional, Normalization::none()});
      for (const Engine engine : fft_engines()) {
        const Gradients<T> g = checked.by(engine);
        const GradientErrors e = checked.errors(g);
        INFO(name(engine) << ", d " << d << ", m " << m << ", keys of " << size << ": dq " << e.queries << ", dk "
                          << e.keys << ", dv " << e.values << ", db " << e.bias << ", bound " << g.report.error_bound);
        CHECK(e.most() <= g.report.error_bound);
        // only features of tokens of large norms cancel
        if (size < 1) CHECK(e.most() <= default_tolerance<T>);
      }
    }
}

TEST_CASE("gradients of values and dy of any magnitude are finite and within their bound", "[attention]") {
  const Index n = 200, d = 4, d_v = 2;
  const PositiveFeatures<float> features = orf<float>(d, 8, 1);
  Vector<float> alibi(2 * n + 1);
  for (Index lag = -n; lag <= n; ++lag) alibi[n + lag] = -0.2f * static_cast<float>(std::abs(lag));
  struct Sizes {
    float values, dy;
  };
  for (const auto& [values, of_dy] :
       {Sizes{1, 1}, Sizes{1e18f, 1}, Sizes{1e18f, 1e18f}, Sizes{1e30f, 1}, Sizes{1e30f, 1e-30f}, Sizes{1e20f, 1e-30f},
        Sizes{1, 1e30f}, Sizes{1e-18f, 1e30f}, Sizes{1, 1e-30f}}) {
    Tokens<float> x = random_tokens<float>(n, n, d, d_v);
    x.v *= values;
    const Matrix<float> dy = of_dy * normal<float>(n, d_v, 6);
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      const CheckedGradients<PositiveFeatures, float> checked(features, alibi, x, dy,
                                                              {direction, Normalization::unit(2)});
      for (const Engine engine : engines()) {
        const Gradients<float> g = checked.by(engine);
        const GradientErrors e = checked.errors(g);
        INFO(name(engine) << ", values of " << values << ", dy of " << of_dy << ": dq " << e.queries << ", dk "
                          << e.keys << ", dv " << e.values << ", db " << e.bias << ", bound " << g.report.error_bound);
        CHECK(e.most() <= g.report.error_bound);
        CHECK(g.report.error_bound <= 3e-4);
      }
    }
  }
}

TEMPLATE_TEST_CASE("a gradient report: of benign inputs only a few lags of few pairs are recomputed", "[attention]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 300, d = 4, d_v = 3;
  const PositiveFeatures<T> features = orf<T>(d, 6, 7);
  const Tokens<T> x = random_tokens<T>(n, n, d, d_v);
  const Matrix<T> dy = normal<T>(n, d_v, 6);
  const Vector<T> table = random_table<T>(n, 3) / T(2);
  for (const Engine engine : engines()) {
    const Direction direction = engine == Engine::block_causal ? Direction::causal : Direction::bidirectional;
    const CheckedGradients<PositiveFeatures, T> checked(features, table, x, dy, {direction});
    const Gradients<T> g = checked.by(engine);
    INFO(name(engine) << ": " << g.report.recomputed_queries << ", " << g.report.recomputed_keys << ", "
                      << g.report.recomputed_lags);
    CHECK(g.report.engine == engine);
    CHECK((g.report.recomputed_queries == 0 && g.report.recomputed_keys == 0));
    CHECK(g.report.recomputed_lags <= (sizeof(T) == 4 && is_fft(engine) ? 12 : 0));
    CHECK(g.report.error_bound <= 3 * default_tolerance<T>);
    CHECK(g.report.workspace_bytes > 0);
    CHECK(checked.errors(g).most() <= g.report.error_bound);
  }
}

TEMPLATE_TEST_CASE(
    "a gradient report: gradients that fail their error bound are recomputed, unless the tolerance is infinite",
    "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 300, d = 4, d_v = 3, few = 10;
  const PositiveFeatures<T> features = orf<T>(d, 6, 7);
  const Tokens<T> x = random_tokens<T>(n, n, d, d_v);
  const Matrix<T> dy = normal<T>(n, d_v, 6);
  // the last keys have tiny weights beside others
  Vector<T> table = Vector<T>::Zero(2 * n + 1);
  table.segment(n - few + 1, few).setConstant(sizeof(T) == 4 ? T(-7) : T(-18));
  const CheckedGradients<PositiveFeatures, T> checked(features, table, x, dy, {Direction::causal});
  for (const Engine engine : fft_engines()) {
    const Gradients<T> g = checked.by(engine);
    INFO(name(engine) << ": " << g.report.recomputed_queries << ", " << g.report.recomputed_keys << ", "
                      << g.report.recomputed_lags);
    CHECK(checked.errors(g).most() <= g.report.error_bound);
    CHECK(g.report.error_bound <= 3 * default_tolerance<T>);
    // these are in one block, for which block_causal uses no FFT
    if (engine == Engine::block_causal) continue;
    CHECK((g.report.recomputed_keys >= few / 2 && g.report.recomputed_keys <= 4 * few));
    const Gradients<T> left = checked.by(engine, nullptr, std::numeric_limits<double>::infinity());
    CHECK(recomputed(left.report) == 0);
    CHECK(left.report.error_bound > g.report.error_bound);
    CHECK(checked.errors(left).most() > checked.errors(g).most());
  }
}

}  // namespace nprf::test::attention_gradient_errors
