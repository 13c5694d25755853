// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/cuda/feature_map/task.cuh"
#include "nprf/cuda/feature_map/token_tile.cuh"

namespace nprf::cuda {

/// Feature f of a token, or if `second` is true feature m + f:
///
///     exponential     2^(scale z + base), or 2^(-scale z + base) if second, of the projection z
///     trigonometric   base sin(scale z), or base cos(scale z) if second, of the projection z
///     elu             elu(z) + 1 of the coordinate z
///     quadratic       base z, of the feature z without the row's factor
template <FeatureKind kind, bool second = false>
__device__ __forceinline__ float feature_of(float z, float scale, float base) {
  if constexpr (is_exponential<kind>) {
    return exp2f(fmaf(z, second ? -scale : scale, base));
  } else if constexpr (kind == FeatureKind::trigonometric) {
    constexpr float inverse_pi = 0.318309886f;
    float sine, cosine;
    sincospif(z * scale * inverse_pi, &sine, &cosine);  // sinf would need local memory for huge arguments
    return base * (second ? cosine : sine);
  } else if constexpr (kind == FeatureKind::elu) {
    return z > 0 ? z + 1 : expf(z);
  } else {
    static_assert(kind == FeatureKind::quadratic);
    return base * z;
  }
}

}  // namespace nprf::cuda
