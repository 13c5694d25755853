// SPDX-License-Identifier: MIT
#include "nprf/attention/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/t5.hpp"
#include "nprf/reference/kernelized_attention.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::attention {

namespace {

constexpr double never = -std::numeric_limits<double>::infinity();
constexpr Index d = 3, m = 6;

using Features = PositiveFeatures<double>;
using Relative = RelativePosition<double>;
using Held = HeldPosition<double>;

Features features() { return orf<double>(d, m, 7); }
Relative table(Index reach, std::uint64_t seed = 40) { return Relative(random_table<double>(reach, seed)); }

// body for every engine and direction
template <class Body>
void for_each_kind(Body&& body) {
  for (const Engine engine : engines())
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      INFO(std::string(name(engine)) << (direction == Direction::causal ? " causal" : " bidirectional"));
      body(AttentionOptions{.direction = direction, .engine = engine});
    }
}

template <class F, class P>
Matrix<double> run(const Attention<F, P>& attention, const Tokens<double>& x, Index offset = 0) {
  return attention(x.q, x.k, x.v, {.offset = offset});
}

// the largest difference of two results for the same y, relative to their tolerances
template <class F, class P>
double difference(const Attention<F, P>& attention, const Tokens<double>& x, const Matrix<double>& got,
                  const Matrix<double>& expected, Index offset = 0) {
  const Engine engine = attention.options().engine;
  return worst_ratio(got, expected, 2 * attention_tolerance(attention, engine, x, expected, offset));
}

}  // namespace

TEST_CASE("a constant added to the bias changes nothing", "[attention]") {
  for_each_kind([](const AttentionOptions& options) {
    const Index n = 70;
    const Tokens<double> x = random_tokens<double>(n, n, d, 2);
    const Vector<double> b = random_table<double>(n, 41);  // multiples of 2^-10, so that the sums below are exact
    const Matrix<double> y = run(Attention(features(), Relative(b), options), x);
    for (const double constant : {1., -3.5, 1e6, -1e6})
      CHECK(same_bits(run(Attention(features(), Relative((b.array() + constant).matrix()), options), x), y));
  });
}

TEST_CASE("block-causal attention: a key of large norm does not affect the precision of earlier rows", "[attention]") {
  const Index n = 700;
  Tokens<double> x = random_tokens<double>(n, n, d, 2);
  x.k.row(400) *= 40;  // its features are e^100 times the others' and more
  const AttentionOptions options{
      .direction = Direction::causal, .normalization = Normalization::none(), .engine = Engine::block_causal};
  const Attention attention(orf<double>(d, 16, 7), table(n), options);
  Report report;
  const Matrix<double> y = attention(x.q, x.k, x.v, {.report = &report});
  CHECK(report.repaired_rows == 0);
  CHECK(y.allFinite());
  const Tokens<double> before{x.q.topRows(400), x.k.topRows(400), x.v.topRows(400)};
  CHECK(difference(attention, before, y.topRows(400), run(attention, before)) <= 1);
}

TEST_CASE("with rows of unit norm results do not depend on the norms of the inputs, which may be zero", "[attention]") {
  for_each_kind([](const AttentionOptions& options) {
    const Tokens<double> x = random_tokens<double>(50, 60, d, 2);
    const Attention attention(features(), table(60), options);
    Tokens<double> longer = x;
    for (Index i = 0; i < 50; ++i) longer.q.row(i) *= std::ldexp(1., static_cast<int>(i % 7) - 3);
    for (Index j = 0; j < 60; ++j) longer.k.row(j) *= std::ldexp(1., static_cast<int>(j % 5) - 2);
    CHECK(same_bits(run(attention, longer), run(attention, x)));

    Tokens<double> zeros = x;
    zeros.q.row(3).setZero();
    zeros.k.row(0).setZero();
    zeros.k.row(20).setZero();
    const Matrix<double> expected = reference::kernelized_attention(attention, zeros.q, zeros.k, zeros.v);
    CHECK(difference(attention, zeros, run(attention, zeros), expected) <= 1);
  });
}

