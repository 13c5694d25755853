// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "nprf/cuda/device/device_code.hpp"

namespace nprf::cuda {

/// What reductions combine two numbers by.
struct Sum {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Largest {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    if constexpr (std::is_same_v<T, float>)
      return fmaxf(a, b);
    else if constexpr (std::is_same_v<T, double>)
      return fmax(a, b);
    else
      return max(a, b);
  }
};

/// Combines the x of all lanes of a warp, or of groups of `lanes` neighbouring lanes, by f(a, b). Every lane gets the
/// result of its group.
template <int lanes = 32, class T, class F>
__device__ __forceinline__ T over_warp(T x, F&& f) {
  for (int step = lanes / 2; step > 0; step /= 2) x = f(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

/// Combines the x of all threads of a block by f(a, b), in a fixed order. Only thread 0 gets the result, others x.
/// `scratch` has a T for each thread.
template <int threads, class T, class F>
__device__ __forceinline__ T over_block(T* scratch, T x, F&& f) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // all threads have read what was in the scratch memory
  scratch[thread] = x;
  for (int half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) scratch[thread] = f(scratch[thread], scratch[thread + half]);
  }
  return thread == 0 ? scratch[0] : x;
}

}  // namespace nprf::cuda
