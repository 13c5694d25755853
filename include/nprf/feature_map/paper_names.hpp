// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "nprf/feature_map/positive.hpp"
#include "nprf/feature_map/trigonometric.hpp"

/// The feature maps under the names that Luo et al. 2021 use (and hyperbolic features), for vectors of d scalars and m
/// random rows.
namespace nprf {

/// Positive features with Gaussian rows.
template <OnlyReal T>
PositiveFeatures<T> prf(Index d, Index m, std::uint64_t seed = 0) {
  return PositiveFeatures<T>({.input_dim = d, .num_features = m, .projection = Projection::gaussian, .seed = seed});
}

/// Trigonometric features with Gaussian rows.
template <OnlyReal T>
TrigonometricFeatures<T> trf(Index d, Index m, std::uint64_t seed = 0) {
  return TrigonometricFeatures<T>(
      {.input_dim = d, .num_features = m, .projection = Projection::gaussian, .seed = seed});
}

/// Positive features with orthogonal rows.
template <OnlyReal T>
PositiveFeatures<T> orf(Index d, Index m, std::uint64_t seed = 0) {
  return PositiveFeatures<T>({.input_dim = d, .num_features = m, .projection = Projection::orthogonal, .seed = seed});
}

/// Hyperbolic features (Choromanski et al. 2021) with orthogonal rows. Each row gives two features, so that there are
/// 2m.
template <OnlyReal T>
HyperbolicFeatures<T> hyperbolic(Index d, Index m, std::uint64_t seed = 0) {
  return HyperbolicFeatures<T>({.input_dim = d, .num_features = m, .projection = Projection::orthogonal, .seed = seed});
}

/// Positive features with rows on the sphere of radius sqrt(d).
template <OnlyReal T>
PositiveFeatures<T> sphere_prf(Index d, Index m, std::uint64_t seed = 0) {
  return PositiveFeatures<T>({.input_dim = d, .num_features = m, .projection = Projection::sphere, .seed = seed});
}

}  // namespace nprf