TEST_CASE("queries at an offset, some or all of them before or after all keys", "[attention]") {
  const Tokens<double> x = random_tokens<double>(20, 30, d, 2);
  for_each_kind([&](const AttentionOptions& options) {
    const Attention attention(features(), table(3), options);
    for (const Index offset : {-1000, -20, -7, 1, 17, 30, 1000, 1000000000}) {
      Report report;
      const Matrix<double> y = attention(x.q, x.k, x.v, {.offset = offset, .report = &report});
      const Index num_empty = options.direction == Direction::causal ? std::clamp<Index>(-offset, 0, 20) : 0;
      INFO("offset " << offset);
      CHECK(report.empty_rows == num_empty);
      CHECK(difference(attention, x, y, reference::kernelized_attention(attention, x.q, x.k, x.v, offset), offset) <=
            1);
      CHECK(y.topRows(num_empty).isZero(0));
    }
  });
}

TEST_CASE("empty inputs give empty or zero rows", "[attention]") {
  for_each_kind([](const AttentionOptions& options) {
    const Attention attention(features(), table(3), options);
    Report report;
    report.repaired_rows = 99;
    const CallOptions call{.report = &report};
    CHECK(attention(Matrix<double>(0, d), normal<double>(5, d, 1), normal<double>(5, 2, 2), call).rows() == 0);
    CHECK(report.empty_rows == 0);
    CHECK(report.repaired_rows == 0);
    const Matrix<double> none = attention(normal<double>(4, d, 1), Matrix<double>(0, d), Matrix<double>(0, 2), call);
    CHECK(same_bits<double>(none, Matrix<double>::Zero(4, 2)));
    CHECK(report.empty_rows == 4);
    CHECK(attention(Matrix<double>(0, d), Matrix<double>(0, d), Matrix<double>(0, 2), call).rows() == 0);
    CHECK(report.empty_rows == 0);
    const Matrix<double> narrow =
        attention(normal<double>(4, d, 1), normal<double>(5, d, 2), Matrix<double>(5, 0), call);
    CHECK(narrow.rows() == 4);
    CHECK(narrow.cols() == 0);
    CHECK(report.empty_rows == 0);
    CHECK(report.engine == options.engine);
  });
}

TEST_CASE("rows that attend to no key are zero and counted", "[attention]") {
  const Index n = 40;
  for_each_kind([&](const AttentionOptions& options) {
    const Tokens<double> x = random_tokens<double>(n, n, d, 2);
    Report report;
    const CallOptions call{.report = &report};

    const Attention num_empty(features(), Relative(Vector<double>::Constant(1, never)), options);
    CHECK(same_bits<double>(num_empty(x.q, x.k, x.v, call), Matrix<double>::Zero(n, 2)));
    CHECK(report.empty_rows == n);
    CHECK(report.indefinite_rows == 0);
    CHECK(report.repaired_rows == 0);

    // only keys 7 to 9 tokens back, so that queries 0..6 attend to none
    Vector<double> b = Vector<double>::Constant(21, never);
    b.segment(1, 3) << 0.5, -1, 2;
    const Attention far(features(), Relative(b), options);
    const Matrix<double> y = far(x.q, x.k, x.v, call);
    CHECK(report.empty_rows == 7);
    CHECK(y.topRows(7).isZero(0));
    CHECK(difference(far, x, y, reference::kernelized_attention(far, x.q, x.k, x.v)) <= 1);

    // also with features of both signs, whose rounding errors have any sign
    const Attention waves(trf<double>(d, m, 7), Relative(b), options);
    CHECK(waves(x.q, x.k, x.v, call).topRows(7).isZero(0));
    CHECK(report.empty_rows == 7);
  });
}

