// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "nprf/cuda/device/call_counters.cuh"

/// How numbers are scaled before they are rounded to half, whose range is far smaller than that of float: normal
/// numbers are 2^-14 to 65504, and smaller ones are multiples of 2^-24. A number that is rounded has a relative error
/// of at most 2^-11, or an absolute error of at most 2^-25.
namespace nprf::cuda {

/// What features of a type are multiplied by when they are stored, so that they use the range of half. Features that
/// are stored in half must be below 4 in magnitude.
template <class Feature>
constexpr float feature_scale = std::is_same_v<Feature, __half> ? 0x1p14f : 1.0f;

/// Numbers that are multiplied by scale_to_half(their largest magnitude) are at most this.
constexpr float largest_scaled = 0x1p15f;

/// A power of two whose product with `largest` is in [2^14, 2^15). If `largest` is at least 2^126, the product may be
/// below 2^14; if `largest` is below 2^-100, the power is 2^114. A number that is multiplied by the power and rounded
/// has a relative error of at most 2^-11, or an absolute error of at most 2^-39 * largest. If `largest` is a NaN or an
/// infinity, the result is a power of two, too.
__device__ __forceinline__ float scale_to_half(float largest) {
  if (largest >= 0x1p126f) return 0x1p-113f;
  return power_of_two_scale(magnitude(fmaxf(largest, 0x1p-100f))).inverse * largest_scaled;
}

}  // namespace nprf::cuda
