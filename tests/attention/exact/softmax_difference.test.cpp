// SPDX-License-Identifier: MIT

#include "nprf/attention/exact/softmax_difference.hpp"

#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/attention/multi_head_attention.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/positive.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/reference/softmax_attention.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/throws.hpp"

namespace nprf::test::attention_exact_softmax_difference {

TEST_CASE("drawn rows are one in each part of the queries", "[attention]") {
  for (const Index n : {1, 7, 64, 1000})
    for (const Index count : {1, 3, 7, 64, 999})
      if (count <= n) {
        std::vector<Index> rows(static_cast<std::size_t>(count)), others = rows;
        draw_rows(n, 5, 1, rows);
        Index from = 0;
        for (Index at = 0; at < count; ++at) {
          const Index end = from + n / count + (at < n % count ? 1 : 0), row = rows[static_cast<std::size_t>(at)];
          CHECK((from <= row && row < end));
          from = end;
        }
        CHECK(from == n);
        draw_rows(n, 5, 1, others);
        CHECK(rows == others);
      }
}

TEST_CASE("the draw depends on the seed and on the stream", "[attention]") {
  std::set<Index> by_seed, by_stream;
  for (std::uint64_t x = 0; x < 100; ++x) {
    Index row = -1;
    draw_rows(1000000, x, 0, {&row, 1});
    by_seed.insert(row);
    draw_rows(1000000, 0, x, {&row, 1});
    by_stream.insert(row);
  }
  CHECK((by_seed.size() > 90 && by_stream.size() > 90));
}

TEST_CASE("a call reports its distance from exact softmax", "[attention]") {
  constexpr Index n = 80, d = 4;
  const Tokens<double> x = random_tokens<double>(n, n, d, 3, 1);
  const RelativePosition<double> position(random_table<double>(n, 2));
  const PositiveFeatures<double> map({.input_dim = d, .num_features = 20});
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const Index near : {0, 6}) {
      const Attention attention(map, position, {.direction = direction, .near = near});
      const Matrix<double> exact =
          reference::softmax_attention<double>(x.q, x.k, x.v, position, direction, Normalization::unit(1));
      Report report;
      const Matrix<double> y = attention(x.q, x.k, x.v, {.report = &report, .softmax_samples = 1000});
      CHECK(report.compared_rows == n);
      CHECK(std::abs(report.softmax_error - (y - exact).norm() / exact.norm()) <= 1e-12);
      attention(x.q, x.k, x.v, {.report = &report, .softmax_samples = 5, .softmax_seed = 3});
      CHECK(report.compared_rows == 5);
      std::vector<Index> rows(5);
      draw_rows(n, 3, 0, rows);
      double difference = 0, size = 0;
      for (const Index i : rows)
        difference += (y.row(i) - exact.row(i)).squaredNorm(), size += exact.row(i).squaredNorm();
      CHECK(std::abs(report.softmax_error - std::sqrt(difference / size)) <= 1e-12);
      CHECK(same_bits<double>(attention(x.q, x.k, x.v, {.report = &report, .softmax_samples = 5}), y));
      attention(x.q, x.k, x.v, {.report = &report});
      CHECK((report.compared_rows == 0 && std::isnan(report.softmax_error)));
    }
}

TEST_CASE("rows that cannot be compared are left out", "[attention]") {
  constexpr Index n = 30, d = 4;
  Tokens<double> x = random_tokens<double>(n, n, d, 3, 4);
  Matrix<double> clean = x.q;
  x.q(3, 1) = std::numeric_limits<double>::quiet_NaN();
  x.v(20, 2) = std::numeric_limits<double>::quiet_NaN();
  Mask mask = Mask::Constant(n, true);
  mask.head(2) = false;
  Report report;
  const Attention attention(PositiveFeatures<double>({.input_dim = d, .num_features = 20}),
                            {.direction = Direction::causal});
  attention(x.q, x.k, x.v, {.key_mask = view(mask), .report = &report, .softmax_samples = n});
  CHECK(report.compared_rows == 17);  // 0 and 1 are empty, 3 and those from 20 on are NaN
  CHECK(report.softmax_error > 0);
}

