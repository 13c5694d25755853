// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>

#include "nprf/core/types.hpp"

namespace nprf {

/// The distances, in scalars, between successive tokens, heads and sequences of an array. Channels are contiguous. If
/// all three are zero, the array is contiguous: [batch, heads, tokens, channels].
struct HeadStrides {
  Index token = 0, head = 0, batch = 0;
};

/// A view of the caller's array of the tokens of all heads and sequences of a batch.
///
///     HeadsView<float> q{data, batch, heads, tokens, channels};                 // [batch, heads, tokens, channels]
///     HeadsView<float> q = tokens_first(data, batch, tokens, heads, channels);  // [batch, tokens, heads, channels]
///     HeadsView<const float> k{data, 2, 8, 64, 32, {32, 0, 2048}};              // all heads share one array
template <class T>
struct HeadsView {
  using Scalar = std::remove_const_t<T>;
  static_assert(Real<Scalar>, "nprf: the scalar of a view of heads must be float or double, or const");
  using Rows =
      Eigen::Map<std::conditional_t<std::is_const_v<T>, const Matrix<Scalar>, Matrix<Scalar>>, 0, Eigen::OuterStride<>>;

  T* data;
  Index batch, heads, tokens, channels;
  HeadStrides strides = {};

  Index size() const { return batch * heads * tokens * channels; }

  /// Returns `strides`; if all of them are zero, the strides of a contiguous array.
  HeadStrides all_strides() const {
    if (strides.token != 0 || strides.head != 0 || strides.batch != 0) return strides;
    return {channels, tokens * channels, heads * tokens * channels};
  }

  operator HeadsView<const T>() const
    requires(!std::is_const_v<T>)
  {
    return {data, batch, heads, tokens, channels, strides};
  }

  /// The rows (tokens,channels) of head h of sequence b.
  Rows operator()(Index b, Index h) const {
    const HeadStrides by = all_strides();
    return {data + (b * by.batch + h * by.head), tokens, channels, Eigen::OuterStride<>(by.token)};
  }
};

/// A view of a contiguous array [batch, tokens, heads, channels], as a joint projection of all heads returns it.
template <class T>
HeadsView<T> tokens_first(T* data, Index batch, Index tokens, Index heads, Index channels) {
  return {data, batch, heads, tokens, channels, {heads * channels, channels, tokens * heads * channels}};
}

/// A view of a matrix as one head of one sequence.
template <class T>
HeadsView<const T> one_head(const MatrixView<T>& x) {
  return {x.data(), 1, 1, x.rows(), x.cols(), {x.rows() > 1 ? x.outerStride() : x.cols()}};
}
template <class T>
HeadsView<T> one_head(Matrix<T>& x) {
  return {x.data(), 1, 1, x.rows(), x.cols()};
}

}  // namespace nprf
