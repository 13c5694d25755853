// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "nprf/cuda/device/device_code.hpp"

/// Tensor core instructions of compute capability 8.0 and newer. All 32 lanes of a warp must execute them. A 32-bit
/// word holds two bfloat16, the first one in the lower half. PTX ISA, "Warp-level matrix instructions", documents which
/// lane holds which entries. Tests on the host include a replacement of this header (tests/cuda/stand_in).
namespace nprf::cuda {

/// Whether the instructions are available. Kernels that use them have an empty body otherwise.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr bool has_mma = false;
#else
constexpr bool has_mma = true;
#endif

/// c += a b, of a (16,16) and b (16,8). Products are exact, sums are float.
__device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  if constexpr (has_mma)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Loads four matrices (8,8) from shared memory. Lane 8 k + i passes the address of row i of matrix k, which is a
/// multiple of 16 bytes.
template <bool transposed>
__device__ __forceinline__ void load_matrices(unsigned (&x)[4], const __nv_bfloat16* row) {
  if constexpr (has_mma) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if constexpr (transposed)
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                   : "r"(at)
                   : "memory");
    else
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                   : "r"(at)
                   : "memory");
  }
}

/// Rounds two floats to the nearest bfloat16.
__device__ __forceinline__ unsigned pack(float first, float second) {
  unsigned both = 0;
  if constexpr (has_mma) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}

}  // namespace nprf::cuda
