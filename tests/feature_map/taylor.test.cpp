// SPDX-License-Identifier: MIT
#include "nprf/feature_map/taylor.hpp"

#include <cmath>
#include <limits>

#include "feature_map/check_backward.hpp"
#include "feature_map/statistics.hpp"
#include "nprf/feature_map/feature_map.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::feature_map_taylor {

static_assert(FeatureMap<TaylorFeatures<float>> && FeatureMap<TaylorFeatures<double>>);
static_assert(estimates_exp<TaylorFeatures<float>>() && !is_positive<TaylorFeatures<float>>());

namespace {

// 1 + x.y + (x_1 y_1 + ... + x_s y_s)^2 / 2
double series(const Matrix<double>& x, const Matrix<double>& y, Index s) {
  const double second = x.row(0).head(s).dot(y.row(0).head(s));
  return 1 + x.row(0).dot(y.row(0)) + second * second / 2;
}

QuadraticFeatures<double> with_curvature(Index d, Index first, Index second) {
  return {d,
          {first, second, 0.3 * normal_vector<double>(second, 3).cwiseAbs(), 0.2 * normal_vector<double>(d, 4), -0.7}};
}

}  // namespace

TEMPLATE_TEST_CASE("Taylor: a product of features is the series of exp", "[feature_map]", NPRF_TEST_SCALARS) {
  using T = TestType;
  CHECK(TaylorFeatures<T>({.input_dim = 3}).directions() == 0);
  for (const Index d : {1, 2, 7, 33})
    for (const Index s : {Index{0}, Index{1}, d / 2, d}) {
      const TaylorFeatures<T> features({.input_dim = d, .directions = s});
      CHECK(features.directions() == s);
      REQUIRE(features.output_dim() == 1 + d + s * (s + 1) / 2);
      const Matrix<T> x = normal<T>(3, d, 1), y = normal<T>(4, d, 2);
      const Matrix<double> K = kernel(features, x, y);
      for (Index i = 0; i < 3; ++i)
        for (Index j = 0; j < 4; ++j) {
          const Matrix<double> xi = x.row(i).template cast<double>(), yj = y.row(j).template cast<double>();
          // the sum of the magnitudes of the terms is at most (1 + |x||y|)^2
          const double magnitude = std::pow(1 + xi.norm() * yj.norm(), 2);
          INFO("d " << d << " s " << s);
          CHECK(std::abs(K(i, j) - series(xi, yj, s)) <= 8 * epsilon<T> * magnitude);
        }
    }
}

TEST_CASE("quadratic features have the factor of their curvature", "[feature_map]") {
  const Index d = 4;
  const QuadraticFeatures<double> features = with_curvature(d, 3, 2);
  const Matrix<double> x = normal<double>(5, d, 1);
  Vector<double> log_factor;
  const Matrix<double> q = features.queries(x, {}, &log_factor);
  for (Index i = 0; i < 5; ++i) {
    const double expected = (x.row(i).transpose().cwiseAbs2().cwiseProduct(features.terms().curvature)).sum() / 2 - 0.7;
    CHECK(std::abs(log_factor[i] - expected) <= 16 * epsilon<double> * (x.row(i).squaredNorm() + 0.7));
  }
  double log_key;
  const Matrix<double> k = features.keys(x, {}, &log_key);
  CHECK(log_key == log_factor.maxCoeff());
  for (Index i = 0; i < 5; ++i)
    CHECK((k.row(i) * std::exp(log_key - log_factor[i]) - q.row(i)).cwiseAbs().maxCoeff() <=
          16 * epsilon<double> * q.row(i).cwiseAbs().maxCoeff());
}

TEST_CASE("Taylor: backward is the derivative of the features", "[feature_map]") {
  for (const double size : {0.2, 1.0, 1.5}) {
    const Matrix<double> x = size * normal<double>(4, 6, 21);
    for (const Index s : {0, 1, 4, 6}) {
      const TaylorFeatures<double> features({.input_dim = 6, .directions = s});
      check_backward(features, x, queries_like(features, x));
      check_backward_with_factors(features, x);
    }
    for (const QuadraticFeatures<double>& features : {with_curvature(6, 6, 3), with_curvature(6, 2, 2)}) {
      check_backward(features, x, queries_like(features, x));
      check_backward(features, x, keys_like(features, x));
      check_backward_with_factors(features, x);
    }
  }
}

TEST_CASE("Taylor: options that do not fit together are rejected", "[feature_map]") {
  using Features = TaylorFeatures<float>;
  check_invalid([] { Features({.input_dim = 0}); }, {"input_dim: expected at least 1, got 0"});
  check_invalid([] { Features({.input_dim = 4, .directions = 5}); }, {"directions: expected 0 to 4, got 5"});
  check_invalid([] { Features({.input_dim = 4, .directions = -1}); }, {"directions: expected 0 to 4, got -1"});
  check_invalid([] { QuadraticFeatures<float>(4, {5, 0, {}, {}}); }, {"first: expected 0 to 4", "got 5"});
  check_invalid(
      [] {
        QuadraticFeatures<float>(4, {4, 2, Vector<float>::Zero(1), {}});
      },
      {"mean_square: expected 2 scalars, got 1"});
  check_invalid(
      [] {
        QuadraticFeatures<float>(4, {4, 0, {}, Vector<float>::Zero(3)});
      },
      {"curvature: expected 4 scalars or none, got 3"});
  check_invalid(
      [] {
        QuadraticFeatures<float>(4, {4, 0, {}, {}, std::numeric_limits<float>::infinity()});
      },
      {"terms: expected finite scalars"});
}

}  // namespace nprf::test::feature_map_taylor
