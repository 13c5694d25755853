// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>

#include "nprf/cuda/device/mma.cuh"

namespace nprf::cuda {

/// Matrices (16,16) that are distributed over the lanes of a warp, in the layout of an instruction. Factors are loaded
/// from tiles of T in shared memory. The rows of a tile are `stride` scalars apart; the stride must be a multiple of 8,
/// and the tile's address a multiple of 16 bytes. The types and functions of both structs below are
///
///     Left, LeftTransposed      factors on the left: a[i][k] = tile[i][k], or tile[k][i]
///     Right, RightTransposed    factors on the right: b[k][j] = tile[k][j], or tile[j][k]
///     RightColumn               a factor on the right (16,8) whose columns are equal
///     Sum                       a product. A lane has 2 of its rows, row() and row() + row_step, and 4 columns of
///                               each: column() and the next one, and both + column_step. x[n][2 h + c] is the entry
///                               in row row() + h row_step and in column column() + n column_step + c
///     RowSum                    a product with a RightColumn: of(h) is the entry in row row() + h row_step
///     multiply_add(y, a, b)     y += a b
///     left_of(words)            a sum that is rounded to T, as a left factor: words[n][h] has x[n][2 h] and
///                               x[n][2 h + 1]
///     row_max(x)                the largest x of the lanes that have the same rows

/// The matrices in the layout of m16n8k8 and m16n8k16.
template <MmaFactor T, MmaShape shape>
struct OctetFragments {
  struct Left {
    unsigned x[4];
  };
  using LeftTransposed = Left;
  struct Right {
    unsigned x[2][2];  // x[n]: of the columns 8 n to 8 n + 7
  };
  using RightTransposed = Right;
  struct RightColumn {
    unsigned x[2];
  };
  struct Sum {
    float x[2][4];
  };
  struct RowSum {
    float x[4];

    __device__ __forceinline__ float& of(int h) { return x[2 * h]; }
    __device__ __forceinline__ float of(int h) const { return x[2 * h]; }
  };

  static constexpr int row_step = 8, column_step = 8;

  __device__ __forceinline__ static int row() { return static_cast<int>(threadIdx.x) % 32 / 4; }
  __device__ __forceinline__ static int column() { return static_cast<int>(threadIdx.x) % 4 * 2; }

  __device__ __forceinline__ static float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
  }

  __device__ __forceinline__ static void multiply_add(Sum& y, const Left& a, const Right& b) {
#pragma unroll
    for (int n = 0; n < 2; ++n) multiply_add(y.x[n], a, b.x[n]);
  }
  __device__ __forceinline__ static void multiply_add(RowSum& y, const Left& a, const RightColumn& b) {
    multiply_add(y.x, a, b.x);
  }

  __device__ __forceinline__ static Left load_left(const T* tile, int stride) {
    Left a;
    load_matrices<false>(a.x, row_of_lane(tile, stride, true));
    return a;
  }
  __device__ __forceinline__ static Left load_left_transposed(const T* tile, int stride) {
    Left a;
    load_matrices<true>(a.x, row_of_lane(tile, stride, false));
    return a;
  }
  __device__ __forceinline__ static Right load_right(const T* tile, int stride) {
    unsigned x[4];
    load_matrices<true>(x, row_of_lane(tile, stride, true));
    return {{{x[0], x[1]}, {x[2], x[3]}}};
  }
  __device__ __forceinline__ static Right load_right_transposed(const T* tile, int stride) {
    unsigned x[4];
    load_matrices<false>(x, row_of_lane(tile, stride, false));
    return {{{x[0], x[1]}, {x[2], x[3]}}};
  }

  /// b[k][j] = column[k].
  __device__ __forceinline__ static RightColumn load_right_column(const T* column) {
    const unsigned* pairs = reinterpret_cast<const unsigned*>(column) + threadIdx.x % 4;
    return {{pairs[0], pairs[4]}};
  }
  /// All entries are 1.
  __device__ __forceinline__ static RightColumn right_ones() {
    constexpr unsigned ones = std::is_same_v<T, __half> ? 0x3c003c00 : 0x3f803f80;
    return {{ones, ones}};
  }

  __device__ __forceinline__ static Left left_of(const unsigned (&words)[2][2]) {
    return {{words[0][0], words[0][1], words[1][0], words[1][1]}};
  }

 private:
  __device__ __forceinline__ static void multiply_add(float (&y)[4], const Left& a, const unsigned (&b)[2]) {
    if constexpr (shape == MmaShape::m16n8k16) {
      mma_m16n8k16<T>(y, a.x, b);
    } else {
      mma_m16n8k8(y, a.x[0], a.x[1], b[0]);
      mma_m16n8k8(y, a.x[2], a.x[3], b[1]);
    }
  }

  // The row address that this lane passes to load_matrices. Matrices 0 to 3 form a square (16,16). Matrix 1 is below
  // matrix 0 if second_below, else to the right of it.
  __device__ __forceinline__ static const T* row_of_lane(const T* tile, int stride, bool second_below) {
    const int lane = static_cast<int>(threadIdx.x) % 32, odd = lane / 8 % 2, high = lane / 16;
    return tile + (lane % 8 + 8 * (second_below ? odd : high)) * stride + 8 * (second_below ? high : odd);
  }
};

