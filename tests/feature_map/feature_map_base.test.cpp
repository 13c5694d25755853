// SPDX-License-Identifier: MIT
#include "nprf/feature_map/feature_map_base.hpp"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <limits>

#include "feature_map/check_backward.hpp"
#include "feature_map/check_in_place.hpp"
#include "nprf/feature_map/centred.hpp"
#include "nprf/feature_map/positive.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "nprf/feature_map/trigonometric.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::feature_map_base {

namespace {

#define NPRF_MAPS_OF(T) \
  PositiveFeatures<T>, HyperbolicFeatures<T>, TrigonometricFeatures<T>, TaylorFeatures<T>, Centred<PositiveFeatures<T>>
#if NPRF_TEST_SANITIZED
#define NPRF_BASED_MAPS NPRF_MAPS_OF(float)
#else
#define NPRF_BASED_MAPS NPRF_MAPS_OF(float), NPRF_MAPS_OF(double)
#endif

// a map of d channels, with m random vectors or directions
template <class F>
F make(Index d, Index m, Projection projection = Projection::gaussian) {
  using T = typename F::Scalar;
  if constexpr (std::derived_from<F, RandomFeatures<T>>)
    return F({.input_dim = d, .num_features = m, .projection = projection, .seed = 3});
  else if constexpr (std::same_as<F, TaylorFeatures<T>>)
    return F({.input_dim = d, .directions = std::min(d, m)});
  else
    return {make<PositiveFeatures<T>>(d, m),
            {normal_vector<T>(d, 1) / 4, normal_vector<T>(d, 2) / 4, normal<T>(d, d, 3) / std::sqrt(static_cast<T>(d)),
             normal<T>(d, d, 4) / std::sqrt(static_cast<T>(d))}};
}

}  // namespace

TEMPLATE_TEST_CASE("a row scale gives the features and factors of the scaled rows", "[feature_map]", NPRF_BASED_MAPS) {
  using T = typename TestType::Scalar;
  const Index n = 131, d = 9;
  const TestType features = make<TestType>(d, 13);
  const Matrix<T> x = normal<T>(n, d, 8);
  Vector<T> scale(n);
  for (Index i = 0; i < n; ++i) scale[i] = std::ldexp(T(1), static_cast<int>(5 * i % 4) - 3);  // exact
  const Matrix<T> scaled = scale.asDiagonal() * x;
  const RowScale<T> factors(scale.data(), static_cast<std::size_t>(n));
  Vector<T> log_q, log_q_scaled;
  T log_k = 0, log_k_scaled = 1;
  CHECK(same_bits<T>(features.queries(x, factors, &log_q), features.queries(scaled, {}, &log_q_scaled)));
  CHECK(same_bits<T>(features.keys(x, factors, &log_k), features.keys(scaled, {}, &log_k_scaled)));
  CHECK(same_bits<T>(log_q, log_q_scaled));
  CHECK(log_k == log_k_scaled);
}

TEMPLATE_TEST_CASE("an input without rows gives features without rows", "[feature_map]", NPRF_BASED_MAPS) {
  using T = typename TestType::Scalar;
  const TestType features = make<TestType>(4, 9);
  const Matrix<T> none(0, 4);
  Vector<T> log_q = Vector<T>::Ones(3);
  T log_k = std::numeric_limits<T>::quiet_NaN();
  const Matrix<T> q = features.queries(none, {}, &log_q), k = features.keys(none, {}, &log_k);
  CHECK((q.rows() == 0 && q.cols() == features.output_dim()));
  CHECK((k.rows() == 0 && k.cols() == features.output_dim()));
  CHECK(log_q.size() == 0);
  CHECK(std::isfinite(log_k));
  const Matrix<T> dx = features.backward(none, q, q);
  CHECK((dx.rows() == 0 && dx.cols() == 4));
}

TEMPLATE_TEST_CASE("no bit of a feature depends on where its row or its storage lies", "[feature_map]",
                   NPRF_BASED_MAPS) {
  using T = typename TestType::Scalar;
  const Index n = 20, d = 7;
  const TestType features = make<TestType>(d, 9);
  const Index r = features.output_dim();
  const Matrix<T> wide = normal<T>(n + 10, d + 16, 8);
  Workspace workspace;
  const Team team(workspace);
  for (Index shift = 0; shift < 16; ++shift) {
    const auto x = wide.block(3, shift, n, d);
    const Matrix<T> copy = x, q = features.queries(copy), k = features.keys(copy);
    Matrix<T> phi(n, r + 16);
    features.queries(x, {}, phi.middleCols(shift, r), team);
    CHECK(same_bits<T>(phi.middleCols(shift, r), q));
    features.keys(x, {}, phi.middleCols(shift, r), team);
    CHECK(same_bits<T>(phi.middleCols(shift, r), k));
  }
}

TEMPLATE_TEST_CASE("backward is the derivative of random features, for every projection", "[feature_map]",
                   PositiveFeatures<double>, HyperbolicFeatures<double>, TrigonometricFeatures<double>) {
  for (const Projection projection : {Projection::gaussian, Projection::orthogonal, Projection::sphere,
                                      Projection::simplex, Projection::sphere_simplex})
    for (const double size : {0.2, 1.0, 1.5}) {
      const TestType features = make<TestType>(5, 11, projection);
      const Matrix<double> x = size * normal<double>(4, 5, 21);
      check_backward(features, x, queries_like(features, x));
      check_backward(features, x, keys_like(features, x));
      check_backward_with_factors(features, x);
    }
}

TEMPLATE_TEST_CASE("features written into the caller's storage are bitwise equal for any thread count",
                   "[feature_map][threads]", NPRF_BASED_MAPS) {
  check_in_place_sizes([](Index d, Index m) { return make<TestType>(d, m); });
}

TEMPLATE_TEST_CASE("arguments of wrong shapes are rejected", "[feature_map]", NPRF_BASED_MAPS) {
  check_shapes(make<TestType>(4, 3));
}

}  // namespace nprf::test::feature_map_base
