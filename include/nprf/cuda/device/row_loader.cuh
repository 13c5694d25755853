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

/// The shape of tiles of scalars of 16 bits in shared memory.
struct MmaTileShape {
  static constexpr int channels = 64, threads = 128;
  static constexpr int stride = channels + 8;  // in scalars; rows of 8 consecutive tokens use different banks

  static constexpr std::size_t bytes(int rows) {
    return sizeof(std::uint16_t) * static_cast<std::size_t>(rows) * stride;
  }
};

/// Whether RowLoader can load the values: each row consists of aligned groups of 8 scalars (16 bytes), and the stride
/// between rows is below 2^24. load_columns loads all other values.
template <Storage S>
__device__ __forceinline__ bool has_aligned_rows(const ColumnsOf<S>& U) {
  return reinterpret_cast<std::uintptr_t>(U.data) % 16 == 0 && U.token_stride % 8 == 0 && U.token_stride < 1 << 24 &&
         U.channel_stride == 1 && U.p % 8 == 0 && U.p > 0;
}

/// Copies a tile of `tokens` rows and 64 channels to shared memory as T. fetch() loads the tile into registers, with
/// all loads in flight at once; put() stores it once the shared memory is free. All `threads` threads of a block take
/// part. Each thread holds 8 consecutive scalars of several rows.
template <MmaFactor T, int tokens, int threads = MmaTileShape::threads>
class RowLoader {
 public:
  /// Fetches x[t0 + t][k0 + k], zero beyond the end of x. The channels of x must be contiguous, and their number a
  /// multiple of 16.
  __device__ __forceinline__ void fetch(const Operand<T>& x, const T* data, int t0, int k0) {
    const bool inside = k0 + channel() < x.channels;
    const T* from = data + (t0 * x.token_stride + k0);
#pragma unroll
    for (int e = 0; e < rows_per_thread; ++e)
      m_scalars[e] = inside && t0 + token(e) < x.tokens ? load(from + offset(e, x.token_stride)) : uint4{};
  }

  /// Fetches U[j0 + t][p0 + k], zero beyond the end of U and for padding; has_aligned_rows(U) must hold.
  template <Storage S>
  __device__ __forceinline__ void fetch(const ColumnsOf<S>& U, int j0, int p0) {
    const bool inside = p0 + channel() < U.p;
    const S* from = U.data + (j0 * U.token_stride + p0);
    bool present[rows_per_thread];  // the mask's loads are all in flight at once too
#pragma unroll
    for (int e = 0; e < rows_per_thread; ++e) present[e] = inside && j0 + token(e) < U.keys;
    if (U.mask)
#pragma unroll
      for (int e = 0; e < rows_per_thread; ++e) present[e] = present[e] && U.mask[j0 + token(e)];
#pragma unroll
    for (int e = 0; e < rows_per_thread; ++e)
      m_scalars[e] = present[e] ? load(from + offset(e, U.token_stride)) : uint4{};
  }

  /// Stores tile[t][k] for the first `channels` channels. S is the type that was fetched.
  template <class S = T>
  __device__ __forceinline__ void put(T* tile, int channels = MmaTileShape::channels) const {
    if (channel() >= channels) return;
#pragma unroll
    for (int e = 0; e < rows_per_thread; ++e)
      *reinterpret_cast<uint4*>(tile + token(e) * MmaTileShape::stride + channel()) = converted<S>(m_scalars[e]);
  }

 private:
  // threads per row, rows that the block loads at once, rows per thread
  static constexpr int threads_per_row = MmaTileShape::channels / 8, rows_at_once = threads / threads_per_row,
                       rows_per_thread = tokens / rows_at_once;

  __device__ __forceinline__ static int channel() { return static_cast<int>(threadIdx.x) % threads_per_row * 8; }
  __device__ __forceinline__ static int token(int e) {
    return static_cast<int>(threadIdx.x) / threads_per_row + e * rows_at_once;
  }

  // offset of the thread's 8 scalars in row token(e)
  __device__ __forceinline__ static int offset(int e, std::ptrdiff_t token_stride) {
    return token(e) * static_cast<int>(token_stride) + channel();
  }

  template <class From>
  __device__ __forceinline__ static uint4 load(const From* from) {
    return __ldg(reinterpret_cast<const uint4*>(from));
  }

  template <class S>
  __device__ __forceinline__ static uint4 converted(const uint4& scalars) {
    if constexpr (std::is_same_v<S, T>) {
      return scalars;
    } else {
      S x[8];
      std::memcpy(x, &scalars, sizeof(x));
      const auto pair = [&](int k) { return pack<T>(to_float(x[k]), to_float(x[k + 1])); };
      return {pair(0), pair(2), pair(4), pair(6)};
    }
  }

  uint4 m_scalars[rows_per_thread];
};

}  // namespace nprf::cuda
