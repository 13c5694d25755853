// SPDX-License-Identifier: MIT
#include "nprf/feature_map/random_features.hpp"

#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "nprf/feature_map/positive.hpp"
#include "nprf/feature_map/trigonometric.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

using namespace nprf;

#define NPRF_RANDOM_MAPS                                                                                    \
  PositiveFeatures<float>, PositiveFeatures<double>, HyperbolicFeatures<float>, HyperbolicFeatures<double>, \
      TrigonometricFeatures<float>, TrigonometricFeatures<double>

static_assert(!std::convertible_to<Matrix<float>, PositiveFeatures<float>>, "a matrix is no map by accident");
static_assert(!std::convertible_to<FeatureOptions, PositiveFeatures<float>>, "options are no map by accident");

TEMPLATE_TEST_CASE("a random map draws its projection in double and rounds it", "[feature_map]", NPRF_RANDOM_MAPS) {
  using T = typename TestType::Scalar;
  for (const Projection projection : {Projection::gaussian, Projection::orthogonal, Projection::sphere}) {
    const FeatureOptions options{.input_dim = 5, .num_features = 12, .projection = projection, .seed = 77};
    const TestType features(options);
    CHECK(features.input_dim() == 5);
    CHECK(features.num_features() == 12);
    CHECK(features.projection() == draw_projection(options).template cast<T>());
    CHECK(features.projection() == TestType(options).projection());
  }
}

TEMPLATE_TEST_CASE("a random map takes its projection from outside", "[feature_map]", NPRF_RANDOM_MAPS) {
  using T = typename TestType::Scalar;
  const FeatureOptions options{.input_dim = 5, .num_features = 12, .seed = 78};
  const TestType drawn(options), given(Matrix<T>(draw_projection(options).template cast<T>()));
  const Matrix<T> x = test::normal<T>(9, 5, 1);
  CHECK(given.input_dim() == 5);
  CHECK(given.num_features() == 12);
  CHECK(given.output_dim() == drawn.output_dim());
  CHECK(given.projection() == drawn.projection());
  CHECK(given.queries(x) == drawn.queries(x));
  CHECK(given.keys(x) == drawn.keys(x));

  // a projection that no one draws: W = I, so that w_r.x = x_r
  const TestType identity(Matrix<T>(Matrix<T>::Identity(3, 3)));
  CHECK(identity.projection() == Matrix<T>::Identity(3, 3));
}

TEMPLATE_TEST_CASE("a projection that is empty or not finite is refused", "[feature_map]", NPRF_RANDOM_MAPS) {
  using T = typename TestType::Scalar;
  test::check_invalid([] { TestType(Matrix<T>(0, 3)); }, {"rows: expected an m x d projection", "got 0 x 3"});
  test::check_invalid([] { TestType(Matrix<T>(3, 0)); }, {"rows: expected an m x d projection", "got 3 x 0"});
  const T infinity = std::numeric_limits<T>::infinity();
  for (const T wrong : {std::numeric_limits<T>::quiet_NaN(), infinity, -infinity})
    for (const Index place : {0, 7, 14}) {
      Matrix<T> rows = Matrix<T>::Ones(3, 5);
      rows.data()[place] = wrong;
      test::check_invalid([&] { TestType{rows}; }, {"rows: expected finite scalars", "NaN or an infinity"});
    }
}

TEMPLATE_TEST_CASE("a random map without rows or columns is refused", "[feature_map]", NPRF_RANDOM_MAPS) {
  test::check_invalid([] { TestType(FeatureOptions{.input_dim = 0, .num_features = 3}); },
                      {"input_dim: expected at least 1", "got 0"});
  test::check_invalid([] { TestType(FeatureOptions{.input_dim = 3, .num_features = -1}); },
                      {"num_features: expected at least 1", "got -1"});
}

TEMPLATE_TEST_CASE("a copy of a map is the same map", "[feature_map]", NPRF_RANDOM_MAPS) {
  using T = typename TestType::Scalar;
  const Matrix<T> x = test::normal<T>(4, 6, 1);
  TestType original(FeatureOptions{.input_dim = 6, .num_features = 5});
  const TestType copy = original;
  original = TestType(FeatureOptions{.input_dim = 6, .num_features = 5, .seed = 1});
  CHECK(copy.queries(x) == TestType(FeatureOptions{.input_dim = 6, .num_features = 5}).queries(x));
  CHECK(copy.queries(x) != original.queries(x));
}
