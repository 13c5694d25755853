// SPDX-License-Identifier: MIT
#pragma once

#include <cstring>

#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/device/storage.cuh"

namespace nprf::cuda {

/// Matrices (tokens,channels), one for each z = (sequence, head), with arbitrary strides. `group` heads next to each
/// other share a matrix, as heads of queries may share one of keys or values.
template <class S>
struct Operand {
  const S* data;
  std::ptrdiff_t batch_stride, head_stride, token_stride, channel_stride;
  int heads, tokens, channels;
  bool has_aligned_rows = false;  // rows consist of whole vectors of 16 bytes, at multiples of 16 bytes
  int group = 1;

  Operand(const DeviceMatrixView<const S>& x)
      : data(x.data),
        batch_stride(x.batch_stride),
        head_stride(x.head_stride),
        token_stride(x.token_stride),
        channel_stride(1),
        heads(static_cast<int>(x.heads)),
        tokens(static_cast<int>(x.tokens)),
        channels(static_cast<int>(x.channels)),
        has_aligned_rows(x.tokens > 0 && is_aligned_by(x, 16) && x.channels % static_cast<int>(16 / sizeof(S)) == 0) {}

  /// View of scratch memory [z, channels, stride].
  static Operand by_channel(const S* data, int heads, int tokens, int channels, int stride) {
    Operand x;
    x.data = data;
    x.head_stride = static_cast<std::ptrdiff_t>(channels) * stride;
    x.batch_stride = heads * x.head_stride;
    x.token_stride = 1;
    x.channel_stride = stride;
    x.heads = heads;
    x.tokens = tokens;
    x.channels = channels;
    return x;
  }

  /// The same matrices, each shared by `count` heads next to each other.
  Operand shared_by(int count) const {
    Operand x = *this;
    x.heads *= count, x.group *= count;
    return x;
  }

  __device__ __forceinline__ const S* of(int z) const {
    return data + z / heads * batch_stride + z % heads / group * head_stride;
  }

 private:
  Operand() = default;
};

/// A pointer to row i of matrix z.
template <class T>
__device__ __forceinline__ T* row_of(const DeviceMatrixView<T>& x, int z, std::ptrdiff_t i) {
  const int heads = static_cast<int>(x.heads);  // a division of 64 bits would take ten times as long
  return x.data + z / heads * x.batch_stride + z % heads * x.head_stride + i * x.token_stride;
}

/// A tile in shared memory: the entry of token t and channel k is values[t * token_step + k * channel_step].
struct TileLayout {
  float* values;
  int token_step, channel_step;
};

/// Calls store(row, column, load(row, column)) for all entries of a tile (rows,columns). All `threads` threads of the
/// block take part. Each thread has one column of some rows. It starts up to `in_flight` loads before it stores the
/// first result; the results need registers. A store must not change what is loaded.
template <int rows, int columns, int threads, int in_flight, class Load, class Store>
__device__ __forceinline__ void copy_tile(Load&& load, Store&& store) {
  constexpr int step = threads / columns, turns = rows / step, at_once = turns < in_flight ? turns : in_flight;
  static_assert(threads % columns == 0 && rows % step == 0 && turns % at_once == 0);
  const int column = static_cast<int>(threadIdx.x % columns);
  int row = static_cast<int>(threadIdx.x / columns);
#pragma unroll 1
  for (int turn = 0; turn < turns; turn += at_once, row += at_once * step) {
    decltype(load(0, 0)) entries[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i) entries[i] = load(row + i * step, column);
#pragma unroll
    for (int i = 0; i < at_once; ++i) store(row + i * step, column, entries[i]);
  }
}

/// What the tokens of a matrix are multiplied by when they are loaded: token t by of[t], or by 1.
struct TokenFactors {
  const float* of;

  __device__ __forceinline__ float operator()(int t) const { return of[t]; }
};
struct NoFactors {
  __device__ __forceinline__ float operator()(int) const { return 1; }
};

/// Loads a tile (tokens,channels) of the matrix of x at `data`, from token t0 and channel k0 on, and multiplies it by
/// the factors. The tile is zero beyond the end of x. All `threads` threads of the block take part. Returns true if
/// this thread has loaded a NaN or an infinity.
template <int tokens, int channels, int threads, int in_flight = 8, class S, class Factors = NoFactors>
__device__ __forceinline__ bool load_tile(const TileLayout& tile, const Operand<S>& x, const S* data, int t0, int k0,
                                          const Factors& factors = {}) {
  const auto load = [&](int t, int k) {
    const bool is_inside = (t0 + t < x.tokens) & (k0 + k < x.channels);
    return is_inside ? factors(t0 + t) * to_float(data[(t0 + t) * x.token_stride + (k0 + k) * x.channel_stride]) : 0.0f;
  };
  bool found = false;
  const auto store = [&](int t, int k, float value) {
    found |= !(fabsf(value) <= largest_float);
    tile.values[t * tile.token_step + k * tile.channel_step] = value;
  };
  if (x.token_stride == 1)
    copy_tile<channels, tokens, threads, in_flight>([&](int k, int t) { return load(t, k); },
                                                    [&](int k, int t, float value) { store(t, k, value); });
  else
    copy_tile<tokens, channels, threads, in_flight>(load, store);
  return found;
}

/// Loads the tile that load_tile() loads, to memory in which channels are `stride` scalars apart. If x has aligned
/// rows, a lane loads 16 bytes at a time, lanes next to each other load 8 channels of a token, and stores have no bank
/// conflicts if stride % 32 is 4.
template <int tokens, int channels, int threads, int stride, class S, class Factors = NoFactors>
__device__ __forceinline__ void load_tile_of_rows(float* tile, const Operand<S>& x, const S* data, int t0, int k0,
                                                  const Factors& factors = {}) {
  if (!x.has_aligned_rows) {
    load_tile<tokens, channels, threads, 2>({tile, 1, stride}, x, data, t0, k0, factors);
    return;
  }
  constexpr int width = 16 / sizeof(S), lanes = 8 / width, groups = threads / lanes,
                turns = tokens * channels / 8 / groups;
  static_assert(tokens * channels / 8 % groups == 0 && groups % tokens == 0);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % lanes * width, t = thread / lanes % tokens;
  const float factor = t0 + t < x.tokens ? factors(t0 + t) : 1.0f;
#pragma unroll
  for (int turn = 0; turn < turns; ++turn) {
    const int k = (turn * groups + thread / lanes) / tokens * 8 + lane;
    uint4 all{};
    if (t0 + t < x.tokens && k0 + k < x.channels)
      all = __ldg(reinterpret_cast<const uint4*>(data + (t0 + t) * x.token_stride + k0 + k));
    S values[width];
    std::memcpy(values, &all, sizeof(all));
#pragma unroll
    for (int i = 0; i < width; ++i) tile[(k + i) * stride + t] = factor * to_float(values[i]);
  }
}

}  // namespace nprf::cuda
