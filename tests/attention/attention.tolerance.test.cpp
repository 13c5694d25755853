// SPDX-License-Identifier: MIT

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/position.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/t5.hpp"
#include "nprf/reference/kernelized_attention.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/gradient_errors.hpp"
#include "support/throws.hpp"

/// Rows that fail the engine's error bound are recomputed.
namespace nprf::test::attention_tolerance_option {

namespace {

constexpr Index d = 4, m = 6, d_v = 3;
constexpr double never = -std::numeric_limits<double>::infinity();

template <Real T>
using Held = Attention<PositiveFeatures<T>, HeldPosition<T>>;

struct Bias {
  std::string name;
  std::function<double(Index)> of;  // by lag
};

// biases with which an FFT without error bounds gives wrong rows
std::vector<Bias> difficult_biases() {
  std::vector<Bias> all;
  for (const double step : {-0.1, 0.01, 0.03, 0.5})
    all.push_back({"rising by " + std::to_string(step), [step](Index l) { return step * static_cast<double>(l); }});
  for (const Index at : {-120, -1, 3, 140, 5000})
    for (const double height : {12.0, 30.0, 200.0})
      all.push_back(
          {"e^" + std::to_string(height) + " at " + std::to_string(at), [=](Index l) { return l == at ? height : 0; }});
  all.push_back({"a cosine", [](Index l) { return 8 * std::cos(0.3 * static_cast<double>(l)); }});
  all.push_back({"a window beside a peak", [](Index l) {
                   return l == -100 ? 40.0 : std::abs(l) < 5 ? static_cast<double>(l % 3) : never;
                 }});
  return all;
}

template <Real T>
HeldPosition<T> position(const Bias& bias, Index n) {
  LagBias<T> b;
  b.first = -n;
  b.table.resize(2 * n + 1);
  for (Index l = -n; l <= n; ++l) b.table[n + l] = static_cast<T>(bias.of(l));
  return {b};
}

// the largest error of a row, relative to the largest |v| that it attends to
template <Real T>
double row_error(const Held<T>& attention, const Tokens<T>& x, const Matrix<T>& y) {
  const Matrix<T> expected = reference::kernelized_attention(attention, x.q, x.k, x.v);
  double worst = 0;
  for (Index i = 0; i < y.rows(); ++i) {
    double largest = 0;
    for (Index j = 0; j < x.k.rows(); ++j)
      if ((attention.options().direction == Direction::bidirectional || j <= i) &&
          attention.position().bias()[j - i] > static_cast<T>(never))
        largest = std::max(largest, static_cast<double>(x.v.row(j).cwiseAbs().maxCoeff()));
    const double error = (y.row(i) - expected.row(i)).template cast<double>().cwiseAbs().maxCoeff();
    if (error > 0 || std::isnan(error)) worst = std::max(worst, std::isnan(error) ? 1 / 0.0 : error / largest);
  }
  return worst;
}

}  // namespace

TEMPLATE_TEST_CASE("errors of lanes are within the tolerance for any bias", "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Index repaired = 0;
  for (const Bias& bias : difficult_biases())
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      for (const double norm : {1.0, 6.0})
        for (const Index n : {97, 211}) {
          INFO(bias.name << (direction == Direction::causal ? ", causal" : "") << ", norm " << norm << ", n " << n);
          Tokens<T> x = random_tokens<T>(n, n, d, d_v);
          x.v.row(n / 2) *= T(1e6);
          const Held<T> attention(orf<T>(d, m, 7), position<T>(bias, 200),
                                  {direction, Normalization::unit(norm), Engine::lanes});
          Report report;
          const Matrix<T> y = attention(x.q, x.k, x.v, {.report = &report});
          CHECK(row_error(attention, x, y) <= default_tolerance<T>);
          CHECK((report.engine == Engine::lanes && report.empty_rows == 0 && report.indefinite_rows == 0));
          repaired += report.repaired_rows;
        }
  CHECK(repaired > 1000);
}

TEMPLATE_TEST_CASE("benign rows are not recomputed", "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 300;
  const Tokens<T> x = random_tokens<T>(n, n, d, d_v);
  const Attention attention(orf<T>(d, m, 7), RelativePosition<T>(random_table<T>(n, 3)), {.engine = Engine::lanes});
  Report report;
  const Matrix<T> y = attention(x.q, x.k, x.v, {.report = &report});
  CHECK(report.repaired_rows == 0);
  // with a larger tolerance too
  CHECK(same_bits<T>(attention(x.q, x.k, x.v, {.tolerance = 1}), y));
}

TEMPLATE_TEST_CASE("all rows are recomputed if the tolerance is below their error bounds", "[attention]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n_q = 70, n_k = 90, offset = 15;
  const Tokens<T> x = random_tokens<T>(n_q, n_k, d, d_v);
  const Mask mask = (normal_vector<double>(n_k, 90).array() > -1).eval();
  const RelativePosition<T> table(random_table<T>(n_k, 3));
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    const auto by = [&](Engine engine) {
      return Attention(orf<T>(d, m, 7), table, {.direction = direction, .engine = engine});
    };
    Report report;
    const CallOptions call{.key_mask = view(mask), .offset = offset, .tolerance = 1e-100, .report = &report};
    const Matrix<T> y = by(Engine::lanes)(x.q, x.k, x.v, call);
    CHECK(report.repaired_rows == n_q);
    const Matrix<T> expected = by(Engine::direct)(x.q, x.k, x.v, call);
    CHECK(report.repaired_rows == 0);
    CHECK(worst_ratio(y, expected,
                      attention_tolerance(by(Engine::direct), Engine::direct, x, expected, offset, mask)) <= 1);
  }
}