TEST_CASE("rows that underflow are recomputed and finite", "[attention]") {
  const Index n = 2048;
  const Tokens<float> x = random_tokens<float>(n, n, d, 2);
  for (const Engine engine : engines()) {
    const Attention attention(orf<float>(d, m, 7), AlibiPosition<float>(-0.1f),
                              {.direction = Direction::causal, .engine = engine});
    Report report;
    const Matrix<float> y = attention(x.q, x.k, x.v, {.report = &report});
    INFO(std::string(name(engine)));
    CHECK(y.allFinite());
    CHECK(report.repaired_rows > 100);
    CHECK(report.empty_rows == 0);
  }
}

TEST_CASE("recomputed rows with an offset, both directions and an increasing bias equal the reference", "[attention]") {
  // The bias rises by 50 for each token back and by 30 for each token ahead. The weights of a row are e^-50 times those
  // of the next one. From the 8th row from the end on they are below sqrt(min) = e^-354, so that rows are recomputed
  const Index n = 60;
  const LagBias<double> steep{0, Vector<double>::Zero(1), 50, 30};
  const Tokens<double> x = random_tokens<double>(n, n, d, 2);
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const Index offset : {0, 5, -5}) {
      const Attention attention(features(), Held{steep}, {.direction = direction, .engine = Engine::direct});
      Report report;
      const Matrix<double> y = attention(x.q, x.k, x.v, {.offset = offset, .report = &report});
      const Matrix<double> expected = reference::kernelized_attention(attention, x.q, x.k, x.v, offset);
      INFO("offset " << offset << (direction == Direction::causal ? " causal" : ""));
      // values are at most 4; both compute the same features
      CHECK(worst_ratio(y, expected, 4 * direct_growth<double>(m, n)) <= 1);
      CHECK(report.empty_rows == (direction == Direction::causal && offset < 0 ? -offset : 0));
      CHECK(report.repaired_rows == n - 8 - report.empty_rows);
    }
}

TEST_CASE("a report counts rows whose denominator is not positive", "[attention]") {
  const Index n = 60;
  const Tokens<double> x = random_tokens<double>(n, n, d, 2);
  for_each_kind([&](AttentionOptions options) {
    options.normalization = Normalization::unit(4);  // trigonometric features have a large variance here
    const Attention attention(trf<double>(d, 2, 7), table(n), options);
    const Matrix<double> A = attention.query_features(x.q), B = attention.key_features(x.k);
    Index negative = 0;
    for (Index i = 0; i < n; ++i) {
      double D = 0;
      for (Index j = 0; j < (options.direction == Direction::causal ? i + 1 : n); ++j)
        D += A.row(i).dot(B.row(j)) * std::exp(attention.position().bias()[j - i]);
      negative += D <= 0;
    }
    Report report;
    const Matrix<double> y = attention(x.q, x.k, x.v, {.report = &report});
    CHECK(negative > 0);
    CHECK(report.indefinite_rows == negative);
    CHECK(report.repaired_rows == 0);
    const Matrix<double> expected = reference::kernelized_attention(attention, x.q, x.k, x.v);
    CHECK(difference(attention, x, y, expected) <= 1);
  });
}

TEST_CASE("a report of a call", "[attention]") {
  const Index n = 50;
  const Tokens<double> x = random_tokens<double>(n, n, d, 2);
  for_each_kind([&](const AttentionOptions& options) {
    Report report;
    report.engine = Engine::grid;
    report.indefinite_rows = report.repaired_rows = report.empty_rows = 99;
    const Attention attention(features(), table(n), options);
    attention(x.q, x.k, x.v, {.report = &report});
    CHECK(report.engine == options.engine);
    CHECK(report.indefinite_rows == 0);
    CHECK(report.repaired_rows == 0);
    CHECK(report.empty_rows == 0);
    // at least the features of queries and keys and the product
    CHECK(report.workspace_bytes >= sizeof(double) * static_cast<std::size_t>(2 * n * m + n * 3));
  });
  Report report;
  Attention(features(), table(n))(x.q.topRows(5), x.k.topRows(5), x.v.topRows(5), {.report = &report});
  CHECK(report.engine == Engine::direct);
}

