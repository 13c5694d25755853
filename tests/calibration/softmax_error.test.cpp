// SPDX-License-Identifier: MIT
#include "nprf/calibration/softmax_error.hpp"

#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "nprf/calibration/calibrate_definition.hpp"
#include "nprf/core/threads.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::calibration_softmax_error {

namespace {

constexpr Index d = 3, d_v = 2;
constexpr double infinity = std::numeric_limits<double>::infinity();

double decaying(Index i, Index j) { return -0.1 * static_cast<double>(std::abs(j - i)) + (j > i ? 0.2 : 0); }

SampleTokens<double> tokens(Index n_q, Index n_k, Index columns = d_v, double size = 0.8) {
  return {size * normal<double>(n_q, d, 1), size * normal<double>(n_k, d, 2), normal<double>(n_k, columns, 3), 5, 7};
}

CalibratedFeatures<double> map_of(const SampleTokens<double>& x, Index second = 1) {
  return hermite_features(balance<double>(x.q, x.k), d, second);
}

// the formula as loops, one row at a time
SoftmaxDifference naive(const SampleTokens<double>& x, const CalibratedFeatures<double>& map,
                        const std::function<double(Index, Index)>& bias, Index near, Direction direction) {
  Vector<double> log_q;
  double log_k;
  const Matrix<double> A = map.queries(x.q, {}, &log_q), B = map.keys(x.k, {}, &log_k);
  const Index columns = x.v.cols() > 0 ? x.v.cols() : x.k.rows();
  SoftmaxDifference sum;
  for (Index i = 0; i < x.q.rows(); ++i) {
    Vector<double> exact = Vector<double>::Zero(columns), other = exact;
    double exact_sum = 0, other_sum = 0, magnitudes = 0;
    for (Index j = 0; j < x.k.rows(); ++j) {
      const Index query = x.first_query + i, key = j < x.sinks ? j : x.first_key + j - x.sinks;
      const bool is_exact = j < x.sinks || std::abs(key - query) < near;
      if (direction == Direction::causal && key > query) continue;
      const double w = std::exp(x.q.row(i).dot(x.k.row(j)) + bias(query, key)),
                   f = is_exact ? w : A.row(i).dot(B.row(j)) * std::exp(log_q[i] + log_k + bias(query, key));
      const Vector<double> v =
          x.v.cols() > 0 ? Vector<double>(x.v.row(j).transpose()) : Vector<double>(Vector<double>::Unit(columns, j));
      exact += w * v, other += f * v;
      exact_sum += w, other_sum += f;
      magnitudes += is_exact ? w : A.row(i).norm() * B.row(j).norm() * std::exp(log_q[i] + log_k + bias(query, key));
    }
    if (exact_sum == 0) continue;
    const bool cancels = other_sum <= 0 || magnitudes > 16 * other_sum;  // attention has exact softmax then
    sum += {1, cancels ? 0 : (other / other_sum - exact / exact_sum).squaredNorm(), (exact / exact_sum).squaredNorm()};
  }
  return sum;
}

// pairs of which those less than `near` tokens apart are near
SamplePairs pairs(const std::function<double(Index, Index)>& bias, Index near) {
  return {[=](Index i, Index j, std::span<double> biases, std::span<bool> is_near) {
    for (std::size_t l = 0; l < biases.size(); ++l, ++j) biases[l] = bias(i, j), is_near[l] = std::abs(j - i) < near;
  }};
}

// for values in units of 1
SoftmaxDifference in_ones(const SoftmaxDifference& x) {
  return {x.rows, std::ldexp(x.difference, 2 * x.exponent), std::ldexp(x.size, 2 * x.exponent)};
}

template <Real T>
SoftmaxDifference compared(const SampleTokens<T>& x, const CalibratedFeatures<T>& map, const SamplePairs& of,
                           const ComparisonOptions& options = {}) {
  const Index all = map.output_dim();
  return in_ones(SoftmaxComparison(x, of, options).differences(map, {&all, 1})[0]);
}

void check_close(const SoftmaxDifference& got, const SoftmaxDifference& expected) {
  CHECK(got.rows == expected.rows);
  CHECK(std::abs(got.size - expected.size) <= 1e-12 * expected.size);
  // y is a quotient of sums of up to 90 terms, whose features have both signs
  CHECK(std::abs(std::sqrt(got.difference) - std::sqrt(expected.difference)) <=
        1000 * epsilon<double> * std::sqrt(expected.size));
}

}  // namespace

