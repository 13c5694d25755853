// SPDX-License-Identifier: MIT
#include "nprf/feature_map/paper_names.hpp"

#include <concepts>
#include <cstdint>

#include "support/catch.hpp"

namespace nprf::test::feature_map_paper_names {

static_assert(std::same_as<decltype(prf<float>(2, 3)), PositiveFeatures<float>>);
static_assert(std::same_as<decltype(orf<double>(2, 3)), PositiveFeatures<double>>);
static_assert(std::same_as<decltype(sphere_prf<float>(2, 3)), PositiveFeatures<float>>);
static_assert(std::same_as<decltype(hyperbolic<float>(2, 3)), HyperbolicFeatures<float>>);
static_assert(std::same_as<decltype(trf<double>(2, 3)), TrigonometricFeatures<double>>);

TEMPLATE_TEST_CASE("each of the paper's names gives the map with its projection", "[feature_map]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index d = 5, m = 12;
  const auto rows = [&](Projection projection, std::uint64_t seed) -> Matrix<T> {
    return draw_projection<T>({.input_dim = d, .num_features = m, .projection = projection, .seed = seed});
  };
  CHECK(prf<T>(d, m, 9).projection() == rows(Projection::gaussian, 9));
  CHECK(trf<T>(d, m, 9).projection() == rows(Projection::gaussian, 9));
  CHECK(hyperbolic<T>(d, m, 9).projection() == rows(Projection::orthogonal, 9));
  CHECK(hyperbolic<T>(d, m).output_dim() == 2 * m);
  CHECK(orf<T>(d, m, 9).projection() == rows(Projection::orthogonal, 9));
  CHECK(sphere_prf<T>(d, m, 9).projection() == rows(Projection::sphere, 9));

  CHECK(prf<T>(d, m).projection() == rows(Projection::gaussian, 0));
  CHECK(trf<T>(d, m).projection() == rows(Projection::gaussian, 0));
  CHECK(hyperbolic<T>(d, m).projection() == rows(Projection::orthogonal, 0));
  CHECK(orf<T>(d, m).projection() == rows(Projection::orthogonal, 0));
  CHECK(sphere_prf<T>(d, m).projection() == rows(Projection::sphere, 0));
}

}  // namespace nprf::test::feature_map_paper_names
