// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <nprf/nprf.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace demo {

/// Those that estimate softmax; with_feature_map accepts "elu", too.
inline const std::vector<std::string> random_maps{"prf", "orf", "hyperbolic", "trf", "sphere"};

/// Calls use(map) with the feature map of that name, for vectors of d scalars and m random vectors.
template <class Use>
auto with_feature_map(std::string_view name, nprf::Index d, nprf::Index m, std::uint64_t seed, Use&& use) {
  if (name == "prf") return use(nprf::prf<float>(d, m, seed));
  if (name == "orf") return use(nprf::orf<float>(d, m, seed));
  if (name == "trf") return use(nprf::trf<float>(d, m, seed));
  if (name == "sphere") return use(nprf::sphere_prf<float>(d, m, seed));
  if (name == "elu") return use(nprf::EluFeatures<float>(d));
  nprf::require(name == "hyperbolic", "map: expected one of those of random_maps or elu, got ", name);
  return use(nprf::hyperbolic<float>(d, m, seed));
}

}  // namespace demo
