// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/feature_map/forward.cuh"

namespace nprf::cuda {

/// Shared memory for the features of one token.
struct TokenScratch {
  float* x;        // (tiles,d_padded)  the token, and its coordinates if there is a centring
  float* scratch;  // (OneTokenShape::warps)  of reductions
};

/// Sets phi (r) to the features of a token of the matrix z, divided by exp(log-scale), and returns the log-scale: the
/// logarithm of the largest of exponential features, that of the row's factor of trigonometric and quadratic ones, and
/// 0 for elu. It is NaN for a non-finite token. The task's stride must be 1. All threads of a block of OneTokenShape
/// must call it; phi is complete when it returns. O(d m).
template <Storage S>
__device__ __forceinline__ float compute_token_features(const FeatureTask<S>& task, int z, int token,
                                                        const TokenScratch& shared, float* phi) {
  using Shape = OneTokenShape;
  const auto& [x, scratch] = shared;
  const int head = z % task.x.heads;
  __syncthreads();  // the features of the token before have been read
  load_tile({x, 1, Shape::stride}, task.x, task.x.of(z), {token, 1}, {0, task.d_padded});
  __syncthreads();
  const NormalisedToken own = normalise<Shape>(task, x, scratch);
  const TokenCoordinates at = coordinates_of<Shape>(task, head, x, scratch, own);
  float largest = 0;  // projection
  if (task.is_exponential())
    largest = over_groups<Shape>(scratch, largest_projection<Shape>(task, at.z),
                                 [](float a, float b) { return fmaxf(a, b); });
  if (task.kind == FeatureKind::quadratic)
    store_quadratic<Shape>(task, head, phi, at.z, 1.0f, false);
  else
    store_projected<Shape>(task, phi, at.z, 0.0f, largest, false);
  __syncthreads();
  const float log_scale = task.kind == FeatureKind::elu ? 0.0f : largest + at.log_factor;
  return own.finite && fabsf(log_scale) <= largest_float ? log_scale : 0.0f / 0.0f;
}

}  // namespace nprf::cuda
