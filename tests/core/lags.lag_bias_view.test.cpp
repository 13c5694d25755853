// SPDX-License-Identifier: MIT
#include "nprf/core/lags.hpp"

#include <limits>
#include <vector>

#include "support/catch.hpp"

namespace nprf::test::core_lag_bias_view {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double table[] = {1, 3, -infinity, 2}, ends[] = {-infinity, 3, 2, -infinity};

constexpr LagBiasView<double> view(double before, double after) { return {-1, table, 4, before, after}; }

}  // namespace

TEST_CASE("a view of a bias reads its table in place, and is linear beyond it", "[core]") {
  double b[] = {1, 2, 3};
  const LagBiasView<double> bias{-1, b, 3, 0.5, -2};
  CHECK(bias.last() == 1);
  b[1] = 7;
  CHECK((bias[-1] == 1 && bias[0] == 7 && bias[1] == 3));
  CHECK((bias[-2] == 1.5 && bias[-4] == 2.5 && bias[2] == 1 && bias[3] == -1));
}

TEST_CASE("a difference of biases on one line does not cancel", "[core]") {
  const float b[] = {0.3f};
  const LagBiasView<float> bias{0, b, 1, -0.1f, 0.2f};
  const Index far = Index{1} << 50;
  CHECK(bias.difference(far + 3, far) == 3 * static_cast<double>(0.2f));
  CHECK(bias.difference(-far - 3, -far) == 3 * static_cast<double>(-0.1f));
  CHECK(bias.difference(2, -1) == bias[2] - bias[-1]);
}

TEST_CASE("a difference from a bias that is not -infinity is -infinity where the bias is", "[core]") {
  const LagBiasView<double> bias = view(-1, 1);
  CHECK(bias.difference(1, 0) == -infinity);
  const double never[] = {-infinity, 0};
  const LagBiasView<double> before{0, never, 2, 0, 0};
  CHECK((before.difference(-5, 1) == -infinity && before.difference(-5, -4) == -infinity));
  CHECK(before.difference(9, 1) == 0);
}

TEST_CASE("ranges of biases are filled with the value of each lag", "[core]") {
  const LagBiasView<double> bias = view(0.5, -1);
  const LagRange range{-4, 6};
  std::vector<double> b(static_cast<std::size_t>(range.size())), d(b);
  bias.fill(range, b.data());
  bias.fill_differences(range, 0, d.data());
  for (Index lag = range.first; lag <= range.last; ++lag) {
    const auto at = static_cast<std::size_t>(lag - range.first);
    CHECK(b[at] == bias[lag]);
    CHECK(d[at] == bias.difference(lag, 0));
  }
}

TEST_CASE("the first lag with the largest bias of a range", "[core]") {
  for (const double before : {-1.0, 0.0, 0.5})
    for (const double after : {-1.0, 0.0, 0.5})
      for (Index first = -6; first <= 6; ++first)
        for (Index last = first - 1; last <= 7; ++last) {
          INFO("slopes " << before << " and " << after << ", range " << first << " to " << last);
          for (const LagBiasView<double>& bias :
               {view(before, after), LagBiasView<double>{-1, ends, 4, before, after}}) {
            Index expected = first;
            for (Index lag = first; lag <= last; ++lag)
              if (bias[lag] > bias[expected]) expected = lag;
            CHECK(bias[bias.largest({first, last})] == bias[expected]);
            CHECK(bias.max({first, last}) == (last < first ? -infinity : bias[expected]));
          }
        }
}

}  // namespace nprf::test::core_lag_bias_view
