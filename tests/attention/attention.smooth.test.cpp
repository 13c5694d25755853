// SPDX-License-Identifier: MIT

// Biases that are smooth functions of the lag far from lag 0 are changed a little, so that attention takes O(n); the
// error bound contains the deviation.

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/alibi_sum.hpp"
#include "nprf/position/kerple.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/spline.hpp"
#include "nprf/reference/kernelized_attention.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_smooth {

namespace {

constexpr Index n = 2600, d = 4, m = 8, d_v = 16;
constexpr double tolerance = 1e-4;  // in double, too

template <Real T>
RelativePosition<T> dense(const std::function<double(Index lag)>& bias, bool is_smooth = false) {
  Vector<T> b(2 * n - 1);
  for (Index lag = -(n - 1); lag < n; ++lag) b[n - 1 + lag] = static_cast<T>(bias(lag));
  return RelativePosition<T>(b, is_smooth);
}

double logarithm(Index lag) { return -std::log1p(static_cast<double>(std::abs(lag))); }

template <Real T>
double worst_error(const Matrix<T>& y, const Matrix<T>& expected, const Matrix<T>& v) {
  return static_cast<double>((y - expected).cwiseAbs().maxCoeff() / v.cwiseAbs().maxCoeff());
}

template <class F, class P>
void check(const Attention<F, P>& attention, const Tokens<typename F::Scalar>& x, CallOptions call,
           double most = tolerance) {
  using T = typename F::Scalar;
  Report report;
  call.report = &report, call.tolerance = tolerance;
  const Matrix<T> y = attention(x.q, x.k, x.v, call);
  CHECK(report.engine == Engine::smooth);
  CallOptions exact = call;
  exact.report = nullptr;
  AttentionOptions options = attention.options();
  options.engine = Engine::direct;
  const Matrix<T> expected = Attention(attention.features(), attention.position(), options)(x.q, x.k, x.v, exact);
  CHECK(worst_error<T>(y, expected, x.v) <= report.error_bound + 1000 * epsilon<T>);
  CHECK(report.error_bound <= most);
}

}  // namespace

TEMPLATE_TEST_CASE("a smooth bias is computed by the engine `smooth`, within its error bound", "[attention][long]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Tokens<T> x = random_tokens<T>(n, n, d, d_v);
  const auto features = orf<T>(d, m, 7);
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    const AttentionOptions options{.direction = direction};
    check(Attention(features, dense<T>(logarithm), options), x, {});
    check(Attention(features, KerpleLogPosition<T>(KerpleLog(1, 0.1), n), options), x, {});
    check(Attention(features, KerplePowerPosition<T>(KerplePower(0.3, 0.4), n), options), x, {});
    check(Attention(features, SplinePosition<T>(Spline({0.5, 0, -0.5, -1, -3, -3.5}, log_spaced_knots(6, n)), n),
                    options),
          x, {});
  }
  // a rough middle, a gap and a hole are tiles
  const Vector<double> draw = normal_vector<double>(2 * n, 5);
  check(Attention(features, dense<T>([&](Index lag) {
                    if (lag == -700) return -std::numeric_limits<double>::infinity();
                    return std::abs(lag) < 40 ? draw[lag + n] : logarithm(lag);
                  })),
        x, {});
}

TEMPLATE_TEST_CASE("masks, lengths, packed sequences, offsets, near fields and sinks apply to smooth biases",
                   "[attention][long]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const auto features = orf<T>(d, m, 7);
  const KerpleLogPosition<T> position(KerpleLog(1, 0.1), n);
  const Tokens<T> x = random_tokens<T>(n, n, d, d_v), cross = random_tokens<T>(1500, n, d, d_v);
  Mask mask(n);
  for (Index j = 0; j < n; ++j) mask[j] = j % 5 != 2 && !(j > 600 && j < 900);
  const std::vector<Index> lengths{n - 300}, packed{0, 1300, n};
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    const Attention attention(features, position, {.direction = direction});
    check(attention, x, {.key_mask = view(mask)});
    check(attention, x, {.lengths = lengths});
    check(attention, x, {.cumulative_lengths = packed});
    check(attention, cross, {.offset = n - 1500});
    check(Attention(features, position, {.direction = direction, .near = 5}), x, {});
    check(Attention(features, position, {.direction = direction, .sinks = 2}), x, {});
  }
}

TEST_CASE("only positions that say so, and tolerances that allow it, are changed in training", "[attention]") {
  const Tokens<float> x = random_tokens<float>(n, n, d, d_v);
  const auto features = orf<float>(d, m, 7);
  const auto engine = [&](const auto& attention, const CallOptions& options, bool saves) {
    Report report;
    CallOptions call = options;
    call.report = &report;
    Saved<float> saved;
    if (!saves) return attention(x.q, x.k, x.v, call), report.engine;
    attention.forward(x.q, x.k, x.v, saved, call);
    const Engine of_backward = attention.backward(saved, x.v).report.engine;
    return report.engine == of_backward ? of_backward : Engine::automatic;
  };
  const Attention free(features, dense<float>(logarithm)), smooth(features, dense<float>(logarithm, true));
  const Attention curve(features, KerpleLogPosition<float>(KerpleLog(1, 1), n));
  CHECK(engine(free, {}, false) == Engine::smooth);
  CHECK(engine(free, {}, true) != Engine::smooth);
  for (const bool saves : {false, true}) {
    CHECK(engine(smooth, {}, saves) == Engine::smooth);
    CHECK(engine(curve, {}, saves) == Engine::smooth);
    CHECK(engine(curve, {.tolerance = 1e-7}, saves) != Engine::smooth);
    // features of both signs: only if it is asked for
    CHECK(engine(Attention(trf<float>(d, m, 7), curve.position()), {}, saves) != Engine::smooth);
    CHECK(engine(Attention(trf<float>(d, m, 7), curve.position(), {.engine = Engine::smooth}), {}, saves) ==
          Engine::smooth);
    CHECK(engine(Attention(features, dense<float>(logarithm), {.engine = Engine::smooth}), {}, saves) ==
          Engine::smooth);
  }
  // noise leaves nothing to gain
  const Vector<double> draw = normal_vector<double>(2 * n, 5);
  const Attention noisy(features, dense<float>([&](Index lag) { return logarithm(lag) + 0.01 * draw[lag + n]; }));
  CHECK(engine(noisy, {}, false) != Engine::smooth);
}

