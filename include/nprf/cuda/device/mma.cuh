// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "nprf/cuda/device/device_code.hpp"
#include "nprf/cuda/device/storage.cuh"

/// Tensor core instructions. All 32 lanes of a warp must execute them. A 32-bit word holds two factors, the first one
/// in the lower half. Products are exact; sums are float, and not rounded to nearest. PTX ISA, "Warp-level matrix
/// instructions", documents which lane holds which entries. Tests on the host include a replacement of this header
/// (tests/cuda/stand_in).
namespace nprf::cuda {

/// The instruction that multiplies. m16n8k16 multiplies half and bfloat16 from compute capability 8.0 on, m16n8k8 half
/// from 7.5 on, and m8n8k4 half from 7.0 on. native: of these three, in this order, the first one that the device code
/// can have.
enum class MmaShape { native, m8n8k4, m16n8k8, m16n8k16 };

/// The order in which the factors of m8n8k4 are distributed over the lanes.
enum class MmaLayout { row, column };

/// The compute capability that this device code is compiled for, times ten. In host code, which executes none of the
/// instructions, it is that of a device which has all of them.
#if defined(__CUDA_ARCH__)
constexpr int device_capability = __CUDA_ARCH__ / 10;
#else
constexpr int device_capability = 90;
#endif

/// Whether there are instructions for factors of type T. If not, kernels that use them have an empty body.
template <MmaFactor T>
constexpr bool has_mma = std::is_same_v<T, __half> ? device_capability >= 70 : device_capability >= 80;

/// The instruction that MmaShape::native stands for with factors of type T.
template <MmaFactor T>
constexpr MmaShape native_shape = !std::is_same_v<T, __half> || device_capability >= 80 ? MmaShape::m16n8k16
                                  : device_capability >= 75                             ? MmaShape::m16n8k8
                                                                                        : MmaShape::m8n8k4;

/// c += a b for a (16,16) and b (16,8).
template <MmaFactor T>
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  if constexpr (device_capability >= 80 && std::is_same_v<T, __half>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else if constexpr (device_capability >= 80)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// c += a b for a (16,8) and b (8,8) in half.
__device__ __forceinline__ void mma_m16n8k8(float (&c)[4], unsigned a_0, unsigned a_1, unsigned b) {
  if constexpr (device_capability >= 75)
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a_0), "r"(a_1), "r"(b));
}

/// Four products c += a b for a (8,4) and b (4,8) in half, one for each pair of quads. Pair q, for 0 <= q < 4, has the
/// lanes 4 q to 4 q + 3 and 4 q + 16 to 4 q + 19.
template <MmaLayout a_layout, MmaLayout b_layout>
__device__ __forceinline__ void mma_m8n8k4(float (&c)[2][4], const unsigned (&a)[2], const unsigned (&b)[2]) {
#define NPRF_MMA_M8N8K4(layouts)                                                                                    \
  asm volatile("mma.sync.aligned.m8n8k4." layouts                                                                   \
               ".f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, {%0, %1, %2, %3, %4, %5, " \
               "%6, %7};"                                                                                           \
               : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]),          \
                 "+f"(c[1][2]), "+f"(c[1][3])                                                                       \
               : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]))
  if constexpr (a_layout == MmaLayout::row && b_layout == MmaLayout::row)
    NPRF_MMA_M8N8K4("row.row");
  else if constexpr (a_layout == MmaLayout::row)
    NPRF_MMA_M8N8K4("row.col");
  else if constexpr (b_layout == MmaLayout::row)
    NPRF_MMA_M8N8K4("col.row");
  else
    NPRF_MMA_M8N8K4("col.col");
#undef NPRF_MMA_M8N8K4
}

/// Loads four matrices (8,8) from shared memory. Lane 8 k + i passes the address of row i of matrix k, which must be a
/// multiple of 16 bytes. For compute capability 7.5 and newer.
template <bool transposed, MmaFactor T>
__device__ __forceinline__ void load_matrices(unsigned (&x)[4], const T* row) {
  if constexpr (device_capability >= 75) {
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

/// A word with two floats, each rounded to the nearest T.
template <MmaFactor T>
__device__ __forceinline__ unsigned pack(float first, float second) {
  unsigned both = 0;
  if constexpr (device_capability >= 80 && std::is_same_v<T, __half>)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  else if constexpr (device_capability >= 80)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  else if constexpr (std::is_same_v<T, __half>)
    asm("{\n.reg .b16 lower, upper;\ncvt.rn.f16.f32 lower, %1;\ncvt.rn.f16.f32 upper, %2;\nmov.b32 %0, {lower, "
        "upper};\n}"
        : "=r"(both)
        : "f"(first), "f"(second));
  return both;
}

}  // namespace nprf::cuda
