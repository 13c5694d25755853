// SPDX-License-Identifier: MIT
#include "nprf/position/curve.hpp"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "nprf/position/alibi_sum.hpp"
#include "nprf/position/kerple.hpp"
#include "nprf/position/spline.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::position_curve {

namespace {

constexpr Index reach = 40;

// calls use(name, curve, parameters) for a curve of each kind
template <class Use>
void for_each_curve(Use&& use) {
  use("KERPLE, log", KerpleLog(1.5, 0.3), std::vector<double>{1.5, 0.3});
  use("KERPLE, power", KerplePower(0.2, 0.7), std::vector<double>{0.2, 0.7});
  use("a sum of ALiBi", AlibiSum({0.5, -1, 0}, {0.5, 0.01, 0}), std::vector<double>{0.5, -1, 0, 0.5, 0.01, 0});
  const std::vector<double> values{1, 0.5, -0.25, -2, 3};
  use("a spline", Spline(values, {0, 1, 4, 12, 30}), values);
  std::vector<double> both = values;
  both.insert(both.end(), {0.5, 2, -1, 0, 1});
  use("a spline of two sides, linear", Spline(both, {0, 1, 4, 12, 30}, SplineEnd::linear), both);
}

}  // namespace

TEMPLATE_TEST_CASE("the table of a position is its curve, with straight lines beyond", "[position]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  for_each_curve([](const std::string& name, const auto& curve, const auto&) {
    INFO(name);
    const CurvePosition<T, std::remove_cvref_t<decltype(curve)>> position(curve, reach);
    CHECK(position.is_smooth());
    CHECK((position.bias().first == -reach && position.bias().last() == reach));
    for (Index lag = -reach; lag <= reach; ++lag) CHECK(position.bias()[lag] == double(T(curve.bias(lag))));
    for (const Index sign : {-1, 1}) {
      const double end = curve.bias(sign * reach), slope = end - curve.bias(sign * (reach - 1));
      CHECK(std::abs(position.bias()[sign * (reach + 7)] - (end + 7 * slope)) <= 20 * epsilon<T> * (1 + std::abs(end)));
    }
    CHECK(position.with_reach(90).bias()[75] == double(T(curve.bias(75))));
  });
}

TEST_CASE("gradients of a curve's parameters are those of the biases that are used, also beyond the table",
          "[position]") {
  for_each_curve([](const std::string& name, const auto& curve, const std::vector<double>& parameters) {
    INFO(name);
    using C = std::remove_cvref_t<decltype(curve)>;
    const Index first = -70, count = 141;
    const Vector<double> db = normal_vector<double>(count, 3);
    const auto loss = [&](const std::vector<double>& p) {
      const CurvePosition<double, C> position(curve.with_parameters(p), reach);
      long double sum = 0;
      for (Index l = 0; l < count; ++l) sum += static_cast<long double>(db[l]) * position.bias()[first + l];
      return sum;
    };
    Matrix<double> d;
    CurvePosition<double, C>(curve, reach).gradient(first, {db.data(), static_cast<std::size_t>(count)}, d);
    REQUIRE((d.rows() == Index(parameters.size()) && d.cols() == 1));
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      const double h = 1e-5;
      std::vector<double> more = parameters, less = parameters;
      more[k] += h, less[k] -= h;
      const double expected = static_cast<double>((loss(more) - loss(less)) / (2 * static_cast<long double>(h)));
      CHECK(std::abs(d(Index(k), 0) - expected) <= 1e-6 * (1 + std::abs(expected)));
    }
    Matrix<double> none;
    CurvePosition<double, C>(curve, reach).gradient(0, {}, none);
    CHECK((none.rows() == d.rows() && none.isZero(0)));
  });
}

TEST_CASE("the tangent of a curve has all derivatives, each at most about 1", "[position]") {
  for_each_curve([](const std::string& name, const auto& curve, const std::vector<double>& parameters) {
    INFO(name);
    const CurvePosition<double, std::remove_cvref_t<decltype(curve)>> position(curve, reach);
    const Index first = -70, count = 141;
    Vector<double> w(count);
    position.tangent({first, first + count - 1}, w.data());
    CHECK((w.cwiseAbs().maxCoeff() > 0.1 && w.cwiseAbs().maxCoeff() <= double(parameters.size()) + 1e-12));
    // w is a combination of the derivatives, with a factor of at least 1 / the largest lag's for each
    Matrix<double> derivatives(count, Index(parameters.size())), d;
    for (Index l = 0; l < count; ++l) {
      const double one = 1;
      position.gradient(first + l, {&one, 1}, d);
      derivatives.row(l) = d.col(0).transpose();
    }
    const Vector<double> largest = derivatives.cwiseAbs().colwise().maxCoeff().transpose();
    Vector<double> expected = Vector<double>::Zero(count);
    for (Index k = 0; k < largest.size(); ++k) {
      const double sign = k == 0 || k == 3 || k == 5 || k == 6 || k == 9 ? 1 : -1;
      expected += sign / largest[k] * derivatives.col(k);
    }
    CHECK((w - expected).cwiseAbs().maxCoeff() < 1e-12);
  });
}

TEST_CASE("biases of the published formulas", "[position]") {
  CHECK(KerpleLog(2, 3).bias(-5) == -2 * std::log1p(15.0));
  CHECK(KerpleLog(2, 3).bias(5) == KerpleLog(2, 3).bias(-5));
  CHECK(std::abs(KerplePower(2, 0.5).bias(9) + 6) < 1e-14);
  CHECK((KerplePower(2, 0).bias(0) == 0 && KerplePower(2, 0).bias(3) == -2));
  // one term of ALiBi
  CHECK(std::abs(AlibiSum({0}, {0.25}).bias(-8) + 2) < 1e-15);
  CHECK(std::abs(AlibiSum({std::log(0.5), std::log(0.5)}, {0.25, 0.25}).bias(8) + 2) < 1e-15);
  CHECK(AlibiSum({0, 0}, {1e3, 0}).bias(1000) == 0);  // the other underflows
}

TEST_CASE("parameters out of their range are refused", "[position]") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  check_invalid([] { KerpleLog(nan, 1); }, {"r1", "nan"});
  check_invalid([] { KerpleLog(1, -0.5); }, {"r2", "-0.5"});
  check_invalid([] { KerpleLog(1, infinity); }, {"r2", "inf"});
  check_invalid([] { KerplePower(infinity, 1); }, {"r1", "inf"});
  check_invalid([] { KerplePower(1, 2.5); }, {"r2", "2.5"});
  check_invalid([] { AlibiSum({}, {}); }, {"slopes", "none"});
  check_invalid([] { AlibiSum({1}, {1, 2}); }, {"log_weights", "2", "1"});
  check_invalid([] { AlibiSum({0, nan}, {1, 2}); }, {"log_weights[1]", "nan"});
  check_invalid([] { KerpleLogPosition<float>(KerpleLog(1, 1), 0); }, {"reach", "0"});
  check_invalid([] { KerpleLogPosition<float>(KerpleLog(1e38, 1e38), 9); }, {"curve", "lag -9"});
  check_invalid([] { KerpleLog(1, 1).with_parameters(std::vector<double>{1}); }, {"r:", "2", "1"});
  check_invalid([] { AlibiSum({0}, {1}).with_parameters(std::vector<double>{1}); }, {"parameters", "2", "1"});
}

}  // namespace nprf::test::position_curve
