// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <concepts>
#include <cstring>
#include <limits>
#include <type_traits>

#include "nprf/config.hpp"
#include "nprf/cuda/device/device_code.hpp"

namespace nprf::cuda {

constexpr float largest_float = std::numeric_limits<float>::max();
/// In constants, since compilers of device code translate 0.0 / 0.0 and 1.0 / 0.0 to divisions.
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

/// The types that queries, keys, values and outputs may be stored in. Arithmetic is in float.
template <class S>
concept Storage = std::same_as<S, float> || std::same_as<S, __half> || std::same_as<S, __nv_bfloat16>;

/// The types that tensor cores multiply here. float does not use tensor cores.
template <class T>
concept MmaFactor = std::same_as<T, __half> || std::same_as<T, __nv_bfloat16>;

/// The types of features that products multiply: in float, or in 16 bits on tensor cores.
enum class FeatureType { in_float, in_half, in_bfloat16 };

constexpr bool on_tensor_cores(FeatureType type) { return type != FeatureType::in_float; }
/// Whether features of this type have 16 bits and the storage type S.
template <Storage S>
constexpr bool has_storage_type(FeatureType type) {
  return on_tensor_cores(type) && (type == FeatureType::in_half) == std::same_as<S, __half>;
}

NPRF_HOST_DEVICE __forceinline__ float to_float(float x) { return x; }
NPRF_HOST_DEVICE __forceinline__ float to_float(__half x) { return __half2float(x); }
NPRF_HOST_DEVICE __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

NPRF_HOST_DEVICE __forceinline__ void store(float* to, float x) { *to = x; }
NPRF_HOST_DEVICE __forceinline__ void store(__half* to, float x) { *to = __float2half_rn(x); }
NPRF_HOST_DEVICE __forceinline__ void store(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }

/// Rounds all values to S and stores them. If they fill 8 or 16 bytes, they are stored at once, and `to` must be
/// aligned to as many bytes.
template <class S, int count>
__device__ __forceinline__ void store_all(S* to, const float (&values)[count]) {
  S rounded[count];
#pragma unroll
  for (int k = 0; k < count; ++k) store(rounded + k, values[k]);
  if constexpr (sizeof(rounded) == sizeof(uint4) || sizeof(rounded) == sizeof(uint2)) {
    std::conditional_t<sizeof(rounded) == sizeof(uint4), uint4, uint2> all;
    std::memcpy(&all, rounded, sizeof(all));
    *reinterpret_cast<decltype(all)*>(to) = all;
  } else {
#pragma unroll
    for (int k = 0; k < count; ++k) to[k] = rounded[k];
  }
}

}  // namespace nprf::cuda
