// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <type_traits>

#include "nprf/core/error.hpp"

namespace nprf::cuda {

/// A view of an array [batch, heads, tokens, channels] in device memory. Channels are contiguous; the other dimensions
/// have strides, in scalars.
template <class T>
struct DeviceMatrixView {
  T* data = nullptr;
  std::ptrdiff_t batch = 0, heads = 0, tokens = 0, channels = 0;
  std::ptrdiff_t batch_stride = 0, head_stride = 0, token_stride = 0;

  DeviceMatrixView() = default;
  /// A contiguous array.
  DeviceMatrixView(T* data_, std::ptrdiff_t batch_, std::ptrdiff_t heads_, std::ptrdiff_t tokens_,
                   std::ptrdiff_t channels_)
      : data(data_),
        batch(batch_),
        heads(heads_),
        tokens(tokens_),
        channels(channels_),
        batch_stride(heads_ * tokens_ * channels_),
        head_stride(tokens_ * channels_),
        token_stride(channels_) {}
  /// One contiguous matrix (tokens,channels).
  DeviceMatrixView(T* data_, std::ptrdiff_t tokens_, std::ptrdiff_t channels_)
      : DeviceMatrixView(data_, 1, 1, tokens_, channels_) {}

  /// Converts a mutable view to a const one.
  template <class U>
    requires std::is_same_v<T, const U>
  DeviceMatrixView(const DeviceMatrixView<U>& x)
      : data(x.data),
        batch(x.batch),
        heads(x.heads),
        tokens(x.tokens),
        channels(x.channels),
        batch_stride(x.batch_stride),
        head_stride(x.head_stride),
        token_stride(x.token_stride) {}

  std::ptrdiff_t size() const { return batch * heads * tokens * channels; }
};

/// Whether the addresses of all rows of a view are multiples of `bytes`.
template <class T>
bool is_aligned_by(const DeviceMatrixView<T>& x, std::size_t bytes) {
  const auto all = reinterpret_cast<std::uintptr_t>(x.data) |
                   static_cast<std::uintptr_t>(x.batch_stride | x.head_stride | x.token_stride) * sizeof(T);
  return all % bytes == 0;
}

/// Throws InvalidArgument unless the view has this shape, the rows of each matrix do not overlap, and its data is
/// aligned for T and not null. The data may be null if the size is 0.
template <class T>
void check_matrix(const DeviceMatrixView<T>& x, const char* name, std::ptrdiff_t batch, std::ptrdiff_t heads,
                  std::ptrdiff_t tokens, std::ptrdiff_t channels) {
  require(x.batch == batch && x.heads == heads && x.tokens == tokens && x.channels == channels, name, ": expected ",
          batch, " x ", heads, " x ", tokens, " x ", channels, " (batch, heads, tokens, channels), got ", x.batch,
          " x ", x.heads, " x ", x.tokens, " x ", x.channels);
  require(x.token_stride >= x.channels || x.tokens <= 1, name, ": expected a token_stride of at least ", x.channels,
          " (channels), got ", x.token_stride);
  require(x.data != nullptr || x.size() == 0, name, ": expected data, got a null pointer");
  require(reinterpret_cast<std::uintptr_t>(x.data) % sizeof(T) == 0, name, ": expected data aligned to ", sizeof(T),
          " bytes, got an address that is not");
}

/// Like check_matrix, for a view that is written to. Also throws unless the rows of all matrices are disjoint.
template <class T>
void check_output(const DeviceMatrixView<T>& x, const char* name, std::ptrdiff_t batch, std::ptrdiff_t heads,
                  std::ptrdiff_t tokens, std::ptrdiff_t channels) {
  check_matrix(x, name, batch, heads, tokens, channels);
  struct Dimension {
    std::ptrdiff_t stride, size;
  };
  Dimension all[] = {{x.token_stride, tokens}, {x.head_stride, heads}, {x.batch_stride, batch}};
  std::sort(std::begin(all), std::end(all), [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  std::ptrdiff_t taken = channels;
  for (const auto& [stride, size] : all) {
    if (size <= 1) continue;
    require(stride >= taken || x.size() == 0, name, ": expected strides such that rows do not overlap, got ",
            x.batch_stride, ", ", x.head_stride, " and ", x.token_stride, " (batch, heads, tokens)");
    taken += stride * (size - 1);
  }
}

}  // namespace nprf::cuda
