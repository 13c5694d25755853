// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/reductions.cuh"
#include "nprf/cuda/device/scales.cuh"
#include "nprf/cuda/feature_map/constants.cuh"
#include "nprf/cuda/feature_map/task.cuh"
#include "nprf/cuda/feature_map/token_tile.cuh"

namespace nprf::cuda {

/// What is known of a token x: the factor of x' = factor x, |x'|^2 / 2, and whether x is finite.
struct NormalisedToken {
  float factor, half_square;
  bool finite;
  bool is_extreme;  // whether sums of products of x itself may overflow or underflow
};

/// The sum over the channels of this thread's token, where f(x_k, sum) adds the term of a channel x_k to a sum. All
/// threads of the block must call it.
template <class Shape, class F>
__device__ __forceinline__ float over_channels(const float* x, int d, float* scratch, F&& f) {
  const int t = static_cast<int>(threadIdx.x) % Shape::tokens, g = static_cast<int>(threadIdx.x) / Shape::tokens;
  float sum = 0;
#pragma unroll 8
  for (int k = g; k < d; k += Shape::groups) sum = f(x[Shape::at(k, t)], sum);
  return over_groups<Shape>(scratch, sum, Sum());
}

/// |x|^2 of this thread's token. All threads of the block must call it.
template <class Shape>
__device__ __forceinline__ float square_of(const float* x, int d, float* scratch) {
  return over_channels<Shape>(x, d, scratch, [](float x_k, float sum) { return fmaf(x_k, x_k, sum); });
}

/// Whether |x|^2 is not finite, or so large or small that some x_k^2 may have overflowed or underflowed.
__device__ __forceinline__ bool has_extreme_square(float square) {
  return !(square >= 0x1p-100f && square <= 0x1p100f);
}

/// The data of a token x, where `square` is |unit x|^2.
template <Storage S, class Feature>
__device__ __forceinline__ NormalisedToken token_of(const FeatureTask<S, Feature>& task, float square, float unit = 1,
                                                    bool is_extreme = false) {
  if (!(task.radius > 0)) {
    const float s = task.scale;
    return {s, 0.5f * square * (s * s), square <= largest_float, false};
  }
  const float norm = sqrtf(square);
  const float factor = norm == 0 ? 0.0f : fminf(task.radius / norm * unit, largest_float);
  return {factor, square == 0 ? 0.0f : 0.5f * task.radius * task.radius, square <= largest_float, is_extreme};
}

/// The data of this thread's token, from |x|^2. Computing radius / |x| does not overflow or underflow. All threads of
/// the block must call it.
template <class Shape, Storage S, class Feature>
__device__ __forceinline__ NormalisedToken measure(const FeatureTask<S, Feature>& task, const float* x, float* scratch,
                                                   float square) {
  if (!(task.radius > 0)) return token_of(task, square);
  PowerOfTwoScale unit{1, 1};
  const bool is_extreme = has_extreme_square(square);
  if (__syncthreads_or(is_extreme)) {  // this must not change the results of the other tokens
    const int t = static_cast<int>(threadIdx.x) % Shape::tokens, g = static_cast<int>(threadIdx.x) / Shape::tokens;
    const int d = task.x.channels;
    float largest = 0;
    for (int k = g; k < d; k += Shape::groups) largest = fmaxf(largest, fabsf(x[Shape::at(k, t)]));
    largest = over_groups<Shape>(scratch, largest, Largest());
    const PowerOfTwoScale scale = power_of_two_scale(magnitude(largest));
    const float relative = over_channels<Shape>(x, d, scratch, [=](float x_k, float sum) {
      const float part = x_k * scale.inverse;
      return fmaf(part, part, sum);
    });
    if (is_extreme) unit = scale, square = relative;
  }
  return token_of(task, square, unit.inverse, is_extreme);
}

/// Multiplies this thread's token x by factor, in place.
template <class Shape>
__device__ __forceinline__ void scale_token(float* x, int d, float factor) {
  const int t = static_cast<int>(threadIdx.x) % Shape::tokens, g = static_cast<int>(threadIdx.x) / Shape::tokens;
#pragma unroll 8
  for (int k = g; k < d; k += Shape::groups) x[Shape::at(k, t)] *= factor;
}

/// Normalises the tokens in place. Returns the data of this thread's token.
template <class Shape, Storage S, class Feature>
__device__ __forceinline__ NormalisedToken normalise(const FeatureTask<S, Feature>& task, float* x, float* scratch) {
  const int d = task.x.channels;
  const NormalisedToken token = measure<Shape>(task, x, scratch, square_of<Shape>(x, d, scratch));
  scale_token<Shape>(x, d, token.factor);
  return token;
}

/// What the features of a tile of tokens are functions of: z, which is x' or with a centring the coordinates of x'; and
/// the logarithm of the factor of this thread's token.
struct TokenCoordinates {
  const float* z;  // (d_padded,tokens)
  float log_factor;
};

/// Computes the coordinates of the tile x of normalised tokens of a head. With a centring the tile of z is stored
/// behind that of x. All threads of the block must call it; they are synchronised at the end.
template <class Shape, Storage S, class Feature>
__device__ __forceinline__ TokenCoordinates coordinates_of(const FeatureTask<S, Feature>& task, int head, float* x,
                                                           float* scratch, const NormalisedToken& token) {
  const int d = task.x.channels;
  const float* z = x;
  float of_centring = 0, half_square = token.half_square;
  // up to the next barrier a thread reads only the channels that it normalised itself
  if (task.centring.values) {
    float* centred = x + Shape::at(task.d_padded, 0);
    of_centring = centre<Shape>(task.centring.of(head, d, task.d_padded), d, task.d_padded, x, centred, scratch);
    __syncthreads();
    half_square = 0.5f * square_of<Shape>(centred, d, scratch);
    z = centred;
  }
  float log_factor = task.map.sign_of_square * half_square;
  if (task.map.is_quadratic) log_factor = task.quadratic.of(head).template log_factor<Shape>(d, z, scratch);
  __syncthreads();
  return {z, log_factor + of_centring};
}

}  // namespace nprf::cuda