TEST_CASE("the comparison of many heads is of all their rows", "[attention]") {
  constexpr Index n = 24, d = 4, h = 3;
  const Matrix<float> x = normal<float>(2 * h * n, d, 5);
  const MultiHeadAttention attention(PositiveFeatures<float>({.input_dim = d, .num_features = 8}));
  Matrix<float> y(2 * h * n, d);
  const HeadsView<const float> all{x.data(), 2, h, n, d};
  Report report;
  attention(all, all, all, HeadsView<float>{y.data(), 2, h, n, d}, {.report = &report, .softmax_samples = n});
  double difference = 0, size = 0;
  for (Index at = 0; at < 2 * h; ++at) {
    const auto rows = [&](const Matrix<float>& of) { return Matrix<float>(of.middleRows(at * n, n)); };
    const Matrix<float> exact = reference::softmax_attention<float>(rows(x), rows(x), rows(x), NoPosition<float>(),
                                                                    Direction::bidirectional, Normalization::unit(1));
    difference += static_cast<double>((rows(y) - exact).squaredNorm()),
        size += static_cast<double>(exact.squaredNorm());
  }
  CHECK(report.compared_rows == 2 * h * n);
  CHECK(std::abs(report.softmax_error - std::sqrt(difference / size)) <= 1e-4 * report.softmax_error);
}

TEST_CASE("sums of comparisons are in common units", "[attention]") {
  const std::vector<SoftmaxDifference> all{
      {1, 3, 5}, {2, 0.5, 7, 3}, {3, 0, 0, 900}, {1, 2, 9, -400}, {4, 1e-200, 1e-180, 320}};
  for (const SoftmaxDifference& one : all)
    for (const SoftmaxDifference& other : all) {
      SoftmaxDifference sum = one;
      sum += other;
      CHECK(sum.rows == one.rows + other.rows);
      // in long double, whose exponents suffice
      const auto square = [](double x, int exponent) { return std::ldexp(static_cast<long double>(x), 2 * exponent); };
      const long double difference = square(one.difference, one.exponent) + square(other.difference, other.exponent),
                        size = square(one.size, one.exponent) + square(other.size, other.exponent);
      CHECK(std::abs(square(sum.difference, sum.exponent) - difference) <= 4 * epsilon<double> * difference);
      CHECK(std::abs(square(sum.size, sum.exponent) - size) <= 4 * epsilon<double> * size);
    }
}

TEST_CASE("the comparison of sequences and heads whose values differ in size is of all their rows", "[attention]") {
  constexpr Index n = 40, d = 6, d_v = 3;
  const auto check = [&]<class T>(T most) {
    const Matrix<T> x = normal<T>(3 * n, d, 5), v = normal<T>(3 * n, d_v, 7);
    Matrix<T> q = x, y(3 * n, d_v);
    q.topRows(n).setZero();  // without an error: exp(0) is exact
    const MultiHeadAttention attention(PositiveFeatures<T>({.input_dim = d, .num_features = 4}),
                                       AlibiPosition<T>(T(0.1)));
    for (const auto& [batch, heads] : {std::pair<Index, Index>{3, 1}, {1, 3}})
      for (const T size : {T(1), T(1) / most, most})
        for (const T last : {T(1), most}) {
          Matrix<T> values = v;
          values.topRows(n) *= size;
          values.bottomRows(n) *= last;
          Report report;
          attention(HeadsView<const T>{q.data(), batch, heads, n, d}, HeadsView<const T>{x.data(), batch, heads, n, d},
                    HeadsView<const T>{values.data(), batch, heads, n, d_v},
                    HeadsView<T>{y.data(), batch, heads, n, d_v}, {.report = &report, .softmax_samples = n});
          Matrix<T> exact(3 * n, d_v);
          for (Index at = 0; at < 3 * n; at += n)
            exact.middleRows(at, n) = reference::softmax_attention<T>(
                q.middleRows(at, n), x.middleRows(at, n), values.middleRows(at, n), AlibiPosition<T>(T(0.1)),
                Direction::bidirectional, Normalization::unit(1));
          // squares of the largest and the smallest values do not fit a T
          const auto norm = [](const Matrix<T>& rows) { return rows.template cast<long double>().norm(); };
          const double expected = static_cast<double>(norm(y - exact) / norm(exact));
          CHECK(std::abs(report.softmax_error - expected) <= 1e3 * epsilon<T>);
        }
  };
  check(1e30f);
  check(1e300);
}

TEST_CASE("comparisons that are not defined are refused", "[attention]") {
  const Matrix<float> x = normal<float>(5, 4, 6);
  Report report;
  const Attention positive(PositiveFeatures<float>({.input_dim = 4, .num_features = 8}));
  check_invalid([&] { positive(x, x, x, {.report = &report, .softmax_samples = -2}); },
                {"softmax_samples", "expected 0 or more", "got -2"});
  check_invalid([&] { positive(x, x, x, {.softmax_samples = 2}); }, {"softmax_samples", "without a report", "got 2"});
  const Attention elu(EluFeatures<float>(4));
  check_invalid([&] { elu(x, x, x, {.report = &report, .softmax_samples = 2}); },
                {"softmax_samples", "does not estimate exp", "got 2"});
}

}  // namespace nprf::test::attention_exact_softmax_difference
