// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include "nprf/cuda/device/runtime.hpp"

namespace nprf::cuda {

extern __shared__ __align__(128) unsigned char shared_bytes[];

/// The shared memory that a launch asked for.
template <class T>
__device__ __forceinline__ T* shared_memory() {
  return reinterpret_cast<T*>(shared_bytes);
}

/// How many blocks of so many threads n of them need.
template <int threads>
constexpr unsigned blocks_of(std::ptrdiff_t n) {
  return static_cast<unsigned>((n + threads - 1) / threads);
}

/// Lets a kernel have so many bytes of shared memory: all that the device gives a block, since the last word counts,
/// and another plan's may be a smaller one.
template <class... P>
void allow_shared(void (*kernel)(P...), std::size_t bytes) {
  if (bytes <= 48 * 1024) return;
  int device = 0, most = 0;
  check(cudaGetDevice(&device), "asking for the current device");
  check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "asking what the device is");
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             std::max(most, static_cast<int>(bytes))),
        "asking for shared memory");
}

/// Queues kernel(args...). Throws BackendError if the launch is refused.
template <class... P, class... A>
void launch(const char* what, void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream,
            A&&... args) {
  allow_shared(kernel, shared);  // here, since by nvcc 13 a kernel of a header has another address in each file
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<A&&>(args)...), what);
}

/// The compute capability that a kernel was compiled for, as Device's.
template <class... P>
int compiled_for(void (*kernel)(P...)) {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, kernel), "asking what a kernel was compiled for");
  return attributes.ptxVersion;
}

}  // namespace nprf::cuda
