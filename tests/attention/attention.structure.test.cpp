// SPDX-License-Identifier: MIT

// Engine::automatic replaces the ends of a table that are nearly linear by lines; the error bound contains the
// deviation.

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/t5.hpp"
#include "nprf/reference/kernelized_attention.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_structure {

namespace {

constexpr Index n = 2500, d = 4, m = 8, d_v = 3;

struct Table {
  std::string name;
  Engine engine;
  std::function<double(Index lag)> of;
};

std::vector<Table> tables(double noise) {
  const Vector<double> draw = normal_vector<double>(2 * n, 5), buckets = normal_vector<double>(32, 6);
  const auto with_noise = [=](auto&& b) {
    return [=](Index lag) { return static_cast<double>(b(lag)) + noise * std::tanh(draw[lag + n]); };
  };
  return {{"T5", Engine::banded,
           with_noise([=](Index lag) { return buckets[t5_bucket(lag, 16, Direction::bidirectional, 24)]; })},
          {"ALiBi", Engine::recurrence,
           with_noise([](Index lag) { return -0.03125 * static_cast<double>(std::abs(lag)); })},
          {"falling slowly from a rough middle", Engine::recurrence, with_noise([=](Index lag) {
             return std::abs(lag) < 9 ? draw[lag + n] : -0.001953125 * static_cast<double>(std::abs(lag));
           })}};
}

template <Real T>
RelativePosition<T> dense(const Table& table) {
  Vector<T> b(2 * n - 1);
  for (Index lag = -(n - 1); lag < n; ++lag) b[n - 1 + lag] = static_cast<T>(table.of(lag));
  return RelativePosition<T>(b);
}

template <Real T>
double worst_error(const Matrix<T>& y, const Matrix<T>& expected, const Matrix<T>& v) {
  return static_cast<double>((y - expected).cwiseAbs().maxCoeff() / v.cwiseAbs().maxCoeff());
}

}  // namespace

TEMPLATE_TEST_CASE("a table with nearly linear ends is computed by the linear engine", "[attention][long]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Tokens<T> x = random_tokens<T>(n, n, d, d_v);
  // of the tolerance
  for (const double part : NPRF_TEST_SANITIZED ? std::vector<double>{0.05} : std::vector<double>{0, 0.05})
    for (const Table& table : tables(part * default_tolerance<T>))
      for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
        INFO(table.name << (direction == Direction::causal ? ", causal" : "") << ", noise " << part);
        const Attention attention(orf<T>(d, m, 7), dense<T>(table), {.direction = direction});
        Report report;
        const Matrix<T> y = attention(x.q, x.k, x.v, {.report = &report});
        CHECK(report.engine == table.engine);
        const double error = worst_error<T>(y, reference::kernelized_attention(attention, x.q, x.k, x.v), x.v);
        // the reference computes features and sums in T too
        CHECK(error <= report.error_bound);
        CHECK(report.error_bound <= default_tolerance<T>);
        if (part > 0) CHECK(report.error_bound >= part / 2 * default_tolerance<T>);
        if (part == 0) CHECK(report.error_bound < default_tolerance<T> / 4);
      }
}

TEST_CASE("a table whose ends are not linear enough is not changed", "[attention]") {
  const Tokens<double> x = random_tokens<double>(n, n, d, d_v);
  for (const Table& table : tables(1e-6)) {
    INFO(table.name);
    const Attention attention(orf<double>(d, m, 7), dense<double>(table));
    Report report;
    attention(x.q, x.k, x.v, {.report = &report});
    CHECK(report.engine != table.engine);
    attention(x.q, x.k, x.v, {.tolerance = 1e-4, .report = &report});
    CHECK(report.engine == table.engine);
  }
}

TEMPLATE_TEST_CASE("the slope of a line is precise even if biases far from zero are rounded coarsely", "[attention]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Tokens<T> x = random_tokens<T>(n, n, d, d_v);
  for (const T slope : {T(-0.3), T(0.3), T(-2 + 0x1p-30)})
    for (const Index offset : {-(Index{1} << 40), Index{1} << 40}) {
      INFO("slope " << slope << ", offset " << offset);
      const auto run = [&](Engine engine, Report& report) {
        const Attention attention(orf<T>(d, m, 7), AlibiPosition<T>(slope), {.engine = engine});
        return attention(x.q, x.k, x.v, {.offset = offset, .report = &report});
      };
      Report by_line, by_tiles;
      const Matrix<T> y = run(Engine::automatic, by_line), expected = run(Engine::direct, by_tiles);
      if (std::abs(slope) < 1) CHECK(by_line.engine == Engine::recurrence);
      CHECK(worst_error<T>(y, expected, x.v) <= by_line.error_bound + by_tiles.error_bound);
    }
}

TEST_CASE("only Engine::automatic, without gradients and with positive features, changes biases", "[attention]") {
  const Tokens<double> x = random_tokens<double>(n, n, d, d_v);
  const Table table = tables(5e-12)[1];
  Report report;
  const CallOptions call{.report = &report};
  const Attention attention(orf<double>(d, m, 7), dense<double>(table));
  attention(x.q, x.k, x.v, call);
  REQUIRE(report.engine == Engine::recurrence);
  Saved<double> saved;
  attention.forward(x.q, x.k, x.v, saved, call);
  CHECK(report.engine != Engine::recurrence);
  Attention(trf<double>(d, m, 7), dense<double>(table))(x.q, x.k, x.v, call);
  CHECK(report.engine != Engine::recurrence);
  const Attention exact(orf<double>(d, m, 7), dense<double>(table), {.engine = Engine::banded});
  exact(x.q, x.k, x.v, call);
  CHECK(report.error_bound < 5e-12);
}

}  // namespace nprf::test::attention_structure