TEST_CASE("automatic selects an FFT for many tokens, and block_causal for causal attention", "[attention]") {
  const Index n = 3000;
  const Tokens<double> x = random_tokens<double>(n, n, d, 1);
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    const Attention attention(orf<double>(d, 1, 7), table(n), {.direction = direction});
    Report report;
    const Matrix<double> y = attention(x.q, x.k, x.v, {.report = &report});
    CHECK(report.engine == (direction == Direction::causal ? Engine::block_causal : Engine::lanes));
    // N(0,1) biases over 3000 tokens: no denominator is below a thousandth of the largest
    for (const Index i : {0, 1, 1023, 1500, 2998, 2999}) {
      const Tokens<double> row{x.q.row(i), x.k, x.v};
      INFO("row " << i);
      const Matrix<double> expected = reference::kernelized_attention(attention, row.q, row.k, row.v, i);
      CHECK(worst_ratio(y.row(i), expected, 1e4 * epsilon<double>) <= 1);
    }
  }
}

TEST_CASE("a position for another direction is rejected", "[attention]") {
  const auto t5 = t5_position(normal_vector<double>(8, 1), Direction::causal);
  CHECK_NOTHROW(Attention(features(), t5, {.direction = Direction::causal}));
  check_invalid([&] { Attention(features(), t5); }, {"position: expected one for bidirectional attention, got"});
}

TEST_CASE("without a position the bias is 0", "[attention]") {
  const auto x = random_tokens<double>(20, 20, 3, 2);
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    const AttentionOptions options{.direction = direction};
    const Attention bare(features(), options), with(features(), NoPosition<double>(), options);
    CHECK(bare(x.q, x.k, x.v) == with(x.q, x.k, x.v));
  }
  CHECK(Attention(features())(x.q, x.k, x.v) == Attention(features(), NoPosition<double>())(x.q, x.k, x.v));
}

TEST_CASE("an engine that does not support the position, or is not in this build, is rejected by name", "[attention]") {
  const Tokens<double> x = random_tokens<double>(5, 5, d, 2);
  check_invalid([&] { run(Attention(features(), table(3), {.engine = Engine::grid}), x); }, {"engine", "grid"});
  if (!NPRF_USE_FFTW)
    check_invalid([&] { run(Attention(features(), table(3), {.engine = Engine::fftw}), x); }, {"engine", "fftw"});
}

TEST_CASE("a wrong shape is rejected: the message has the argument, the expected and the actual shape", "[attention]") {
  const Attention attention(features(), table(3));
  const auto matrix = [](Index rows, Index cols) { return normal<double>(rows, cols, 1); };
  check_invalid([&] { attention(matrix(5, 4), matrix(6, 4), matrix(6, 2)); }, {"queries", "3 columns", "got 4"});
  check_invalid([&] { attention(matrix(5, 3), matrix(6, 2), matrix(6, 2)); }, {"keys", "3 columns", "got 2"});
  check_invalid([&] { attention(matrix(5, 3), matrix(6, 3), matrix(7, 2)); }, {"values", "6 rows", "got 7"});
  // also for empty inputs
  check_invalid([&] { attention(matrix(0, 4), matrix(0, 4), matrix(0, 2)); }, {"queries", "3 columns", "got 4"});
  check_invalid([&] { attention(matrix(5, 3), matrix(0, 3), matrix(7, 2)); }, {"values", "0 rows", "got 7"});
}

TEST_CASE("results are bitwise equal for column-major inputs, and for a vector of values", "[attention]") {
  const Index n = 75, d_v = 3;
  const Tokens<double> x = random_tokens<double>(n, n, d, d_v);
  const Eigen::MatrixXd q = x.q, k = x.k, v = x.v;
  const auto check = [&](const auto& attention) {
    const Matrix<double> y = run(attention, x);
    CHECK(same_bits(attention(q, k, v), y));
    // one column of values, as a vector or as a column of a matrix
    const Matrix<double> column = x.v.col(1);
    const Vector<double> vector = x.v.col(1);
    const Matrix<double> single = attention(x.q, x.k, column);
    CHECK(same_bits(attention(x.q, x.k, vector), single));
    CHECK(same_bits(attention(x.q, x.k, x.v.col(1)), single));
    CHECK(same_bits(attention(x.q, x.k, v.col(1)), single));
  };
  for_each_kind([&](const AttentionOptions& options) {
    check(Attention(features(), table(n), options));
    if (options.direction == Direction::causal) check(Attention(EluFeatures<double>(d), table(n), options));
  });
}

