// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstring>
#include <type_traits>

#include "nprf/config.hpp"
#include "nprf/cuda/device/device_code.hpp"

namespace nprf::cuda {

/// The bits of |x|, as an integer. Magnitudes of two numbers compare as the numbers |x| do; those of infinity and NaN
/// are larger than those of all finite numbers.
NPRF_HOST_DEVICE __forceinline__ int magnitude(float x) {
  int bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits & 0x7fffffff;
}
constexpr int infinite_magnitude = 0x7f800000;

/// For the magnitude() of a number x: `value` is the power of two above |x|, in the range in which `value` and
/// `inverse` are both normal numbers. Both are 1 for infinity and NaN.
struct PowerOfTwoScale {
  float value, inverse;
};
NPRF_HOST_DEVICE __forceinline__ PowerOfTwoScale power_of_two_scale(int magnitude) {
  if (magnitude >= infinite_magnitude) return {1, 1};
  const int wanted = (magnitude >> 23) + 1, exponent = wanted < 1 ? 1 : wanted > 253 ? 253 : wanted;
  const int bits[2] = {exponent << 23, (254 - exponent) << 23};
  PowerOfTwoScale scale;
  std::memcpy(&scale, bits, sizeof(scale));
  return scale;
}

// How numbers are scaled before they are rounded to half, whose range is far smaller than that of float: normal
// numbers are 2^-14 to 65504, and smaller ones are multiples of 2^-24. A number that is rounded has a relative error
// of at most 2^-11, or an absolute error of at most 2^-25.

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