TEMPLATE_TEST_CASE("if most rows fail their error bound, all rows fall back to the direct engine", "[attention]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 211;
  const Tokens<T> x = random_tokens<T>(n, n, d, d_v);
  const HeldPosition<T> rising = position<T>({"", [](Index l) { return 0.25 * static_cast<double>(l); }}, n);
  const auto by = [&](Engine engine) { return Held<T>(orf<T>(d, m, 7), rising, {.engine = engine}); };
  Report report;
  const Matrix<T> y = by(Engine::lanes)(x.q, x.k, x.v, {.report = &report});
  CHECK((report.repaired_rows == n && report.engine == Engine::lanes));
  CHECK(same_bits<T>(y, by(Engine::direct)(x.q, x.k, x.v)));
  CHECK(report.error_bound <= default_tolerance<T> / 10);
  // not if data are saved for backward: then each row is recomputed with its own scale
  Saved<T> saved;
  const auto lanes = by(Engine::lanes);
  const Matrix<T> z = lanes.forward(x.q, x.k, x.v, saved, {.report = &report});
  CHECK((report.repaired_rows > n / 2 && report.repaired_rows < n));
  CHECK(row_error(lanes, x, z) <= default_tolerance<T>);
}

namespace {

// the error bound of a call for n_q queries and n_k keys, after a check that the error is below it
template <class Position>
double bound_for(const Position& position, AttentionOptions options, Index n_q, Index n_k) {
  INFO(name(options.engine) << ", n_q " << n_q << ", n_k " << n_k);
  Tokens<float> x = random_tokens<float>(n_q, n_k, d, 1);
  x.v.setConstant(0.7f);  // equal terms have correlated rounding errors; y is 0.7
  Report report;
  const Matrix<float> y = Attention(orf<float>(d, m, 7), position, options)(x.q, x.k, x.v, {.report = &report});
  CHECK(worst_ratio(y, Matrix<float>::Constant(n_q, 1, 0.7f), 0.7 * report.error_bound) <= 1);
  CHECK(report.repaired_rows == 0);
  return report.error_bound;
}

}  // namespace

TEST_CASE("FFT: neither errors nor bounds grow with the number of keys", "[attention]") {
  for (const Engine engine : engines()) {
    if (!is_fft(engine)) continue;
    const auto bound = [&](Index n) {
      return bound_for(RelativePosition<float>(random_table<float>(n, 3)),
                       {.direction = engine == Engine::block_causal ? Direction::causal : Direction::bidirectional,
                        .engine = engine},
                       n, n);
    };
    CHECK(bound(20000) <= 2 * bound(600));
  }
}

