// SPDX-License-Identifier: MIT
#include "nprf/feature_map/random_features.hpp"

#include <concepts>
#include <cstdint>
#include <limits>
#include <vector>

#include "feature_map/statistics.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/positive.hpp"
#include "nprf/feature_map/trigonometric.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::feature_map_random_features {

template <class F>
concept Redrawable = requires(const F& features) {
  { redrawn(features, 1) } -> std::same_as<F>;
};

static_assert(Redrawable<PositiveFeatures<float>> && Redrawable<TrigonometricFeatures<double>>);
static_assert(!Redrawable<EluFeatures<float>>, "elu has no random projection");

#define NPRF_RANDOM_MAPS                                                                                    \
  PositiveFeatures<float>, PositiveFeatures<double>, HyperbolicFeatures<float>, HyperbolicFeatures<double>, \
      TrigonometricFeatures<float>, TrigonometricFeatures<double>

static_assert(!std::convertible_to<Matrix<float>, PositiveFeatures<float>>, "no implicit conversion from a matrix");
static_assert(!std::convertible_to<FeatureOptions, PositiveFeatures<float>>, "no implicit conversion from options");

TEMPLATE_TEST_CASE("a random map draws its projection in double and rounds it", "[feature_map]", NPRF_RANDOM_MAPS) {
  using T = typename TestType::Scalar;
  for (const Projection projection : {Projection::gaussian, Projection::orthogonal, Projection::sphere,
                                      Projection::simplex, Projection::sphere_simplex}) {
    const FeatureOptions options{.input_dim = 5, .num_features = 12, .projection = projection, .seed = 77};
    const TestType features(options);
    CHECK(features.input_dim() == 5);
    CHECK(features.num_features() == 12);
    CHECK(features.projection() == draw_projection<T>(options));
    CHECK(features.projection() == TestType(options).projection());
  }
}

TEMPLATE_TEST_CASE("a random map accepts the caller's projection", "[feature_map]", NPRF_RANDOM_MAPS) {
  using T = typename TestType::Scalar;
  const FeatureOptions options{.input_dim = 5, .num_features = 12, .seed = 78};
  const TestType drawn(options), given(draw_projection<T>(options));
  const Matrix<T> x = normal<T>(9, 5, 1);
  CHECK(given.input_dim() == 5);
  CHECK(given.num_features() == 12);
  CHECK(given.output_dim() == drawn.output_dim());
  CHECK(given.projection() == drawn.projection());
  CHECK(given.queries(x) == drawn.queries(x));
  CHECK(given.keys(x) == drawn.keys(x));

  // a projection that is not random: W = I, so that w_r.x = x_r
  const TestType identity(Matrix<T>(Matrix<T>::Identity(3, 3)));
  CHECK(identity.projection() == Matrix<T>::Identity(3, 3));
}

TEMPLATE_TEST_CASE("a random map rejects an empty or non-finite projection", "[feature_map]", NPRF_RANDOM_MAPS) {
  using T = typename TestType::Scalar;
  check_invalid([] { TestType(Matrix<T>(0, 3)); }, {"rows: expected an m x d projection", "got 0 x 3"});
  check_invalid([] { TestType(Matrix<T>(3, 0)); }, {"rows: expected an m x d projection", "got 3 x 0"});
  const T infinity = std::numeric_limits<T>::infinity();
  for (const T wrong : {std::numeric_limits<T>::quiet_NaN(), infinity, -infinity})
    for (const Index place : {0, 7, 14}) {
      Matrix<T> rows = Matrix<T>::Ones(3, 5);
      rows.data()[place] = wrong;
      check_invalid([&] { TestType{rows}; }, {"rows: expected finite scalars", "NaN or an infinity"});
    }
}

TEMPLATE_TEST_CASE("a random map rejects sizes below 1", "[feature_map]", NPRF_RANDOM_MAPS) {
  check_invalid([] { TestType(FeatureOptions{.input_dim = 0, .num_features = 3}); },
                {"input_dim: expected at least 1", "got 0"});
  check_invalid([] { TestType(FeatureOptions{.input_dim = 3, .num_features = -1}); },
                {"num_features: expected at least 1", "got -1"});
}

TEMPLATE_TEST_CASE("redrawn: the result is the map with the new seed", "[feature_map]", NPRF_RANDOM_MAPS) {
  using T = typename TestType::Scalar;
  for (const Projection projection : {Projection::gaussian, Projection::orthogonal, Projection::sphere,
                                      Projection::simplex, Projection::sphere_simplex}) {
    const FeatureOptions options{.input_dim = 6, .num_features = 11, .projection = projection, .seed = 5};
    const TestType features(options), other = redrawn(features, 6);
    CHECK(other.input_dim() == 6);
    CHECK(other.num_features() == 11);
    CHECK(other.output_dim() == features.output_dim());
    CHECK(other.options().projection == projection);
    CHECK(other.options().seed == 6);

    // every row of the projection differs, and the old map is unchanged
    for (Index r = 0; r < 11; ++r) CHECK(other.projection().row(r) != features.projection().row(r));
    CHECK(same_bits<T>(features.projection(), TestType(options).projection()));

    // the bits are those of a map constructed with the seed, whatever the previous seed
    const TestType made(FeatureOptions{.input_dim = 6, .num_features = 11, .projection = projection, .seed = 6});
    CHECK(same_bits<T>(other.projection(), made.projection()));
    CHECK(same_bits<T>(redrawn(redrawn(features, 1234), 6).projection(), made.projection()));
    CHECK(same_bits<T>(redrawn(features, 5).projection(), features.projection()));
    // all 64 bits of the seed count
    CHECK(redrawn(features, 6 + (std::uint64_t{1} << 63)).projection() != made.projection());
    const Matrix<T> x = normal<T>(9, 6, 1);
    CHECK(same_bits<T>(other.queries(x), made.queries(x)));
    CHECK(same_bits<T>(other.keys(x), made.keys(x)));
  }
}

TEMPLATE_TEST_CASE("redrawn: a map with the caller's projection is rejected", "[feature_map]", NPRF_RANDOM_MAPS) {
  using T = typename TestType::Scalar;
  const TestType given(Matrix<T>(Matrix<T>::Identity(3, 3)));
  check_invalid([&] { redrawn(given, 1); }, {"expected a projection that was drawn", "got the caller's rows"});
  check_invalid([&] { given.options(); }, {"features:", "got the caller's rows"});
}

TEMPLATE_TEST_CASE("the mean of phi(x).phi(y) over seeds is exp(x.y)", "[feature_map][monte_carlo]", NPRF_RANDOM_MAPS) {
  using T = typename TestType::Scalar;
  for (const Projection projection : {Projection::gaussian, Projection::orthogonal, Projection::simplex})
    for (const Index d : {1, 6})
      for (const Index m : {4, 9}) {
        const std::vector<Matrix<T>> v = two_vectors<T>(d, 0.7);
        const auto make = [&](std::uint64_t seed) {
          return TestType({.input_dim = d, .num_features = m, .projection = projection, .seed = seed});
        };
        for (const Matrix<T>& y : {v[1], Matrix<T>(-v[1]), Matrix<T>(v[0] / 2), Matrix<T>(-v[0] / 2)}) {
          INFO("projection " << static_cast<int>(projection) << " d " << d << " m " << m);
          CHECK(Statistics(estimates(make, v[0], y, 3000))
                    .mean_sigmas(exp_xy(v[0].template cast<double>(), y.template cast<double>())) <= five_sigma);
        }
      }
}

}  // namespace nprf::test::feature_map_random_features
