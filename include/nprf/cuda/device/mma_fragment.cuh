// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/cuda/device/mma.cuh"

namespace nprf::cuda {

/// Matrices that are distributed over the lanes of a warp, in the layout of mma(). They are loaded from bfloat16 tiles
/// in shared memory, whose rows are `stride` scalars apart.

struct LeftFragment {  // (16,16)
  unsigned x[4];
};
struct RightFragment {  // (16,8)
  unsigned x[2];
};
/// A lane holds rows row() and row() + 8, and of each the columns column() and column() + 1.
struct SumFragment {  // (16,8)
  float x[4];

  __device__ __forceinline__ static int row() { return static_cast<int>(threadIdx.x) % 32 / 4; }
  __device__ __forceinline__ static int column() { return static_cast<int>(threadIdx.x) % 4 * 2; }
};

/// y += a b.
__device__ __forceinline__ void multiply_add(SumFragment& y, const LeftFragment& a, const RightFragment& b) {
  mma(y.x, a.x, b.x);
}

namespace fragment {

// The row address that this lane passes to load_matrices. Matrices 0 to 3 form a square (16,16). Matrix 1 is below
// matrix 0 if second_below, else to the right of it.
__device__ __forceinline__ const __nv_bfloat16* row(const __nv_bfloat16* tile, int stride, bool second_below) {
  const int lane = static_cast<int>(threadIdx.x) % 32, odd = lane / 8 % 2, high = lane / 16;
  return tile + (lane % 8 + 8 * (second_below ? odd : high)) * stride + 8 * (second_below ? high : odd);
}

}  // namespace fragment

/// a[i][k] = tile[i][k].
__device__ __forceinline__ LeftFragment load_left(const __nv_bfloat16* tile, int stride) {
  LeftFragment a;
  load_matrices<false>(a.x, fragment::row(tile, stride, true));
  return a;
}
/// a[i][k] = tile[k][i].
__device__ __forceinline__ LeftFragment load_left_transposed(const __nv_bfloat16* tile, int stride) {
  LeftFragment a;
  load_matrices<true>(a.x, fragment::row(tile, stride, false));
  return a;
}

/// b[j / 8][k][j % 8] = tile[k][j] for j < 16.
__device__ __forceinline__ void load_right(RightFragment (&b)[2], const __nv_bfloat16* tile, int stride) {
  unsigned x[4];
  load_matrices<true>(x, fragment::row(tile, stride, true));
  b[0] = {{x[0], x[1]}};
  b[1] = {{x[2], x[3]}};
}
/// b[j / 8][k][j % 8] = tile[j][k] for j < 16.
__device__ __forceinline__ void load_right_transposed(RightFragment (&b)[2], const __nv_bfloat16* tile, int stride) {
  unsigned x[4];
  load_matrices<false>(x, fragment::row(tile, stride, false));
  b[0] = {{x[0], x[1]}};
  b[1] = {{x[2], x[3]}};
}

/// All columns are equal: b[k][j] = column[k].
__device__ __forceinline__ RightFragment load_right_column(const __nv_bfloat16* column) {
  const unsigned* pairs = reinterpret_cast<const unsigned*>(column) + threadIdx.x % 4;
  return {{pairs[0], pairs[4]}};
}
/// All entries are 1.
__device__ __forceinline__ RightFragment right_ones() {
  constexpr unsigned ones = 0x3f803f80;
  return {{ones, ones}};
}

}  // namespace nprf::cuda