TEST_CASE("an infinite tolerance does not make biases wrong", "[attention]") {
  const Tokens<double> x = random_tokens<double>(n, n, d, d_v);
  Report report;
  const Attention attention(orf<double>(d, m, 7), dense<double>(logarithm));
  attention(x.q, x.k, x.v, {.tolerance = std::numeric_limits<double>::infinity(), .report = &report});
  CHECK(report.error_bound < 0.0026);
}

TEMPLATE_TEST_CASE(
    "gradients through smooth biases, and of their parameters, are those of all pairs up to the deviation",
    "[attention][long]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Tokens<T> x = random_tokens<T>(n, n, d, d_v);
  const Matrix<T> dy = normal<T>(n, d_v, 17);
  const auto features = orf<T>(d, m, 7);
  const auto compare = [&](const auto& position, Direction direction) {
    const auto passes = [&](Engine engine) {
      return both_passes(Attention(features, position, {.direction = direction, .engine = engine}), x, dy,
                         {.tolerance = tolerance});
    };
    const Passes<T> got = passes(Engine::automatic), expected = passes(Engine::direct);
    REQUIRE(got.g.report.engine == Engine::smooth);
    CHECK(got.g.report.error_bound >= got.report.error_bound);
    const auto error = [](const Matrix<T>& a, const Matrix<T>& b) {
      return static_cast<double>((a - b).cwiseAbs().maxCoeff() / b.cwiseAbs().maxCoeff());
    };
    CHECK(error(got.g.queries, expected.g.queries) <= tolerance);
    CHECK(error(got.g.keys, expected.g.keys) <= tolerance);
    CHECK(error(got.g.values, expected.g.values) <= tolerance);
    CHECK(error(got.g.bias, expected.g.bias) <= tolerance);
  };
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    compare(KerpleLogPosition<T>(KerpleLog(1, 0.1), n), direction);
    // initial values at which the biases are far smoother than their derivatives by the parameters
    compare(KerpleLogPosition<T>(KerpleLog(0, 1), n), direction);
    compare(SplinePosition<T>(Spline(std::vector<double>(8, 0.0), log_spaced_knots(8, n)), n), direction);
    compare(SplinePosition<T>(Spline({0.5, 0, -0.5, -1, -3, -3.5}, log_spaced_knots(6, n)), n), direction);
  }
}

TEST_CASE("the gradient of a smooth table serves the parameters of the caller", "[attention]") {
  const Tokens<float> x = random_tokens<float>(n, n, d, d_v);
  const Matrix<float> dy = normal<float>(n, d_v, 17);
  const auto table_gradient = [&](Engine engine, bool is_flat) {
    const auto position = dense<float>([=](Index lag) { return is_flat ? 0 : logarithm(lag); }, true);
    const Passes<float> passes = both_passes(Attention(orf<float>(d, m, 7), position, {.engine = engine}), x, dy);
    CHECK((engine != Engine::automatic || passes.g.report.engine == Engine::smooth));
    return passes.g.bias;
  };
  const std::function<double(double)> derivatives[] = {
      [](double) { return 1; }, [](double l) { return std::log1p(l); }, [](double l) { return 1 / (1 + l); },
      [](double l) { return std::tanh(std::log1p(l) - 4); }, [](double l) { return std::exp(-l / 300); }};
  for (const bool is_flat : {false, true}) {
    const Matrix<float> got = table_gradient(Engine::automatic, is_flat),
                        expected = table_gradient(Engine::direct, is_flat);
    for (const auto& derivative : derivatives) {
      double error = 0, size = 0;
      for (Index lag = 1 - n; lag < n; ++lag) {
        const double w = derivative(static_cast<double>(std::abs(lag)));
        error += w * (static_cast<double>(got(lag + n - 1, 0)) - static_cast<double>(expected(lag + n - 1, 0)));
        size += std::abs(w * static_cast<double>(expected(lag + n - 1, 0)));
      }
      CHECK(std::abs(error) <= 1e-4 * size);
    }
  }
}

TEST_CASE("the bound of gradients has the deviation of backward's product, if forward used another engine",
          "[attention]") {
  const Tokens<float> x = random_tokens<float>(n, n, d, d_v);
  const AlibiSumPosition<float> position(AlibiSum({0}, {0.005}), n);
  const auto passes = [&](Engine engine) {
    const Attention attention(orf<float>(d, m, 7), position, {.direction = Direction::causal, .engine = engine});
    return both_passes(attention, x, x.v);
  };
  const Passes<float> got = passes(Engine::automatic), direct = passes(Engine::direct);
  REQUIRE((got.report.engine == Engine::recurrence && got.g.report.engine == Engine::smooth));
  CHECK(got.g.report.error_bound > direct.g.report.error_bound + 5e-6);
}

}  // namespace nprf::test::attention_smooth