TEST_CASE("the difference from softmax is that of the formula", "[calibration]") {
  for (const auto& [n_q, n_k] : {std::pair<Index, Index>{1, 1}, {40, 40}, {70, 33}, {9, 90}})
    for (const Index columns : {d_v, Index{0}})
      for (const Direction direction : {Direction::bidirectional, Direction::causal})
        for (const auto& [near, sinks] : {std::pair<Index, Index>{0, 0}, {1, 0}, {6, 0}, {200, 0}, {0, 1}, {4, 30}}) {
          SampleTokens<double> x = tokens(n_q, n_k, columns);
          x.sinks = std::min(sinks, n_k);
          const CalibratedFeatures<double> map = map_of(tokens(40, 40));
          INFO(n_q << " queries, " << n_k << " keys, near " << near << ", causal " << (direction == Direction::causal));
          check_close(compared(x, map, pairs(decaying, near), {.direction = direction}),
                      naive(x, map, decaying, near, direction));
        }
}

TEST_CASE("masked keys and rows that attend to no key are left out", "[calibration]") {
  const SampleTokens<double> x = tokens(25, 30);
  const auto window = [](Index i, Index j) { return std::abs(j - i) > 3 || i == 12 ? -infinity : 0; };
  const CalibratedFeatures<double> map = map_of(x);
  const SoftmaxDifference got = compared(x, map, pairs(window, 2));
  CHECK(std::isfinite(got.difference));
  check_close(got, naive(x, map, window, 2, Direction::bidirectional));
  const SoftmaxDifference none = compared(x, map, pairs([](Index, Index) { return -infinity; }, 2));
  CHECK(none.rows == 0);
  CHECK(none.difference == 0);
  CHECK(none.size == 0);
  CHECK(std::isnan(none.relative_error()));
}

TEST_CASE("large exponents do not overflow", "[calibration]") {
  SampleTokens<double> x = tokens(20, 20, d_v, 25);  // q.k of some thousands
  const SoftmaxDifference got = compared(x, map_of(x), pairs(decaying, 3));
  CHECK(std::isfinite(got.size));
  CHECK(got.size > 0);
  CHECK(!std::isnan(got.difference));
  const auto far = [](Index, Index) { return 900.0; };
  x = tokens(20, 20);
  check_close(compared(x, map_of(x), pairs(far, 3)),
              naive(
                  x, map_of(x), [](Index, Index) { return 0.0; }, 3, Direction::bidirectional));
}

TEST_CASE("float: the difference is that of double, for values of any size and biases far from 0", "[calibration]") {
  const auto from_a_billion = [](Index i, Index j) { return i % 3 == 0 ? decaying(i, j) : decaying(i, j) - 1e9; };
  SampleTokens<double> x = tokens(70, 50);
  const CalibratedFeatures<double> map = map_of(x);
  const SoftmaxDifference expected = compared(x, map, pairs(decaying, 3));
  const auto size = GENERATE(1.0, 0x1p-120, 0x1p120);
  x.v *= size;
  const SoftmaxDifference got =
      compared(x.template cast<float>(), map.template cast<float>(), pairs(from_a_billion, 3));
  CHECK(std::abs(std::sqrt(got.size) / size - std::sqrt(expected.size)) <=
        100 * epsilon<float> * std::sqrt(expected.size));
  CHECK(std::abs(std::sqrt(got.difference) / size - std::sqrt(expected.difference)) <=
        1000 * epsilon<float> * std::sqrt(expected.size));
}

TEST_CASE("the relative error of a row counts as at most max_row_error", "[calibration]") {
  const SampleTokens<double> x = tokens(30, 30, d_v, 2);
  const CalibratedFeatures<double> map = map_of(x, 0);
  Vector<double> own(30), exact(30);
  for (Index i = 0; i < 30; ++i) {
    SampleTokens<double> row = x;
    row.q = x.q.middleRows(i, 1), row.first_query += i;
    const SoftmaxDifference error = compared(row, map, pairs(decaying, 2));
    own[i] = error.relative_error(), exact[i] = error.size;
  }
  for (const double most : {10 * own.maxCoeff(), own.mean(), 0.1 * own.minCoeff()}) {
    const double expected = (own.cwiseMin(most).cwiseAbs2().array() * exact.array()).sum();
    const double got = compared(x, map, pairs(decaying, 2), {.max_row_error = most}).difference;
    CHECK(std::abs(got - expected) <= 1e-10 * expected);
  }
}

