// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>

#include "cuda/stand_in/machine.hpp"

/// The parts of the CUDA runtime and of device code that nprf uses, on the host, for tests without a GPU. Device memory
/// is host memory. A launch runs the whole kernel before it returns; see machine.hpp.

#define __host__
#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
};
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline const stand_in::Coordinates& threadIdx = stand_in::thread();
inline const stand_in::Coordinates& blockIdx = stand_in::block();
inline const stand_in::Coordinates& gridDim = stand_in::blocks();
inline const stand_in::Coordinates& blockDim = stand_in::threads();

// devices

using cudaStream_t = stand_in::Stream*;

enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrMemoryPoolsSupported = 115,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaMalloc(void** pointer, std::size_t bytes);
cudaError_t cudaFree(void* pointer);
cudaError_t cudaMallocAsync(void** pointer, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int byte, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);

template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int bytes) {
  return static_cast<cudaError_t>(stand_in::allow_shared(reinterpret_cast<const void*>(kernel), bytes));
}

struct cudaFuncAttributes {
  int ptxVersion;
};

/// Reports the architecture in stand_in::settings().
template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Kernel* kernel) {
  stand_in::load(reinterpret_cast<const void*>(kernel));
  attributes->ptxVersion = stand_in::settings().compiled_for;
  return cudaSuccess;
}

template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel*, int threads, std::size_t shared) {
  *blocks = stand_in::max_blocks(threads, shared);
  return cudaSuccess;
}

enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};

template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...), A&&... args) {
  const std::tuple<P...> parameters(P(static_cast<A&&>(args))...);
  const auto [gx, gy, gz] = config->gridDim;
  const auto [bx, by, bz] = config->blockDim;
  return static_cast<cudaError_t>(stand_in::launch({gx, gy, gz}, {bx, by, bz}, config->dynamicSmemBytes, config->stream,
                                                   reinterpret_cast<const void*>(kernel),
                                                   [&] { std::apply(kernel, parameters); }));
}

// device code

inline void __syncthreads() { stand_in::wait(stand_in::Scope::block); }
inline void __syncwarp(unsigned = ~0u) { stand_in::wait(stand_in::Scope::warp); }

inline int __syncthreads_or(int predicate) { return stand_in::any_of_block(predicate != 0); }

template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return stand_in::Exchange(value).from(stand_in::lane() ^ mask);
}
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return stand_in::Exchange(value).from(lane);
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  const stand_in::Exchange all(predicate != 0);
  unsigned lanes = 0;
  for (int lane = 0; lane < 32; ++lane) lanes |= static_cast<unsigned>(all.from(lane)) << lane;
  return lanes;
}

template <class T>
T __ldg(const T* from) {
  return *from;
}
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline void sincospif(float x, float* sine, float* cosine) {
  *sine = static_cast<float>(std::sin(M_PI * static_cast<double>(x)));
  *cosine = static_cast<float>(std::cos(M_PI * static_cast<double>(x)));
}
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
// only one thread runs at a time, so that these are atomic
inline int atomicAdd(int* to, int more) {
  const int before = *to;
  *to += more;
  return before;
}
inline int atomicMax(int* to, int x) {
  const int before = *to;
  *to = max(before, x);
  return before;
}
