// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/feature_map/coordinates.cuh"
#include "nprf/cuda/feature_map/projection.cuh"
#include "nprf/cuda/feature_map/task.cuh"

namespace nprf::cuda {

/// Shared memory for the features of one token.
struct TokenScratch {
  float* x;        // (tiles,d_padded)  the token, and its coordinates if there is a centring
  float* scratch;  // (OneTokenShape::warps)  of reductions
};

/// Sets phi (r) to the features of a token with coordinates z, which are divided by exp(largest) if they are
/// exponential, and by the row's factor otherwise.
template <Storage S>
__device__ __forceinline__ void store_token_features(const FeatureTask<S>& task, int z_matrix, const float* z,
                                                     float largest, float* phi) {
  using Shape = OneTokenShape;
  const int thread = static_cast<int>(threadIdx.x), m = task.m;
  if (task.kind == FeatureKind::elu)
    for (int f = thread; f < task.r(); f += Shape::threads) phi[f] = feature_of<FeatureKind::elu>(z[f], 1, 1);
  if (task.kind == FeatureKind::quadratic)
    for (int f = thread; f < task.r(); f += Shape::threads)
      phi[f] = task.quadratic.of(z_matrix % task.x.heads).template feature<Shape>(f, z);
  project<Shape>(task, z, [&](int f, int, const float(&e)[1]) {
    if (task.kind == FeatureKind::trigonometric) {
      phi[f] = feature_of<FeatureKind::trigonometric>(e[0], 1, 1);
      phi[m + f] = feature_of<FeatureKind::trigonometric, true>(e[0], 1, 1);
    } else {
      phi[f] = feature_of<FeatureKind::positive>(e[0], log2_e, -largest * log2_e);
      if (task.has_pairs()) phi[m + f] = feature_of<FeatureKind::hyperbolic, true>(e[0], log2_e, -largest * log2_e);
    }
  });
}

/// Sets phi (r) to the features of a token of the matrix z, divided by exp(log-scale), and returns the log-scale: the
/// logarithm of the largest of exponential features, that of the row's factor of trigonometric and quadratic ones, and
/// 0 for elu. It is NaN for a non-finite token. The task's stride must be 1. All threads of a block of OneTokenShape
/// must call it; phi is complete when it returns. O(d m).
template <Storage S>
__device__ __forceinline__ float compute_token_features(const FeatureTask<S>& task, int z, int token,
                                                        const TokenScratch& shared, float* phi) {
  using Shape = OneTokenShape;
  const auto& [x, scratch] = shared;
  __syncthreads();  // the features of the token before have been read
  load_tokens({x, 1, Shape::stride}, task.x, task.x.of(z), token, 1, task.d_padded);
  __syncthreads();
  const NormalisedToken own = normalise<Shape>(task, x, scratch);
  const TokenCoordinates at = coordinates_of<Shape>(task, z % task.x.heads, x, scratch, own);
  float largest = 0;  // projection
  if (task.is_exponential()) {
    largest = -largest_float;
    project<Shape>(task, at.z, [&](int, int, const float(&e)[1]) {
      largest = fmaxf(largest, task.kind == FeatureKind::hyperbolic ? fabsf(e[0]) : e[0]);
    });
    largest = over_groups<Shape>(scratch, largest, [](float a, float b) { return fmaxf(a, b); });
  }
  store_token_features(task, z, at.z, largest, phi);
  __syncthreads();
  const float log_scale = task.kind == FeatureKind::elu ? 0.0f : largest + at.log_factor;
  return own.finite && fabsf(log_scale) <= largest_float ? log_scale : not_a_number;
}

}  // namespace nprf::cuda