/// The matrices in the layout of m8n8k4, which multiplies half. Each pair of quads has a quarter of a sum: 8 rows and 8
/// columns. The first quad of a pair loads four rows of the upper half and four columns of the left half, and the
/// second quad the corresponding rows of the lower half and columns of the right half. So eight lanes in sequence read
/// eight rows from different banks, and four lanes store a sector. A product takes four steps, each of which multiplies
/// four channels.
struct QuadPairFragments {
  template <MmaLayout layout_>
  struct Factor {
    static constexpr MmaLayout layout = layout_;
    unsigned x[4][2];
  };
  using Left = Factor<MmaLayout::row>;
  using LeftTransposed = Factor<MmaLayout::column>;
  using Right = Factor<MmaLayout::row>;
  using RightTransposed = Factor<MmaLayout::column>;
  using RightColumn = Factor<MmaLayout::column>;
  struct Sum {
    float x[2][4];
  };
  struct RowSum {
    Sum all;  // whose columns are equal

    __device__ __forceinline__ float& of(int h) { return all.x[0][2 * h]; }
    __device__ __forceinline__ float of(int h) const { return all.x[0][2 * h]; }
  };

  static constexpr int row_step = 2, column_step = 8;

  __device__ __forceinline__ static int row() { return first_row() + lane() % 2; }
  __device__ __forceinline__ static int column() { return 4 * column_block() + (lane() & 2); }

  __device__ __forceinline__ static float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 8));
  }

  template <MmaLayout a_layout, MmaLayout b_layout>
  __device__ __forceinline__ static void multiply_add(Sum& y, const Factor<a_layout>& a, const Factor<b_layout>& b) {
#pragma unroll
    for (int s = 0; s < 4; ++s) mma_m8n8k4<a_layout, b_layout>(y.x, a.x[s], b.x[s]);
  }
  template <MmaLayout a_layout>
  __device__ __forceinline__ static void multiply_add(RowSum& y, const Factor<a_layout>& a, const RightColumn& b) {
    multiply_add(y.all, a, b);
  }

  // Of a factor on the left, a lane has one row if the layout is `row`, and one channel of four rows in each step if it
  // is `column`. Of a factor on the right, a lane has one column if the layout is `column`, and one channel of four
  // columns in each step if it is `row`.

  __device__ __forceinline__ static Left load_left(const __half* tile, int stride) {
    return load_line<MmaLayout::row>(tile + (first_row() + lane() % 4) * stride);
  }
  __device__ __forceinline__ static LeftTransposed load_left_transposed(const __half* tile, int stride) {
    return load_fours<MmaLayout::column>(tile + first_row(), stride);
  }
  __device__ __forceinline__ static Right load_right(const __half* tile, int stride) {
    return load_fours<MmaLayout::row>(tile + first_column(), stride);
  }
  __device__ __forceinline__ static RightTransposed load_right_transposed(const __half* tile, int stride) {
    return load_line<MmaLayout::column>(tile + (first_column() + lane() % 4) * stride);
  }

  /// b[k][j] = column[k].
  __device__ __forceinline__ static RightColumn load_right_column(const __half* column) {
    return load_line<MmaLayout::column>(column);
  }
  /// All entries are 1.
  __device__ __forceinline__ static RightColumn right_ones() {
    constexpr unsigned ones = 0x3c003c00;
    return {{{ones, ones}, {ones, ones}, {ones, ones}, {ones, ones}}};
  }

  // Lanes that differ in bit 1 have two columns each of every four, of both rows, and exchange one row. Lanes that
  // differ in bit 3 then have four of each eight columns of one row, and exchange these.
  __device__ __forceinline__ static Left left_of(const unsigned (&words)[2][2]) {
    const bool second = (lane() & 2) != 0, right = column_block() != 0;
    Left a;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const unsigned own = second ? words[n][1] : words[n][0], given = second ? words[n][0] : words[n][1],
                     got = __shfl_xor_sync(~0u, given, 2);
      const unsigned four[2] = {second ? got : own, second ? own : got};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const unsigned other = __shfl_xor_sync(~0u, four[e], 8);
        a.x[2 * n][e] = right ? other : four[e];
        a.x[2 * n + 1][e] = right ? four[e] : other;
      }
    }
    return a;
  }

 private:
  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ __forceinline__ static int column_block() { return lane() / 8 % 2; }
  // the first row, and the first column, of this lane's quad
  __device__ __forceinline__ static int first_row() { return 4 * (lane() / 4 % 2) + 8 * (lane() / 16); }
  __device__ __forceinline__ static int first_column() { return 4 * column_block() + 8 * (lane() / 16); }

  // 16 consecutive channels
  template <MmaLayout layout>
  __device__ __forceinline__ static Factor<layout> load_line(const __half* from) {
    const uint4 first = *reinterpret_cast<const uint4*>(from), second = *reinterpret_cast<const uint4*>(from + 8);
    return {{{first.x, first.y}, {first.z, first.w}, {second.x, second.y}, {second.z, second.w}}};
  }
  // four consecutive scalars of each of four rows
  template <MmaLayout layout>
  __device__ __forceinline__ static Factor<layout> load_fours(const __half* from, int stride) {
    Factor<layout> four;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const uint2 words = *reinterpret_cast<const uint2*>(from + (4 * s + lane() % 4) * stride);
      four.x[s][0] = words.x, four.x[s][1] = words.y;
    }
    return four;
  }
};

namespace fragment {

template <MmaFactor T, MmaShape shape>
struct Of {
  using Type = OctetFragments<T, shape>;
};
template <>
struct Of<__half, MmaShape::m8n8k4> {
  using Type = QuadPairFragments;
};

}  // namespace fragment

/// The matrices for factors of type T in the layout of an instruction.
template <MmaFactor T, MmaShape shape = MmaShape::native>
using Fragments = typename fragment::Of<T, shape == MmaShape::native ? native_shape<T> : shape>::Type;

}  // namespace nprf::cuda