TEST_CASE("linear engines: neither errors nor bounds grow with the number of keys", "[attention][long]") {
  const auto check = [](auto&& make_position, Engine engine) {
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      const auto position = make_position(direction);
      const AttentionOptions options{.direction = direction, .engine = engine};
      const double bound = bound_for(position, options, 2000, 2000);
      CHECK(bound_for(position, options, 200000, 200000) <= 1.5 * bound);
      if (direction == Direction::bidirectional) CHECK(bound_for(position, options, 40, 200000) <= 1.5 * bound);
    }
  };
  check([](Direction direction) { return t5_position(normal_vector<float>(32, 3), direction); }, Engine::banded);
  check([](Direction) { return AlibiPosition<float>(1e-5f); }, Engine::recurrence);
  check([](Direction) { return AlibiPosition<float>(0.1f); }, Engine::recurrence);
  check([](Direction) { return NoPosition<float>(); }, Engine::banded);
}

TEST_CASE("tiles: neither errors nor bounds grow with the number of keys", "[attention][long]") {
  const auto check = [](const auto& position, Engine engine) {
    const AttentionOptions options{.engine = engine};
    CHECK(bound_for(position, options, 3, 1000000) <= 1.01 * bound_for(position, options, 3, 10000));
    CHECK(bound_for(position, options, 3, 1000000) <= default_tolerance<float>);
  };
  check(NoPosition<float>(), Engine::direct);
  check(RelativePosition<float>(normal_vector<float>(201, 3)), Engine::direct);
  check(RelativePosition<float>(normal_vector<float>(200001, 3)), Engine::banded);  // most of the table is a band
}

TEST_CASE("recomputed rows over many keys are within the tolerance", "[attention]") {
  // one weight is far above all others, so that rows without it fail the error bound of an FFT
  const Index n_q = 2, n_k = 200000;
  Tokens<float> x = random_tokens<float>(n_q, n_k, d, 1);
  x.v.setConstant(0.7f);
  Vector<float> b = Vector<float>::Zero(2 * n_k + 1);
  b[n_k - 1] = 80;
  Report report;
  const Matrix<float> y = Attention(orf<float>(d, m, 7), RelativePosition<float>(b), {.engine = Engine::lanes})(
      x.q, x.k, x.v, {.report = &report});
  CHECK(report.repaired_rows > 0);
  CHECK(report.error_bound <= default_tolerance<float>);
  CHECK(worst_ratio(y, Matrix<float>::Constant(n_q, 1, 0.7f), 0.7 * report.error_bound) <= 1);
}

TEST_CASE("gradients of recomputed rows are central differences", "[attention]") {
  const Index n = 24;
  Vector<double> b = normal_vector<double>(2 * n - 1, 5);
  b[n - 1 - 20] = 25;  // only four rows have it; the others fail the error bound
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const double tolerance : {1e-10, 1e-100}) {
      const Tokens<double> x = random_tokens<double>(n, n, d, d_v);
      const auto attention = [&](const Matrix<double>& table) {
        return Attention(orf<double>(d, m, 7), RelativePosition<double>(table.col(0)),
                         {.direction = direction, .engine = Engine::lanes});
      };
      const Report report =
          check_differences(attention, b, x, normal<double>(n, d_v, 6), {.tolerance = tolerance}).report;
      CHECK(report.repaired_rows == (tolerance < 1e-50 ? n : 20));
    }
}

