// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include "nprf/cuda/device/device_code.hpp"

namespace nprf::cuda {

/// Calls f(arguments...), always inlined: what f captures by reference must stay in registers, and clang might
/// otherwise make a function call of it.
template <class F, class... Arguments>
__device__ __forceinline__ void inlined(F&& f, Arguments... arguments) {
#ifdef __clang__
  [[clang::always_inline]] f(arguments...);
#else
  f(arguments...);
#endif
}

}  // namespace nprf::cuda
