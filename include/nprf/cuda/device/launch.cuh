// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

#include "nprf/cuda/device/device_code.hpp"
#include "nprf/cuda/device/runtime.hpp"

namespace nprf::cuda {

extern __shared__ __align__(128) unsigned char shared_bytes[];

/// The dynamic shared memory of the launch.
template <class T>
__device__ __forceinline__ T* shared_memory() {
  return reinterpret_cast<T*>(shared_bytes);
}

/// Whether kernels are launched by programmatic dependent launch: as soon as the blocks of the previous kernel in the
/// stream have ended, which shortens the time between two kernels. start_kernel() then waits until the results of the
/// previous kernel are visible. True if all code is compiled for compute capability 9.0 or newer.
#if defined(__CUDA_ARCH_LIST__) && CUDART_VERSION >= 12030  // before, such launches could not be captured in a graph
constexpr bool launches_early = std::min({__CUDA_ARCH_LIST__}) >= 900;
#else
constexpr bool launches_early = false;
#endif

/// The first statement of every kernel: waits until the previous kernels in the stream have finished and their results
/// are visible.
__device__ __forceinline__ void start_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// The number of blocks of `threads` threads that cover n items.
template <int threads>
constexpr unsigned blocks_of(std::ptrdiff_t n) {
  return static_cast<unsigned>((n + threads - 1) / threads);
}

/// Allows a kernel to use `bytes` of dynamic shared memory. Above 48 KiB it sets the device's maximum per block: the
/// attribute belongs to the kernel, the last call overwrites it, and a plan that needs less must not reduce it.
template <class... P>
void allow_shared(void (*kernel)(P...), std::size_t bytes) {
  if (bytes <= 48 * 1024) return;
  int device = 0, most = 0;
  check(cudaGetDevice(&device), "querying the current device");
  check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "querying device attributes");
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             std::max(most, static_cast<int>(bytes))),
        "setting the shared memory limit");
}

/// The attributes of a kernel. CUDA loads the kernel to find them.
template <class... P>
cudaFuncAttributes attributes_of(void (*kernel)(P...)) {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, kernel), "querying a kernel's attributes");
  return attributes;
}

/// The compute capability that a kernel was compiled for, times ten as in Device.
template <class... P>
int compiled_for(void (*kernel)(P...)) {
  return attributes_of(kernel).ptxVersion;
}

/// Whether the driver can capture programmatic dependent launches in a graph.
inline bool driver_captures_early_launches() {
  static const bool value = [] {
    int version = 0;
    return cudaDriverGetVersion(&version) == cudaSuccess && version >= 12030;
  }();
  return value;
}

/// Queues kernel(args...). The kernel must call start_kernel() first. While a KernelLoading exists, it only loads the
/// kernel. Throws BackendError if the launch fails.
template <bool early = launches_early, class... P, class... A>
void launch(const char* what, void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream,
            A&&... args) {
  // at each launch, not once: with nvcc 13 a kernel in a header has another address in each translation unit
  allow_shared(kernel, shared);
  if (KernelLoading::is_active()) {
    attributes_of(kernel);
    return;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  if constexpr (early) {
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = driver_captures_early_launches() ? 1 : 0;
  }
  check(cudaLaunchKernelEx(&config, kernel, static_cast<A&&>(args)...), what);
}

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
