// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "nprf/cuda/device/device_code.hpp"

namespace nprf::cuda {

__device__ __forceinline__ float2 operator+(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
__device__ __forceinline__ float2 operator-(float2 a, float2 b) { return make_float2(a.x - b.x, a.y - b.y); }
__device__ __forceinline__ float2 operator*(float s, float2 a) { return make_float2(s * a.x, s * a.y); }

__device__ __forceinline__ float2 multiply(float2 a, float2 b) {
  return make_float2(fmaf(-a.y, b.y, a.x * b.x), fmaf(a.x, b.y, a.y * b.x));
}
/// a times the conjugate of b.
__device__ __forceinline__ float2 multiply_conjugate(float2 a, float2 b) {
  return make_float2(fmaf(a.y, b.y, a.x * b.x), fmaf(-a.x, b.y, a.y * b.x));
}

/// The spectra of the weights. That of head h starts at values + h * stride; the stride is 0 if all heads share one
/// spectrum.
struct Spectra {
  const float2* values;
  std::ptrdiff_t stride;
};

}  // namespace nprf::cuda
