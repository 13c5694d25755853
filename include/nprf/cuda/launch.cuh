// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/runtime.hpp"

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

/// Queues kernel(args...); more than 48 KiB of shared memory must have been allowed. Throws BackendError if the launch
/// is refused.
template <class... P, class... A>
void launch(const char* what, void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream,
            A&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<A&&>(args)...), what);
}

/// Lets a kernel that needs so many bytes of shared memory have all that the device has: it is remembered for the
/// device, not for a call, and a later one may need more.
template <class... P>
void allow_shared(const Device& device, void (*kernel)(P...), std::size_t bytes) {
  if (bytes <= 48 * 1024) return;
  check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(device.shared_bytes)),
      "asking for shared memory");
}

/// The compute capability that a kernel was compiled for, as Device's.
template <class... P>
int compiled_for(void (*kernel)(P...)) {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, kernel), "asking what a kernel was compiled for");
  return attributes.ptxVersion;
}

}  // namespace nprf::cuda
