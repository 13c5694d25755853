// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/device/storage.cuh"

namespace nprf::cuda {

/// Matrices (tokens,channels), one for each z = (sequence, head), with arbitrary strides. Of keys and values, `group`
/// heads of queries next to each other may share one.
template <class S>
struct Operand {
  const S* data;
  std::ptrdiff_t batch_stride, head_stride, token_stride, channel_stride;
  int heads, tokens, channels;
  bool has_aligned_rows = false;  // of whole vectors of 16 bytes, at multiples of 16 bytes
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

  __device__ const S* of(int z) const { return data + z / heads * batch_stride + z % heads / group * head_stride; }

 private:
  Operand() = default;
};

/// A pointer to row i of matrix z.
template <class T>
__device__ __forceinline__ T* row_of(const DeviceMatrixView<T>& x, int z, std::ptrdiff_t i) {
  const int heads = static_cast<int>(x.heads);  // a division of 64 bits would take ten times as long
  return x.data + z / heads * x.batch_stride + z % heads * x.head_stride + i * x.token_stride;
}

/// A tile in shared memory: the entry of token t and channel k is values[t token_step + k channel_step].
struct TileLayout {
  float* values;
  int token_step, channel_step;
};

struct TileRange {
  int first, count;
};

/// Loads a range of tokens and channels of x, the matrix at `data` of its matrices, into a tile; zero beyond the end of
/// x. All threads of the block take part.
template <class S>
__device__ __forceinline__ void load_tile(const TileLayout& tile, const Operand<S>& x, const S* data, TileRange tokens,
                                          TileRange channels) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const bool along_tokens = x.token_stride == 1;
  for (int e = thread; e < tokens.count * channels.count; e += threads) {
    const int t = along_tokens ? e % tokens.count : e / channels.count,
              k = along_tokens ? e / tokens.count : e % channels.count;
    const bool inside = tokens.first + t < x.tokens && channels.first + k < x.channels;
    tile.values[t * tile.token_step + k * tile.channel_step] =
        inside ? to_float(data[(tokens.first + t) * x.token_stride + (channels.first + k) * x.channel_stride]) : 0.0f;
  }
}

}  // namespace nprf::cuda
