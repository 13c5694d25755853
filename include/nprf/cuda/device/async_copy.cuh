// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include "nprf/cuda/device/device_code.hpp"
#include "nprf/cuda/device/mma.cuh"

/// Asynchronous copies from global to shared memory, which devices of compute capability 8.0 and newer have (PTX ISA,
/// "cp.async"). Tests on the host include a replacement of this header (tests/cuda/stand_in).
namespace nprf::cuda {

constexpr bool has_async_copies = device_capability >= 80;

/// Starts to copy 16 bytes from `from` to the address `to` + `offset` bytes. Both addresses must be multiples of 16. If
/// `inside` is false, it stores zeros and does not read `from`. This thread must not use the bytes before
/// wait_for_copies(), and other threads not before a barrier after that.
template <int offset>
__device__ __forceinline__ void start_copy(void* to, const void* from, bool inside) {
  if constexpr (has_async_copies)
    asm volatile("cp.async.cg.shared.global [%0 + %3], [%1], 16, %2;"
                 :
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from), "r"(inside ? 16 : 0),
                   "n"(offset)
                 : "memory");
}

/// Waits for all copies that this thread has started.
__device__ __forceinline__ void wait_for_copies() {
  if constexpr (has_async_copies) asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace nprf::cuda