namespace {

// the smallest feature map and position that model the concepts
struct Squares {
  using Scalar = double;
  Index input_dim() const { return d; }
  Index output_dim() const { return d; }
  Matrix<double> queries(const MatrixView<double>& x) const { return x.array().square(); }
  Matrix<double> keys(const MatrixView<double>& x) const { return x.array().square() + 1; }
  Matrix<double> backward(const MatrixView<double>& x, const MatrixView<double>&,
                          const MatrixView<double>& dphi) const {
    return 2 * x.cwiseProduct(dphi);
  }
};

struct Nearest {
  using Scalar = double;
  LagBias<double> bias() const { return {-1, Vector<double>::LinSpaced(3, 0, 2), -1, -0.5}; }
};

struct Wrong : Squares {
  Matrix<double> queries(const MatrixView<double>& x) const { return normal<double>(x.rows() + extra_rows, d, 1); }
  Matrix<double> keys(const MatrixView<double>& x) const { return normal<double>(x.rows(), d + extra_columns, 1); }
  Index extra_rows = 0, extra_columns = 0;
};

}  // namespace

TEST_CASE("a user's own feature map and position", "[attention]") {
  for_each_kind([](AttentionOptions options) {
    for (const Normalization& normalization : {Normalization::unit(2), Normalization::none()}) {
      options.normalization = normalization;
      const Index n = 60;
      const Tokens<double> x = random_tokens<double>(n, n, d, 2);
      const Attention attention(Squares{}, Nearest{}, options);
      Matrix<double> y(n, 2);
      for (Index i = 0; i < n; ++i) {
        Eigen::RowVectorXd numerator = Eigen::RowVectorXd::Zero(2);
        double denominator = 0;
        for (Index j = 0; j < (options.direction == Direction::causal ? i + 1 : n); ++j) {
          const double lag = static_cast<double>(j - i);
          const double b = lag < -1 ? lag + 1 : lag > 1 ? 2 - 0.5 * (lag - 1) : lag + 1;
          const double root = std::pow(d, -0.25);
          const double a = normalization.is_unit() ? 2 / x.q.row(i).norm() : root;
          const double c = normalization.is_unit() ? 2 / x.k.row(j).norm() : root;
          const double w =
              (a * x.q.row(i)).array().square().matrix().dot(((c * x.k.row(j)).array().square() + 1).matrix()) *
              std::exp(b);
          numerator += w * x.v.row(j);
          denominator += w;
        }
        y.row(i) = numerator / denominator;
      }
      CHECK(difference(attention, x, run(attention, x), y) <= 1);
    }
  });
}

TEST_CASE("a feature map that returns a wrong shape is rejected", "[attention]") {
  const Tokens<double> x = random_tokens<double>(5, 6, d, 2);
  Wrong rows, columns;
  rows.extra_rows = 1;
  columns.extra_columns = -1;
  check_invalid([&] { run(Attention(rows, table(3)), x); }, {"feature map", "5 x 3", "got 6 x 3"});
  check_invalid([&] { run(Attention(columns, table(3)), x); }, {"feature map", "6 x 3", "got 6 x 2"});
}

namespace {

struct Undeclared {  // positive features without is_positive
  using Scalar = float;
  Index input_dim() const { return d; }
  Index output_dim() const { return d; }
  Matrix<float> queries(const MatrixView<float>& x) const { return x.array().square() + 1; }
  Matrix<float> keys(const MatrixView<float>& x) const { return x.array().square() + 1; }
  Matrix<float> backward(const MatrixView<float>& x, const MatrixView<float>&, const MatrixView<float>& dphi) const {
    return 2 * x.cwiseProduct(dphi);
  }
};
}  // namespace

