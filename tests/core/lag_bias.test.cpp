// SPDX-License-Identifier: MIT
#include "nprf/core/lag_bias.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "support/catch.hpp"

namespace nprf::test::core_lag_bias {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// tables of several shapes, with -infinity in several places, and falling, flat and rising lines on both sides
std::vector<LagBias<double>> biases() {
  std::vector<Vector<double>> tables{Vector<double>::Constant(1, 2), Vector<double>::LinSpaced(4, -1, 5),
                                     Vector<double>::LinSpaced(3, 1, -3), Vector<double>::Constant(2, -infinity)};
  tables.push_back(tables[1]);
  tables.back()[0] = -infinity;
  tables.push_back(tables[1]);
  tables.back()[3] = -infinity;
  std::vector<LagBias<double>> all;
  for (const Vector<double>& table : tables)
    for (const Index first : {-6, -1, 0, 4})
      for (const double before : {-1.5, 0.0, 0.75})
        for (const double after : {-0.5, 0.0, 2.0}) all.push_back({first, table, before, after});
  return all;
}

}  // namespace

TEMPLATE_TEST_CASE("a bias without parameters is zero everywhere", "[core]", NPRF_TEST_SCALARS) {
  const LagBias<TestType> bias;
  CHECK(bias.last() == 0);
  for (const Index lag : {-1000000, -1, 0, 1, 1000000}) CHECK(bias[lag] == 0);
}

TEST_CASE("a bias is linear beyond its table", "[core]") {
  const LagBias<double> bias{-1, Vector<double>::LinSpaced(3, 1, 3), 0.5, -2};
  CHECK(bias.last() == 1);
  CHECK(bias[-1] == 1);
  CHECK(bias[0] == 2);
  CHECK(bias[1] == 3);
  CHECK(bias[-2] == 1 + 0.5);
  CHECK(bias[-4] == 1 + 3 * 0.5);
  CHECK(bias[2] == 3 - 2);
  CHECK(bias[3] == 3 - 2 * 2.0);
  CHECK(bias.max({-1, 1}) == 3);
  CHECK(bias.max({-11, -9}) == 6);
  CHECK(bias.max({2, 1}) == -infinity);
}

TEST_CASE("a bias of float is computed in double far beyond its table", "[core]") {
  const LagBias<float> bias{0, Vector<float>::Zero(1), -0.1f, -0.1f};
  const double slope = 0.1f;  // rounded to float only here
  for (const Index lag : {Index{16777217}, Index{99999999}}) {
    CHECK(bias[lag] == -slope * static_cast<double>(lag));
    CHECK(bias[-lag] == -slope * static_cast<double>(lag));
  }
}

TEST_CASE("the largest bias of a range is the largest over all of its lags", "[core]") {
  for (const LagBias<double>& bias : biases())
    for (Index first = -9; first <= 9; ++first)
      for (Index last = first - 2; last <= 10; ++last) {
        double largest = -infinity;
        for (Index lag = first; lag <= last; ++lag) largest = std::max(largest, bias[lag]);
        INFO("table at " << bias.first << ", range " << first << ".." << last);
        REQUIRE(bias.max({first, last}) == largest);
      }
}

}  // namespace nprf::test::core_lag_bias
