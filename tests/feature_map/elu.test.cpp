// SPDX-License-Identifier: MIT
#include "nprf/feature_map/elu.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "feature_map/check_backward.hpp"
#include "feature_map/check_in_place.hpp"
#include "nprf/feature_map/feature_map.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/throws.hpp"

namespace nprf::test::feature_map_elu {

static_assert(FeatureMap<EluFeatures<float>> && FeatureMap<EluFeatures<double>>);
static_assert(is_positive<EluFeatures<float>>());
static_assert(!estimates_exp<EluFeatures<float>>(), "elu has a kernel of its own");

TEMPLATE_TEST_CASE("elu: the features are x + 1 for positive x and otherwise exp(x)", "[feature_map]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const EluFeatures<T> features(7);
  CHECK(features.input_dim() == 7);
  CHECK(features.output_dim() == 7);
  Matrix<T> x(2, 7);
  x << T(0), T(0.5), T(3), T(1e10), T(-0.5), T(-3), T(-50),  //
      T(-0.0), T(1), T(-1), T(2), T(-2), std::numeric_limits<T>::infinity(), -std::numeric_limits<T>::infinity();
  const Matrix<T> phi = features.queries(x);
  REQUIRE(phi.rows() == 2);
  REQUIRE(phi.cols() == 7);
  for (Index i = 0; i < x.size(); ++i) {
    const double t = static_cast<double>(x.data()[i]);
    const double expected = t > 0 ? t + 1 : std::exp(t);
    INFO("x " << t);
    if (std::isfinite(t))
      CHECK(std::abs(static_cast<double>(phi.data()[i]) - expected) <= 2 * epsilon<T> * expected);
    else
      CHECK(static_cast<double>(phi.data()[i]) == expected);
  }
  CHECK(phi(0, 0) == 1);  // both formulas give 1 at 0
  CHECK(features.keys(x) == phi);
}

TEST_CASE("elu: the feature of a NaN is NaN", "[feature_map]") {
  Matrix<float> x = Matrix<float>::Zero(1, 2);
  x(0, 1) = std::numeric_limits<float>::quiet_NaN();
  const Matrix<float> phi = EluFeatures<float>(2).queries(x);
  CHECK(phi(0, 0) == 1);
  CHECK(std::isnan(phi(0, 1)));
}

TEST_CASE("elu: backward is the derivative on both sides of zero", "[feature_map]") {
  const EluFeatures<double> features(6);
  Matrix<double> x = normal<double>(5, 6, 21);
  x(0, 0) = 2;
  x(0, 1) = -2;
  x(0, 2) = 0.001;
  x(0, 3) = -0.001;
  check_backward(features, x, [&](const Matrix<double>& at) { return features.queries(at); });
}

TEMPLATE_TEST_CASE("elu: the derivative is 1 at zero and 0 at large negative x", "[feature_map]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const EluFeatures<T> features(4);
  Matrix<T> x(1, 4);
  x << T(0), T(-0.0), T(5), T(-1000);
  const Matrix<T> dphi = Matrix<T>::Constant(1, 4, T(3));
  const Matrix<T> dx = features.backward(x, features.queries(x), dphi);
  CHECK(dx(0, 0) == 3);
  CHECK(dx(0, 1) == 3);
  CHECK(dx(0, 2) == 3);
  CHECK(dx(0, 3) == 0);
}

TEST_CASE("elu: an input without rows gives features without rows", "[feature_map]") {
  const EluFeatures<float> features(4);
  const Matrix<float> none(0, 4);
  CHECK(features.queries(none).rows() == 0);
  CHECK(features.queries(none).cols() == 4);
  CHECK(features.backward(none, none, none).rows() == 0);
  CHECK(features.backward(none, none, none).cols() == 4);
}

TEST_CASE("elu: arguments of wrong shapes are rejected", "[feature_map]") {
  check_invalid([] { EluFeatures<float>(0); }, {"input_dim: expected at least 1", "got 0"});
  check_invalid([] { EluFeatures<double>(-2); }, {"input_dim", "got -2"});
  check_shapes(EluFeatures<float>(4));
}

TEMPLATE_TEST_CASE("elu: features written into the caller's storage are bitwise equal for any thread count",
                   "[feature_map][threads]", NPRF_TEST_SCALARS) {
  for (const Index n : {0, 1, 127, 128, 129, 700}) check_in_place(EluFeatures<TestType>(9), n);
}

}  // namespace nprf::test::feature_map_elu