TEST_CASE("maps with the first features of one are compared at a time", "[calibration]") {
  const SampleTokens<double> x = tokens(70, 50);
  for (const Index second : {0, 1, 2, 3}) {
    const CalibratedFeatures<double> all = map_of(x, second);
    std::vector<CalibratedFeatures<double>> maps;
    for (Index first = 0; first < d; ++first) maps.push_back(hermite_features(balance<double>(x.q, x.k), first, 0));
    for (Index s = 0; s <= second; ++s) maps.push_back(map_of(x, s));
    std::vector<Index> counts;
    for (const auto& map : maps) counts.push_back(map.output_dim());
    const auto got = SoftmaxComparison(x, pairs(decaying, 2), {}).differences(all, counts);
    REQUIRE(got.size() == maps.size());
    for (std::size_t c = 0; c < maps.size(); ++c)
      check_close(in_ones(got[c]), naive(x, maps[c], decaying, 2, Direction::bidirectional));
  }
}

TEST_CASE("queries are chosen if there are many", "[calibration]") {
  const SampleTokens<double> x = tokens(300, 50);
  const CalibratedFeatures<double> map = map_of(x, 0);
  const SamplePairs near_2 = pairs(decaying, 2);
  const SoftmaxDifference all = compared(x, map, near_2);
  const ComparisonOptions some{.max_queries = 60};
  const SoftmaxDifference part = compared(x, map, near_2, some);
  CHECK(part.size < 0.4 * all.size);
  CHECK(std::abs(part.relative_error() - all.relative_error()) < 0.3 * all.relative_error());
  ComparisonOptions other = some;
  other.seed = 1;
  CHECK(compared(x, map, near_2, other).difference != part.difference);
  CHECK(compared(x, map, near_2, some).difference == part.difference);
}

TEST_CASE("the difference of several sequences is the sum of theirs", "[calibration]") {
  const HeadSample<double> head{{tokens(20, 20), tokens(30, 25)}, pairs(decaying, 2)};
  const CalibratedFeatures<double> map = map_of(head.sequences[0]);
  const SoftmaxDifference sum = in_ones(softmax_difference(head, map, {}));
  SoftmaxDifference expected;
  for (const SampleTokens<double>& each : head.sequences) expected += compared(each, map, pairs(decaying, 2));
  CHECK(sum.difference == expected.difference);
  CHECK(sum.size == expected.size);
  CHECK(sum.relative_error() == std::sqrt(expected.difference / expected.size));
}

TEST_CASE("a sample in which nothing can be compared is rejected", "[calibration]") {
  const auto differences = [](Index n_k, const SamplePairs& of, Direction direction) {
    return [=] {
      const HeadSample<double> head{{tokens(20, n_k)}, of};  // queries 5 to 24, keys from 7
      const CalibratedFeatures<double> map = map_of(tokens(40, 40));
      softmax_difference(head, map, {.direction = direction});
    };
  };
  const auto outside = [](Index i, Index j) { return std::abs(j - i) < 30 ? -infinity : 0; };
  differences(30, pairs(outside, 0), Direction::bidirectional)();
  check_invalid(differences(27, pairs(outside, 0), Direction::bidirectional),
                {"a query that attends to a key", "queries 5 to 24 with keys 7 to 33"});
  differences(20, pairs(decaying, 17), Direction::causal)();
  check_invalid(differences(20, pairs(decaying, 18), Direction::causal),
                {"may attend to a key that is neither near nor a sink"});
  differences(20, pairs(decaying, 21), Direction::bidirectional)();
  check_invalid(differences(20, pairs(decaying, 22), Direction::bidirectional),
                {"a key that is neither near nor a sink"});
}

TEST_CASE("the difference from softmax is bitwise equal for any number of threads", "[calibration][threads]") {
  const SampleTokens<double> x = tokens(200, 150);
  const CalibratedFeatures<double> map = map_of(x);
  const Index before = num_threads();
  set_num_threads(1);
  const double one = compared(x, map, pairs(decaying, 2)).difference;
  set_num_threads(3);
  const double three = compared(x, map, pairs(decaying, 2)).difference;
  set_num_threads(before);
  CHECK(one == three);
}

}  // namespace nprf::test::calibration_softmax_error
