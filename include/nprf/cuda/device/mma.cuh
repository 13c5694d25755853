// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

/// The instructions of tensor cores, of compute capability 8.0 and newer, for a warp whose 32 lanes all come to them.
/// Words hold two bfloat16, the first in the lower half. PTX ISA, "Warp-level matrix instructions", says which lane has
/// what. Tests on the host have a twin of this header (tests/cuda/stand_in).
namespace nprf::cuda {

/// Whether they are there; kernels that use them have no body where they are not.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr bool has_mma = false;
#else
constexpr bool has_mma = true;
#endif

/// c += a b of matrices (16,16) and (16,8): products are exact, sums float's.
__device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  if constexpr (has_mma)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Four matrices (8,8) from shared memory: lane 8 k + i says where row i of matrix k begins, which is at a multiple of
/// 16 bytes.
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

/// Two bfloat16, each the nearest one.
__device__ __forceinline__ unsigned pack(float first, float second) {
  unsigned both = 0;
  if constexpr (has_mma) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}

}  // namespace nprf::cuda
