// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <concepts>
#include <limits>
#include <type_traits>

namespace nprf::cuda {

constexpr float largest_float = std::numeric_limits<float>::max();

/// The types that queries, keys, values and outputs may be stored in. Arithmetic is in float.
template <class S>
concept Storage = std::same_as<S, float> || std::same_as<S, __half> || std::same_as<S, __nv_bfloat16>;

/// The type of the factors of tensor core products: bfloat16 for 16-bit storage. float does not use tensor cores.
template <Storage S>
using OnTensorCores = std::conditional_t<std::same_as<S, float>, float, __nv_bfloat16>;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

__device__ __forceinline__ void store(float* to, float x) { *to = x; }
__device__ __forceinline__ void store(__half* to, float x) { *to = __float2half_rn(x); }
__device__ __forceinline__ void store(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }

}  // namespace nprf::cuda