// Recomputed rows are left out of the FFTs of backward, and all gradients are checked by bounds of their own: precise
// rows do not imply precise gradients of a key that few rows attend to, or of a lag of few pairs.
TEMPLATE_TEST_CASE("gradients are within the reported bound, with and without recomputed rows", "[attention]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 150;
  const PositiveFeatures<T> features = orf<T>(d, m, 7);
  const Tokens<T> x = random_tokens<T>(n, n, d, d_v);
  Matrix<T> dy = normal<T>(n, d_v, 6);
  dy.row(n / 3) *= T(1e3);
  Index repaired = 0, left = 0, recomputed = 0;
  for (const Bias& bias : difficult_biases())
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      const Vector<T> table = position<T>(bias, n).bias().table;
      const CheckedGradients<PositiveFeatures, T> checked(features, table, x, dy, {direction});
      for (const Engine engine : engines()) {
        if (!is_fft(engine)) continue;
        Report report;
        const Gradients<T> g = checked.by(engine, &report);
        const GradientErrors e = checked.errors(g);
        INFO(bias.name << (direction == Direction::causal ? ", causal, " : ", ") << name(engine) << ": dq " << e.queries
                       << ", dk " << e.keys << ", dv " << e.values << ", db " << e.bias << ", bound "
                       << g.report.error_bound);
        CHECK(e.most() <= g.report.error_bound);
        CHECK(g.report.error_bound <= 3 * default_tolerance<T>);  // it contains the bound of the rows
        repaired += report.repaired_rows, left += n - report.repaired_rows;
        recomputed += g.report.recomputed_queries + g.report.recomputed_keys + g.report.recomputed_lags;
      }
    }
  CHECK((repaired > 1000 && left > 1000 && recomputed > 1000));
}

TEST_CASE("rows of a grid with extra tokens are recomputed", "[attention]") {
  const Index height = 5, width = 6, E = 2, n = E + height * width;
  Matrix<double> b = normal<double>(2 * height - 1, 2 * width - 1, 5);
  b(2 * height - 2, 2 * width - 2) = 40;  // the bias of one pair of corners
  const GridPosition<double> grid(height, width, b, normal<double>(E, E + 2, 8));
  const Tokens<double> x = random_tokens<double>(n, n, d, d_v);
  const auto by = [&](Engine engine) { return Attention(orf<double>(d, m, 7), grid, {.engine = engine}); };
  const Matrix<double> dy = normal<double>(n, d_v, 6);
  const Passes<double> got = both_passes(by(Engine::grid), x, dy), expected = both_passes(by(Engine::direct), x, dy);
  CHECK((got.report.repaired_rows > 10 && got.report.repaired_rows < n - E));
  CHECK(worst_ratio(got.y, expected.y, 1e-10 * x.v.cwiseAbs().maxCoeff()) <= 1);
  CHECK(gradients_difference(got.g, expected.g) <= 1e-9);
}

TEST_CASE("features of both signs: errors are within the bound", "[attention]") {
  const Index n = 211;
  for (const Bias& bias : difficult_biases())
    for (const std::uint64_t seed : {1u, 2u, 3u}) {
      INFO(bias.name << ", seed " << seed);
      const Tokens<double> x = random_tokens<double>(n, n, d, d_v, seed);
      // few features, so that some denominators are near zero, and some rows exceed all values
      const Attention attention(trf<double>(d, 2, seed), position<double>(bias, 200), {.engine = Engine::lanes});
      Report report;
      const Matrix<double> y = attention(x.q, x.k, x.v, {.report = &report});
      const Matrix<double> expected = reference::kernelized_attention(attention, x.q, x.k, x.v);
      // the cancellation of features affects recomputed rows too
      const Matrix<double> own = attention_tolerance(attention, Engine::direct, x, expected);
      const Matrix<double> shared = Matrix<double>::Constant(n, d_v, 1e-10 * x.v.cwiseAbs().maxCoeff());
      CHECK(worst_ratio(y, expected, own + shared) <= 1);
    }
}

TEST_CASE("values without columns are accepted", "[attention]") {
  const Tokens<double> x = random_tokens<double>(40, 40, d, 0);
  const Attention attention(orf<double>(d, m, 7), RelativePosition<double>(random_table<double>(40, 3)),
                            {.engine = Engine::lanes});
  CHECK(attention(x.q, x.k, x.v).cols() == 0);
}

TEST_CASE("a negative tolerance is rejected", "[attention]") {
  const Attention attention{EluFeatures<double>(d), NoPosition<double>()};
  const Tokens<double> x = random_tokens<double>(3, 3, d, 1);
  for (const double tolerance : {-1e-3, std::numeric_limits<double>::quiet_NaN()})
    check_invalid([&] { attention(x.q, x.k, x.v, {.tolerance = tolerance}); }, {"tolerance: expected 0 or more"});
}

}  // namespace nprf::test::attention_tolerance_option
