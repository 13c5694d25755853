// SPDX-License-Identifier: MIT
#include "nprf/position/spline.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::position_spline {

namespace {

const std::vector<Index> knots{0, 1, 3, 8, 20, 50};

std::vector<double> some_values(std::size_t count) {
  const Vector<double> x = normal_vector<double>(static_cast<Index>(count), 1);
  return {x.data(), x.data() + count};
}

}  // namespace

TEST_CASE("a spline goes through its values, on each side of lag 0", "[position]") {
  for (const SplineEnd end : {SplineEnd::constant, SplineEnd::linear}) {
    const std::vector<double> v = some_values(2 * knots.size());
    const Spline both(v, knots, end), one({v.begin(), v.begin() + 6}, knots, end);
    CHECK((both.has_two_sides() && !one.has_two_sides()));
    for (std::size_t k = 0; k < knots.size(); ++k) {
      CHECK(std::abs(both.bias(-knots[k]) - v[k]) < 1e-13);
      CHECK(std::abs(one.bias(-knots[k]) - v[k]) < 1e-13);
      CHECK(one.bias(knots[k]) == one.bias(-knots[k]));
      if (k > 0) CHECK(std::abs(both.bias(knots[k]) - v[6 + k]) < 1e-13);
    }
  }
}

TEST_CASE("beyond the last knot a spline stays the same, or is a line that continues it", "[position]") {
  const std::vector<double> v = some_values(knots.size());
  const Spline constant(v, knots), linear(v, knots, SplineEnd::linear);
  for (const Index lag : {50, 51, 1000}) CHECK(std::abs(constant.bias(lag) - v.back()) < 1e-13);
  const double slope = linear.bias(51) - linear.bias(50);
  CHECK(std::abs(linear.bias(1050) - (v.back() + 1000 * slope)) < 1e-9);
  // knots far from 0, where one lag is a small step: both ends are differentiable
  const std::vector<Index> wide{0, 1000, 5000, 20000};
  for (const SplineEnd end : {SplineEnd::constant, SplineEnd::linear}) {
    const Spline spline({0, 1, -1, 2}, wide, end);
    for (const Index at : {1000, 5000, 20000}) {
      const double before = spline.bias(at) - spline.bias(at - 1), after = spline.bias(at + 1) - spline.bias(at);
      CHECK(std::abs(after - before) < 2e-5);
    }
  }
}

TEST_CASE("the second differences of a spline by log(1 + distance) are continuous", "[position]") {
  const std::vector<Index> wide{0, 1000, 8000, 60000};
  const Spline spline({0, 1, -1, 2}, wide);
  const auto at = [&](double x) { return std::lround(std::expm1(x)); };
  for (const Index knot : {1000, 8000}) {
    const double x = std::log1p(static_cast<double>(knot)), h = 0.05;
    const auto second = [&](double middle) {  // by lags, which are rounded: divided differences at their own places
      const double a = std::log1p(double(at(middle - h))), b = std::log1p(double(at(middle))),
                   c = std::log1p(double(at(middle + h)));
      const double first = (spline.bias(at(middle)) - spline.bias(at(middle - h))) / (b - a),
                   next = (spline.bias(at(middle + h)) - spline.bias(at(middle))) / (c - b);
      return 2 * (next - first) / (c - a);
    };
    CHECK(std::abs(second(x - h) - second(x + h)) < 0.15);
    CHECK(std::abs(second(x)) > 0.3);
  }
}

TEST_CASE("values that are linear in log(1 + distance) give a line", "[position]") {
  std::vector<double> v;
  for (const Index knot : knots) v.push_back(2 - 0.5 * std::log1p(double(knot)));
  const Spline spline(v, knots, SplineEnd::linear);
  for (Index lag = -50; lag <= 50; ++lag)
    CHECK(std::abs(spline.bias(lag) - (2 - 0.5 * std::log1p(double(std::abs(lag))))) < 1e-13);
}

TEST_CASE("knots at equal steps of the logarithm are different and end at the reach", "[position]") {
  CHECK(log_spaced_knots(2, 1) == std::vector<Index>{0, 1});
  CHECK(log_spaced_knots(5, 4) == std::vector<Index>{0, 1, 2, 3, 4});
  const std::vector<Index> many = log_spaced_knots(16, 8191);
  CHECK((many.size() == 16 && many.front() == 0 && many.back() == 8191));
  for (std::size_t k = 1; k < many.size(); ++k) CHECK(many[k] > many[k - 1]);
  for (std::size_t k = 8; k + 1 < many.size(); ++k)
    CHECK(std::abs(double(many[k + 1]) / double(many[k]) - std::exp(std::log(8192.0) / 15)) < 0.02);
  check_invalid([] { log_spaced_knots(1, 9); }, {"count", "1"});
  check_invalid([] { log_spaced_knots(6, 4); }, {"reach", "5", "4"});
}

TEMPLATE_TEST_CASE("a table of a spline is fitted exactly, and noise is told", "[position]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index reach = 60;
  for (const bool two_sides : {true, false})
    for (const SplineEnd end : {SplineEnd::constant, SplineEnd::linear}) {
      std::vector<double> v = some_values(knots.size() * (two_sides ? 2 : 1));
      if (two_sides) v[6] = v[0];  // lag 0 has one value
      const Spline spline(v, knots, end);
      Vector<T> table(2 * reach + 1);
      for (Index lag = -reach; lag <= reach; ++lag) table[lag + reach] = static_cast<T>(spline.bias(lag));
      const SplineFit fit = fit_spline<T>(table, knots, end, two_sides);
      CHECK(fit.largest_error < 1e3 * std::numeric_limits<T>::epsilon());
      CHECK(fit.mean_error <= fit.largest_error);
      for (std::size_t k = 0; k < v.size(); ++k)
        CHECK(std::abs(fit.spline.values()[k] - v[k]) < 1e4 * static_cast<double>(std::numeric_limits<T>::epsilon()));
      table[reach + 30] += T(0.5);
      const SplineFit off = fit_spline<T>(table, knots, end, two_sides);
      CHECK((off.largest_error > 0.2 && off.largest_error < 0.5));
      CHECK((off.mean_error > 0.5 / 121 && off.mean_error < 0.1));
    }
}

TEST_CASE("splines and fits that are not defined are refused", "[position]") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  check_invalid([] { Spline({1}, {0}); }, {"knots", "2"});
  check_invalid([] { Spline({1, 2}, {1, 2}); }, {"knots", "first is 0"});
  check_invalid([] { Spline({1, 2, 3}, {0, 4, 4}); }, {"knots", "4 after 4"});
  check_invalid([] { Spline({1, 2, 3}, {0, 4}); }, {"values", "2", "4", "3"});
  check_invalid([] { Spline({1, nan}, {0, 4}); }, {"values[1]", "nan"});
  check_invalid([] { Spline({1, 2}, {0, 4}).with_parameters(std::vector<double>{1}); }, {"values", "2", "1"});
  const Vector<double> table = Vector<double>::Zero(9);
  check_invalid([&] { fit_spline<double>(table.head(8), {0, 1}); }, {"table", "odd", "8"});
  check_invalid([&] { fit_spline<double>(table, {0, 5}); }, {"knots", "4", "5"});
  check_invalid([&] { fit_spline<double>(table, {}); }, {"knots"});
  Vector<double> infinite = table;
  infinite[3] = -std::numeric_limits<double>::infinity();
  check_invalid([&] { fit_spline<double>(infinite, {0, 1}); }, {"table[3]", "inf"});
}

}  // namespace nprf::test::position_spline