TEST_CASE("rows are precise even if their weights underflow beside those of others", "[attention]") {
  // The bias rises by 0.1 with each token of distance. The weights of the first rows are e^-200 of those of the last
  // row, and those around row 1100 are subnormal
  const Index n = 2048;
  const Tokens<float> x = random_tokens<float>(n, n, d, 2);
  const auto check = [&](const char* map, const auto& features) {
    const Attention attention(features, AlibiPosition<float>(-0.1f),
                              {.direction = Direction::causal, .engine = Engine::direct});
    Report report;
    const Matrix<float> y = attention(x.q, x.k, x.v, {.report = &report});
    CHECK(report.repaired_rows >= 1000);
    for (Index i = 0; i<n; i += i> 950 && i < 1250 ? 1 : 97) {
      const Tokens<float> row{x.q.row(i), x.k, x.v};
      const Matrix<float> expected = reference::kernelized_attention(attention, row.q, row.k, row.v, i);
      // a separate call for the row, with weights relative to its own maximum; the tolerance allows for cancellation
      const Matrix<double> tolerance = attention_tolerance(attention, Engine::direct, row, expected, i);
      INFO(map << ", row " << i);
      CHECK(worst_ratio(y.row(i), expected, 2 * tolerance) <= 1);
    }
  };
  check("prf", orf<float>(d, 6, 7));
  check("trf", trf<float>(d, 6, 7));
  check("a user's", Undeclared());
}

TEST_CASE("early rows of causal attention with an offset are precise", "[attention]") {
  // with N(0, 3^2) biases over 4096 tokens a denominator of the first rows may be 1e-6 of those of the last rows
  const Index n = 4096;
  const Tokens<float> x = random_tokens<float>(n, n, d, 2);
  const RelativePosition<float> position(3 * normal_vector<float>(2 * n + 1, 5));
  for (const Index offset : {0, 1, 30}) {
    const Attention attention(orf<float>(d, 2, 7), position, {.direction = Direction::causal});
    const Matrix<float> y = attention(x.q, x.k, x.v, {.offset = offset});
    for (const Index i : {0, 1, 2, 3, 10, 100, 1000, 4095}) {
      const Tokens<float> row{x.q.row(i), x.k, x.v};
      const Matrix<float> expected = reference::kernelized_attention(attention, row.q, row.k, row.v, i + offset);
      INFO("offset " << offset << " row " << i);
      CHECK(largest_row_error(y.row(i), expected) <= 1e-4);  // the default tolerance
    }
  }
}

TEST_CASE("the bias of a user's position is checked by the constructor", "[attention]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  check_invalid([&] { Attention(features(), Held{{0, Vector<double>{{0, nan}}, 0, 0}}); }, {"bias.table[1]", "got "});
  check_invalid([&] { Attention(features(), Held{{0, Vector<double>(0), 0, 0}}); }, {"bias.table", "got none"});
  check_invalid([&] { Attention(features(), Held{{0, Vector<double>::Zero(1), nan, 0}}); }, {"bias slope", "got nan"});
}

TEST_CASE("a row whose denominator overflows is recomputed", "[attention]") {
  const Index n = 40;
  const Tokens<float> x = random_tokens<float>(n, n, d, 2);
  Matrix<float> large = x.k.cwiseAbs() * 1e30f;
  const Attention attention(EluFeatures<float>(d), NoPosition<float>(),
                            {.normalization = Normalization::none(), .engine = Engine::direct});
  Report report;
  const Matrix<float> q = x.q.cwiseAbs() * 1e9f;
  const Matrix<float> y = attention(q, large, x.v, {.report = &report});
  CHECK(report.repaired_rows == n);
  CHECK(report.indefinite_rows == 0);
  CHECK(largest_row_error(y, reference::kernelized_attention(attention, q, large, x.v)) <= 16 * epsilon<float>);
}

}  // namespace nprf::test::attention
