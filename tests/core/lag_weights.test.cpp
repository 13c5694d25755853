// SPDX-License-Identifier: MIT
#include "nprf/core/lag_weights.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"

namespace nprf::test::core_lag_weights {

namespace {

template <class T>
Vector<T> vector(std::initializer_list<double> values) {
  Vector<T> v(static_cast<Index>(values.size()));
  std::transform(values.begin(), values.end(), v.data(), [](double x) { return static_cast<T>(x); });
  return v;
}

constexpr double infinity = std::numeric_limits<double>::infinity();

// The largest relative error of c[lag] = exp(b[lag] - max b) over a range, in units of T's epsilon. The exponent is
// computed in double, which contributes |b - max b| times the epsilon of double, then exp and the rounding to T.
template <class T>
double worst_error(const LagWeights<T>& c, const LagBias<T>& bias, LagRange range) {
  const double largest = bias.max(range);
  double worst = 0;
  for (Index lag = range.first; lag <= range.last; ++lag) {
    const double exact = std::exp(bias[lag] - largest);
    if (exact < std::numeric_limits<T>::min()) continue;  // subnormal numbers have less precision
    worst = std::max(worst, std::abs(static_cast<double>(c[lag]) / exact - 1));
  }
  return worst / static_cast<double>(std::numeric_limits<T>::epsilon());
}

}  // namespace

TEST_CASE("weights outside their table are zero", "[core]") {
  const LagWeights<double> c{-2, vector<double>({5, 6, 7})};
  CHECK(c.last() == 0);
  CHECK(c[-3] == 0);
  CHECK(c[-2] == 5);
  CHECK(c[-1] == 6);
  CHECK(c[0] == 7);
  CHECK(c[1] == 0);
  CHECK(c[1000000] == 0);
  CHECK(LagWeights<double>()[0] == 0);
  CHECK(LagWeights<double>().support().size() == 0);
}

TEST_CASE("a view of weights reads them in place", "[core]") {
  LagWeights<double> c{-2, vector<double>({0, 6, 7, 0})};
  const LagWeightsView<double> view = c.view();
  CHECK(view.values == c.values.data());
  CHECK(view.size == 4);
  CHECK(view.last() == 1);
  for (Index lag = -9; lag <= 9; ++lag) CHECK(view[lag] == c[lag]);
  CHECK(view.support().first == -1);
  CHECK(view.support().last == 0);
  c.values[3] = 8;
  CHECK(view[1] == 8);
  CHECK(view.support().last == 1);

  const LagWeightsView<float> none;
  CHECK(none[0] == 0);
  CHECK(none.support().size() == 0);
}

TEST_CASE("a window of weights has every lag of its range, with zeros outside the table", "[core]") {
  const LagWeights<float> c{-2, vector<float>({5, 6, 7})};
  CHECK(c.window({-4, 2}) == vector<float>({0, 0, 5, 6, 7, 0, 0}));
  CHECK(c.window({-1, -1}) == vector<float>({6}));
  CHECK(c.window({10, 11}) == vector<float>({0, 0}));
  CHECK(c.window({-9, -8}) == vector<float>({0, 0}));
  CHECK(c.window({3, 2}).size() == 0);
  CHECK(c.window({3, -20}).size() == 0);
}

TEST_CASE("the support is the smallest range that contains all non-zero weights", "[core]") {
  for (int pattern = 0; pattern < 64; ++pattern) {  // bit k: whether weight k of six is non-zero
    LagWeights<double> c{-3, Vector<double>::Zero(6)};
    Index first = 0, last = -1;
    for (Index k = 0; k < 6; ++k) {
      if (!(pattern >> k & 1)) continue;
      c.values[k] = 0.5;
      if (last < first) first = c.first + k;
      last = c.first + k;
    }
    const LagRange range = c.support();
    INFO("pattern " << pattern);
    REQUIRE(range.size() == (pattern == 0 ? 0 : last - first + 1));
    if (pattern == 0) continue;
    REQUIRE(range.first == first);
    REQUIRE(range.last == last);
  }
}

TEMPLATE_TEST_CASE("the weights are exp(b - max b), and the largest weight is 1", "[core]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Vector<T> table = vector<T>({0.5, -1, 2, 0.25, -3});
  for (const Index first : {-40, -2, 0, 30})      // the table before, across and after the range
    for (const double before : {-0.5, 0.0, 0.5})  // falling, flat, rising
      for (const double after : {-0.25, 0.0, 0.25}) {
        const LagBias<T> bias{first, table, static_cast<T>(before), static_cast<T>(after)};
        for (const LagRange range : {LagRange{-10, 10}, LagRange{-3, 0}, LagRange{1, 1}, LagRange{-1, 12}}) {
          const LagWeights<T> c = exp_weights(bias, range);
          INFO("table at " << first << ", slopes " << before << ' ' << after << ", range from " << range.first);
          REQUIRE(c.first == range.first);
          REQUIRE(c.last() == range.last);
          REQUIRE(c.values.maxCoeff() == 1);
          REQUIRE(worst_error(c, bias, range) <= 2);
        }
      }
}

TEMPLATE_TEST_CASE("a constant added to the bias changes no weight", "[core]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const LagRange range{-5, 5};
  LagBias<T> bias{-1, vector<T>({0.5, -1, 2}), T(-0.5), T(0.25)};
  const LagWeights<T> c = exp_weights(bias, range);
  for (const double constant : {-1024.0, 64.0, 4096.0}) {  // exp(4096) would overflow; the sums are exact
    bias.table = vector<T>({0.5 + constant, -1 + constant, 2 + constant});
    CHECK(exp_weights(bias, range).values == c.values);
  }
}

TEMPLATE_TEST_CASE("b = -infinity gives weight zero", "[core]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const LagBias<T> some{-1, vector<T>({-infinity, 1, -infinity, 3}), 0, 0};
  const LagWeights<T> c = exp_weights(some, {-4, 5});
  CHECK(c.window({-4, -1}).isZero(0));
  CHECK(c[0] > 0);
  CHECK(c[1] == 0);
  CHECK(c[2] == 1);
  CHECK(c[5] == 1);
  CHECK(c.support().first == 0);
  CHECK(c.support().last == 5);

  const LagBias<T> none{0, vector<T>({-infinity}), 0, 0};
  const LagWeights<T> zero = exp_weights(none, {-4, 5});
  CHECK(zero.values.size() == 10);
  CHECK(zero.values.isZero(0));
  CHECK(zero.support().size() == 0);

  // all b of the range are -infinity, but the table has others
  CHECK(exp_weights(some, {-4, -1}).values.isZero(0));
}

TEMPLATE_TEST_CASE("a falling line underflows to zero, and the support ends there", "[core]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const LagBias<T> bias{0, vector<T>({0}), T(-8), T(-16)};
  const LagWeights<T> c = exp_weights(bias, {-1000, 1000});
  const LagRange range = c.support();
  CHECK(c[0] == 1);
  CHECK(range.first > -1000);
  CHECK(range.last < 1000);
  // the support contains every weight that T can represent: at its end exp is near T's smallest number
  const double smallest = std::log(static_cast<double>(std::numeric_limits<T>::denorm_min()));
  CHECK(std::abs(8 * static_cast<double>(range.first) - smallest) <= 9);
  CHECK(std::abs(-16 * static_cast<double>(range.last) - smallest) <= 17);
}

TEST_CASE("an empty range has no weights", "[core]") {
  const LagBias<double> bias{0, vector<double>({1, 2}), 1, -1};
  for (const LagRange range : {LagRange{}, LagRange{5, 4}, LagRange{7, 0}, LagRange{-3, -90}}) {
    const LagWeights<double> c = exp_weights(bias, range);
    CHECK(c.values.size() == 0);
    CHECK(c[range.first] == 0);
    CHECK(c.support().size() == 0);
  }
}

TEMPLATE_TEST_CASE("the tails of weights are the lags where the bias is linear", "[core]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const LagBias<T> bias{-1, vector<T>({0.5, -1, 2}), T(-0.5), T(0)};
  struct Case {
    LagRange range;
    Index before, after;
  };
  for (const Case& x : {Case{{-10, 10}, 9, 9}, Case{{-1, 1}, 0, 0}, Case{{-3, 0}, 2, 0}, Case{{0, 5}, 0, 4},
                        Case{{-9, -4}, 5, 0}, Case{{4, 9}, 0, 5}, Case{{3, 2}, 0, 0}}) {
    INFO("range " << x.range.first << " to " << x.range.last);
    const LagWeights<T> c = exp_weights(bias, x.range);
    CHECK(c.tails.before == x.before);
    CHECK(c.tails.after == x.after);
    CHECK(c.view().middle().first == x.range.first + x.before);
    CHECK(c.view().middle().last == x.range.last - x.after);
    const double eps = static_cast<double>(std::numeric_limits<T>::epsilon());
    for (Index k = 1; k <= x.before; ++k) {
      const double line = std::exp(static_cast<double>(k) * c.tails.slope_before), got = c.values[x.before - k];
      CHECK(std::abs(got / static_cast<double>(c.values[x.before]) / line - 1) <= 4 * eps);
    }
    for (Index k = 1; k <= x.after; ++k) CHECK(c.values[c.values.size() - 1 - k] == c.values[c.values.size() - 1]);
  }
  // a line that rises outwards gives no tail: its innermost weight may have underflowed
  CHECK(exp_weights(LagBias<T>{0, vector<T>({0}), T(0.1), T(-0.1)}, {-9, 9}).tails.before == 0);
  CHECK(exp_weights(LagBias<T>{0, vector<T>({0}), T(0.1), T(-0.1)}, {-9, 9}).tails.after == 9);
}

TEST_CASE("with_equal_ends extends flat tails over equal weights at the ends", "[core]") {
  const auto ends = [](const LagWeights<double>& c) { return c.view().with_equal_ends().tails; };
  const auto is = [](const Tails& t, Index before, Index after) { return t.before == before && t.after == after; };
  CHECK(is(ends({-3, vector<double>({2, 2, 5, 7, 3, 3, 3})}), 1, 2));
  CHECK(is(ends({0, vector<double>({1, 2, 3})}), 0, 0));
  CHECK(is(ends({0, vector<double>({4, 4, 4, 4})}), 3, 0));
  CHECK(is(ends({0, vector<double>({4})}), 0, 0));
  CHECK(is(ends({}), 0, 0));
  // tails of slope 0 grow, others are unchanged
  CHECK(is(ends({0, vector<double>({5, 5, 5, 7, 9, 9}), {1, 0, 0.0, 0.0}}), 2, 1));
  CHECK(is(ends({0, vector<double>({1, 2, 2, 7, 9, 9}), {1, 0, -std::log(2.0), 0.0}}), 1, 1));
}

}  // namespace nprf::test::core_lag_weights
