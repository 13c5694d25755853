// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "nprf/cuda/device/scales.cuh"
#include "nprf/cuda/device/strided_operand.cuh"

namespace nprf::cuda {

/// The columns [V 1] of one matrix z: the values (n_k,p), then a column of the constant `one`. Rows of padding keys are
/// zero, and their values are not read.
template <Storage S>
struct ColumnsOf {
  const S* data;
  std::ptrdiff_t token_stride, channel_stride;
  const bool* mask;  // (n_k): false is padding; null: no padding
  int keys, p;
  float one, factor;  // factor multiplies the values

  __device__ __forceinline__ bool is_present(int j) const { return j < keys && !(mask && !mask[j]); }

  __device__ __forceinline__ float operator()(int j, int column) const {
    if (column > p || !is_present(j)) return 0.0f;
    return column == p ? one : factor * to_float(data[j * token_stride + column * channel_stride]);
  }

  /// load() and entry_of() are operator() in two steps, so that many entries can be loaded at a time. load() has no
  /// branch and does not wait for the mask: the values of padding keys are read, but not used.
  struct Loaded {
    float value;
    bool is_present;
  };
  __device__ __forceinline__ Loaded load(int j, int column) const {
    Loaded entry{0.0f, j < keys};
    if ((j < keys) & (column < p)) entry.value = to_float(data[j * token_stride + column * channel_stride]);
    if ((j < keys) & (mask != nullptr)) entry.is_present = mask[j];
    return entry;
  }
  __device__ __forceinline__ float entry_of(const Loaded& entry, int column) const {
    return !entry.is_present ? 0.0f : column == p ? one : factor * entry.value;
  }
  __device__ __forceinline__ float2 pair(int j, int pair) const {
    return make_float2((*this)(j, 2 * pair), (*this)(j, 2 * pair + 1));
  }
};

/// The columns [V 1] of all matrices z.
template <Storage S>
struct Columns {
  Operand<S> V;                  // (n_k,p)
  const bool* mask;              // [sequence, n_k]: false is padding; null: no padding
  const int* largest = nullptr;  // [z]: values are divided by power_of_two_scale(largest); null: not divided
  float one = 1;  // 0 if no denominators are needed: an FFT transforms the ones together with a column of values

  __device__ __forceinline__ ColumnsOf<S> of(int z) const {
    const bool* own_mask = mask ? mask + static_cast<std::ptrdiff_t>(z / V.heads) * V.tokens : nullptr;
    const float factor = largest ? power_of_two_scale(largest[z]).inverse : 1.0f;
    return {V.of(z), V.token_stride, V.channel_stride, own_mask, V.tokens, V.channels, one, factor};
  }
};

/// tile[t][k] = columns(t0 + t, k0 + k) for t < tokens and k < channels. All threads of the block take part. A row of
/// the tile has `stride` scalars. Returns true if this thread has loaded a NaN or an infinity.
template <Storage S, class T>
__device__ __forceinline__ bool load_columns(T* tile, int stride, const ColumnsOf<S>& columns, int t0, int tokens,
                                             int k0, int channels) {
  bool found = false;
  const bool along_tokens = columns.token_stride == 1;
  for (int e = static_cast<int>(threadIdx.x); e < tokens * channels; e += static_cast<int>(blockDim.x)) {
    const int t = along_tokens ? e % tokens : e / channels, k = along_tokens ? e / tokens : e % channels;
    const float value = columns(t0 + t, k0 + k);
    found |= !(fabsf(value) <= largest_float);
    store(tile + t * stride + k, value);
  }
  return found;
}

/// load_columns() with several loads in flight at a time, whose results need registers. All `threads` threads of the
/// block take part.
template <int tokens, int channels, int threads, Storage S, class T>
__device__ __forceinline__ bool load_columns_at_once(T* tile, int stride, const ColumnsOf<S>& columns, int t0, int k0) {
  bool found = false;
  const auto load = [&](int t, int k) { return columns.load(t0 + t, k0 + k); };
  const auto store_entry = [&](int t, int k, const typename ColumnsOf<S>::Loaded& entry) {
    const float value = columns.entry_of(entry, k0 + k);
    found |= !(fabsf(value) <= largest_float);
    store(tile + t * stride + k, value);
  };
  if (columns.token_stride == 1)
    copy_tile<channels, tokens, threads, 8>(
        [&](int k, int t) { return load(t, k); },
        [&](int k, int t, const typename ColumnsOf<S>::Loaded& entry) { store_entry(t, k, entry); });
  else
    copy_tile<tokens, channels, threads, 8>(load, store_entry);
  return found;
}

/// The number of pairs of columns of [V 1] with p value columns.
constexpr int column_pairs(int p) { return p / 2 + 1; }

}  // namespace nprf::cuda
