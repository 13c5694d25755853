// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "nprf/cuda/device/mma.cuh"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/device/value_columns.cuh"

namespace nprf::cuda {

struct RowShape {
  static constexpr int channels = 64, threads = 128;
  static constexpr int stride = channels + 8;  // of the tile: eight rows meet all banks

  static constexpr std::size_t bytes(int rows) {
    return sizeof(__nv_bfloat16) * static_cast<std::size_t>(rows) * stride;
  }
};

/// Whether values lie in eights at multiples of 16 bytes, in rows that are near each other. load_columns takes those
/// that do not.
template <Storage S>
__device__ __forceinline__ bool in_eights(const ColumnsOf<S>& U) {
  return reinterpret_cast<std::uintptr_t>(U.data) % 16 == 0 && U.token_stride % 8 == 0 && U.token_stride < 1 << 24 &&
         U.channel_stride == 1 && U.p % 8 == 0 && U.p > 0;
}

/// Rows of 64 scalars on their way to a tile of bfloat16 in shared memory: fetched into registers, all loads at once,
/// and put into the tile when it is free. By all threads of a block, each of which has eight scalars of some rows.
template <int tokens>
class Rows {
 public:
  /// x[t0 + t][k0 + k], zero where x ends; its channels lie side by side, in sixteens.
  __device__ __forceinline__ void fetch(const Operand<__nv_bfloat16>& x, const __nv_bfloat16* data, int t0, int k0) {
    const bool inside = k0 + channel() < x.channels;
    const __nv_bfloat16* from = data + (t0 * x.token_stride + k0);
#pragma unroll
    for (int e = 0; e < each; ++e)
      m_eight[e] = inside && t0 + token(e) < x.tokens ? load(from + place(e, x.token_stride)) : uint4{};
  }

  /// U[j0 + t][p0 + k] of values in eights, zero where they end.
  template <Storage S>
  __device__ __forceinline__ void fetch(const ColumnsOf<S>& U, int j0, int p0) {
    const bool inside = p0 + channel() < U.p;
    const S* from = U.data + (j0 * U.token_stride + p0);
    bool has[each];  // all of the mask at once too
#pragma unroll
    for (int e = 0; e < each; ++e) has[e] = inside && j0 + token(e) < U.keys;
    if (U.mask)
#pragma unroll
      for (int e = 0; e < each; ++e) has[e] = has[e] && U.mask[j0 + token(e)];
#pragma unroll
    for (int e = 0; e < each; ++e) m_eight[e] = has[e] ? load(from + place(e, U.token_stride)) : uint4{};
  }

  /// tile[t][k], of what was fetched as S, for the first `channels` of its channels.
  template <class S = __nv_bfloat16>
  __device__ __forceinline__ void put(__nv_bfloat16* tile, int channels = RowShape::channels) const {
    if (channel() >= channels) return;
#pragma unroll
    for (int e = 0; e < each; ++e)
      *reinterpret_cast<uint4*>(tile + token(e) * RowShape::stride + channel()) = rounded<S>(m_eight[e]);
  }

 private:
  // threads that share a row, rows that all threads have at once, and rows of a thread
  static constexpr int in_row = RowShape::channels / 8, at_once = RowShape::threads / in_row, each = tokens / at_once;

  __device__ __forceinline__ static int channel() { return static_cast<int>(threadIdx.x) % in_row * 8; }
  __device__ __forceinline__ static int token(int e) { return static_cast<int>(threadIdx.x) / in_row + e * at_once; }

  // of the thread's eight scalars in row token(e)
  __device__ __forceinline__ static int place(int e, std::ptrdiff_t token_stride) {
    return token(e) * static_cast<int>(token_stride) + channel();
  }

  template <class T>
  __device__ __forceinline__ static uint4 load(const T* from) {
    return __ldg(reinterpret_cast<const uint4*>(from));
  }

  template <class S>
  __device__ __forceinline__ static uint4 rounded(const uint4& eight) {
    if constexpr (std::is_same_v<S, __nv_bfloat16>) {
      return eight;
    } else {
      S x[8];
      std::memcpy(x, &eight, sizeof(x));
      const auto both = [&](int k) { return pack(to_float(x[k]), to_float(x[k + 1])); };
      return {both(0), both(2), both(4), both(6)};
    }
  }

  uint4 m_eight[each];
};

}  // namespace nprf::cuda
