// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/reductions.cuh"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/feature_map/coordinates.cuh"
#include "nprf/cuda/feature_map/projection.cuh"
#include "nprf/cuda/feature_map/task.cuh"

namespace nprf::cuda {

/// Shared memory for the features of one token.
struct TokenScratch {
  float* x;        // (task.tiles(),d_padded)  the token x', with a centring also its coordinates z (FeatureTask)
  float* scratch;  // (OneTokenShape::warps)  for reductions
};

/// Channel k of a token of the matrix z; 0 from d on.
template <Storage S>
__device__ __forceinline__ float channel_of(const FeatureTask<S>& task, int z, int token, int k) {
  if (k >= task.x.channels) return 0;
  return to_float(task.x.of(z)[token * task.x.token_stride + k * task.x.channel_stride]);
}

/// Sets phi (r) to the features of a token with coordinates z. On entry phi has its projections (m), if the features
/// are functions of them. Exponential features are divided by exp(largest), trigonometric and quadratic ones by the
/// row's factor, and elu features are not divided.
template <FeatureKind kind, Storage S>
__device__ __forceinline__ void store_token_features(const FeatureTask<S>& task, int head, const float* z,
                                                     float largest, float* phi) {
  using Shape = OneTokenShape;
  const int count = has_projections<kind> ? task.m : task.r;
  constexpr float unit = exponent_unit<kind>;
  const float base = is_exponential<kind> ? -largest * unit : 1.0f;
  for (int f = static_cast<int>(threadIdx.x); f < count; f += Shape::threads) {
    float e;
    if constexpr (has_projections<kind>)
      e = phi[f];
    else if constexpr (is_quadratic<kind>)
      e = task.quadratic.of(head).template feature<Shape>(f, z);
    else
      e = z[f];
    phi[f] = feature_of<kind>(e, unit, base);
    if constexpr (has_pairs<kind>) phi[count + f] = feature_of<kind, true>(e, unit, base);
  }
}

template <Storage S>
__device__ __forceinline__ void store_token_features(const FeatureTask<S>& task, int head, const float* z,
                                                     float largest, float* phi) {
  switch (task.kind) {
    case FeatureKind::positive: return store_token_features<FeatureKind::positive>(task, head, z, largest, phi);
    case FeatureKind::hyperbolic: return store_token_features<FeatureKind::hyperbolic>(task, head, z, largest, phi);
    case FeatureKind::trigonometric:
      return store_token_features<FeatureKind::trigonometric>(task, head, z, largest, phi);
    case FeatureKind::elu: return store_token_features<FeatureKind::elu>(task, head, z, largest, phi);
    case FeatureKind::quadratic: return store_token_features<FeatureKind::quadratic>(task, head, z, largest, phi);
  }
}

/// Sets phi (r) to the features of the token x of the matrix z, divided by exp(log-scale), and returns the log-scale.
/// It is the logarithm of the largest feature if they are exponential, that of the row's factor if they are
/// trigonometric or quadratic, and 0 for elu. It is NaN for a non-finite token. The token is normalised in place. All
/// threads of a block of OneTokenShape must call it; phi is complete when it returns. O(d m).
template <Storage S>
__device__ __forceinline__ float compute_token_features(const FeatureTask<S>& task, int z, const TokenScratch& shared,
                                                        float* phi) {
  using Shape = OneTokenShape;
  const auto& [x, scratch] = shared;
  const int head = z % task.x.heads, thread = static_cast<int>(threadIdx.x);
  const NormalisedToken normalised = normalise<Shape>(task, x, scratch);
  const TokenCoordinates at = coordinates_of<Shape>(task, head, x, scratch, normalised);
  float largest = 0;  // projection
  if (task.map.has_projections) {
    multiply_rows(task.w + head * task.w_stride, task.m, task.d_padded, at.z, nullptr, phi);
    __syncthreads();
  }
  if (task.map.is_exponential) {
    largest = -largest_float;
    for (int f = thread; f < task.m; f += Shape::threads)
      largest = fmaxf(largest, task.map.has_pairs ? fabsf(phi[f]) : phi[f]);
    largest = over_groups<Shape>(scratch, largest, Largest());
  }
  store_token_features(task, head, at.z, largest, phi);
  __syncthreads();
  const float log_scale = task.map.estimates_exp ? largest + at.log_factor : 0.0f;
  return normalised.finite && fabsf(log_scale) <= largest_float ? log_scale : not_a_number;
}

}  // namespace nprf::cuda
