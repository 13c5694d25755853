// SPDX-License-Identifier: MIT
#pragma once

#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "nprf/attention/heads_view.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"

namespace nprf::python {

namespace nb = nanobind;

/// An array of any scalar type, shape and strides in the memory of the host: of NumPy, or by DLPack or the buffer
/// protocol.
using InputArray = nb::ndarray<nb::ro, nb::device::cpu>;
using OutputArray = nb::ndarray<nb::device::cpu>;

/// What the second and third axis of a four-dimensional array are. Others are [heads, tokens, channels] and
/// [tokens, channels], or with tokens first [tokens, heads, channels] and [tokens, channels].
enum class Axes { heads_first, tokens_first };

template <Real T>
constexpr const char* scalar_name = sizeof(T) == 4 ? "float32" : "float64";

/// Throws InvalidArgument unless the scalars of `x` are T.
template <Real T, class Array>
void check_scalar(const Array& x, const char* name) {
  require(x.dtype() == nb::dtype<T>(), name, ": expected ", scalar_name<T>, ", as the other arrays, got another type");
}

/// The sizes and strides of an array as HeadsView has them.
struct Layout {
  Index batch, heads, tokens, channels;
  HeadStrides strides;
  Index channel_stride;

  template <class Array>
  static Layout of(const Array& x, const char* name, Axes axes) {
    const auto dims = static_cast<Index>(x.ndim());
    require(2 <= dims && dims <= 4, name, ": expected 2, 3 or 4 dimensions, got ", dims);
    const auto size = [&](Index axis) { return static_cast<Index>(x.shape(static_cast<std::size_t>(axis))); };
    const auto stride = [&](Index axis) { return static_cast<Index>(x.stride(static_cast<std::size_t>(axis))); };
    const bool first = axes == Axes::tokens_first && dims > 2;
    const Index token = first ? dims - 3 : dims - 2, head = first ? dims - 2 : dims - 3;
    Layout layout{1, 1, size(token), size(dims - 1), {stride(token), 0, 0}, stride(dims - 1)};
    if (dims > 2) layout.heads = size(head), layout.strides.head = stride(head);
    if (dims > 3) layout.batch = size(0), layout.strides.batch = stride(0);
    // the stride of an axis of one entry has no meaning
    if (layout.tokens <= 1) layout.strides.token = std::max<Index>(layout.channels, 1);
    if (layout.heads <= 1) layout.strides.head = 0;
    if (layout.batch <= 1) layout.strides.batch = 0;
    if (layout.channels <= 1) layout.channel_stride = 1;
    return layout;
  }

  Index size() const { return batch * heads * tokens * channels; }

  /// Whether HeadsView can describe it.
  bool is_view() const {
    return channel_stride == 1 && strides.token >= std::max<Index>(channels, 1) && strides.head >= 0 &&
           strides.batch >= 0;
  }
};

template <class T>
bool is_aligned(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % sizeof(T) == 0;
}

/// Queries, keys, values or gradients that are read: in place, or a copy if the channels of a token are not contiguous.
template <Real T>
class Tokens {
 public:
  Tokens(const InputArray& x, const char* name, Axes axes) : m_layout(Layout::of(x, name, axes)) {
    check_scalar<T>(x, name);
    m_data = static_cast<const T*>(x.data());
    if (m_layout.size() > 0 && (!m_layout.is_view() || !is_aligned<T>(m_data))) copy();
  }

  HeadsView<const T> view() const {
    return {m_data, m_layout.batch, m_layout.heads, m_layout.tokens, m_layout.channels, m_layout.strides};
  }

 private:
  void copy() {
    const Layout from = m_layout;
    m_copy.resize(static_cast<std::size_t>(from.size()));
    const char* const source = reinterpret_cast<const char*>(m_data);
    T* to = m_copy.data();
    for (Index b = 0; b < from.batch; ++b)
      for (Index h = 0; h < from.heads; ++h)
        for (Index i = 0; i < from.tokens; ++i)
          for (Index c = 0; c < from.channels; ++c, ++to) {
            const Index at =
                b * from.strides.batch + h * from.strides.head + i * from.strides.token + c * from.channel_stride;
            std::memcpy(to, source + at * static_cast<Index>(sizeof(T)), sizeof(T));  // it may not be aligned
          }
    m_data = m_copy.data();
    m_layout.strides = {from.channels, from.tokens * from.channels, from.heads * from.tokens * from.channels};
  }

  Layout m_layout;
  const T* m_data;
  std::vector<T> m_copy;
};

/// A view of an array that is written. Throws InvalidArgument if HeadsView cannot describe it: it is never copied.
template <Real T>
HeadsView<T> output_view(const OutputArray& x, const char* name, Axes axes) {
  check_scalar<T>(x, name);
  const Layout layout = Layout::of(x, name, axes);
  require(layout.size() == 0 || (layout.is_view() && is_aligned<T>(x.data())), name,
          ": expected an array whose channels are contiguous, got other strides");
  return {static_cast<T*>(x.data()), layout.batch, layout.heads, layout.tokens, layout.channels, layout.strides};
}

/// The rows of a two-dimensional array.
template <Real T>
Matrix<T> matrix_of(const InputArray& x, const char* name) {
  require(x.ndim() == 2, name, ": expected 2 dimensions, got ", x.ndim());
  const Tokens<T> tokens(x, name, Axes::heads_first);
  return tokens.view()(0, 0);
}

/// A new NumPy array with the scalars of a matrix.
template <Real T>
nb::ndarray<nb::numpy, T> numpy_array(const T* data, std::vector<std::size_t> shape) {
  std::size_t size = 1;
  for (const std::size_t extent : shape) size *= extent;
  auto* copy = new T[std::max<std::size_t>(size, 1)];
  std::copy_n(data, size, copy);
  const nb::capsule owner(copy, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nb::ndarray<nb::numpy, T>(copy, shape.size(), shape.data(), owner);
}
template <Real T>
nb::ndarray<nb::numpy, T> numpy_array(const Matrix<T>& x) {
  return numpy_array<T>(x.data(), {static_cast<std::size_t>(x.rows()), static_cast<std::size_t>(x.cols())});
}

}  // namespace nprf::python
