// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <type_traits>
#include <utility>

#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// The distances, in scalars, between successive tokens, heads and sequences of an array. Channels are contiguous. All
/// zero: a contiguous array [batch, heads, tokens, channels].
struct HeadStrides {
  Index token = 0, head = 0, batch = 0;
};

/// A view of the caller's array of the tokens of all heads and sequences of a batch.
///
///     HeadsView<float> q{data, batch, heads, tokens, channels};                 // [batch, heads, tokens, channels]
///     HeadsView<float> q = tokens_first(data, batch, tokens, heads, channels);  // [batch, tokens, heads, channels]
///     HeadsView<const float> k{data, 2, 8, 64, 32, {32, 0, 2048}};              // all heads are the same array
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

  /// The strides; those of a contiguous array if all are zero.
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

namespace detail {

/// The distance from a view's first scalar to one past its last.
template <class T>
Index extent(const HeadsView<T>& x) {
  if (x.size() == 0) return 0;
  const HeadStrides by = x.all_strides();
  return (x.batch - 1) * by.batch + (x.heads - 1) * by.head + (x.tokens - 1) * by.token + x.channels;
}

/// Whether two views may share a scalar. Views of one array with equal token strides do not if their columns, the
/// channels of all heads of a token, are disjoint.
template <class T, class S>
bool may_overlap(const HeadsView<T>& x, const HeadsView<S>& y) {
  const auto begin = [](const auto& of) { return static_cast<Index>(reinterpret_cast<std::uintptr_t>(of.data)); };
  constexpr Index bytes = sizeof(T);
  const Index from = begin(y) - begin(x);  // in bytes
  if (extent(x) == 0 || extent(y) == 0 || from >= bytes * extent(x) || -from >= bytes * extent(y)) return false;
  const Index token = x.all_strides().token;
  const auto width = [](const auto& of) { return (of.heads - 1) * of.all_strides().head + of.channels; };
  const auto is_in_rows = [&](const auto& of) {
    return of.all_strides().token == token && of.all_strides().batch % token == 0 && width(of) <= token;
  };
  if (!is_in_rows(x) || !is_in_rows(y) || from % bytes != 0) return true;
  const Index column = (from / bytes % token + token) % token;  // of y's first channel, where x's is 0
  return column < width(x) || column + width(y) > token;
}

}  // namespace detail

/// Throws InvalidArgument unless the view has this shape; its size in bytes does not overflow; its strides are not
/// negative, and that of tokens is at least `channels`; and its data are not null, or its size is zero.
template <class T>
void check_heads(const HeadsView<T>& x, const char* name, Index batch, Index heads, Index tokens, Index channels) {
  require(x.batch == batch && x.heads == heads && x.tokens == tokens && x.channels == channels, name, ": expected ",
          batch, " x ", heads, " x ", tokens, " x ", channels, " (batch, heads, tokens, channels), got ", x.batch,
          " x ", x.heads, " x ", x.tokens, " x ", x.channels);
  require(batch >= 0 && heads >= 0 && tokens >= 0 && channels >= 0, name, ": expected no negative size, got ", batch,
          " x ", heads, " x ", tokens, " x ", channels);
  // by products, because a step of a decoder is shorter than many divisions
  bool overflows = false;
  const auto product = [&](Index a, Index c) {
    Index result;
    overflows |= __builtin_mul_overflow(a, c, &result);
    return result;
  };
  Index size = sizeof(T);
  for (const Index extent : {batch, heads, tokens, channels})
    size = product(size, std::max<Index>(extent, 1));  // the other sizes must not overflow even if one is zero
  require(!overflows, name, ": expected sizes whose product does not overflow, got ", batch, " x ", heads, " x ",
          tokens, " x ", channels);
  const HeadStrides by = x.all_strides();
  require(by.token >= channels && by.head >= 0 && by.batch >= 0, name, ": expected strides of at least ", channels,
          ", 0 and 0 (token, head, batch), got ", by.token, ", ", by.head, " and ", by.batch);
  Index last = channels;
  for (const auto& [count, stride] : {std::pair{tokens, by.token}, {heads, by.head}, {batch, by.batch}})
    if (count > 1) overflows |= __builtin_add_overflow(last, product(count - 1, stride), &last);
  product(last, sizeof(T));
  require(!overflows, name, ": expected strides whose array does not overflow, got ", by.token, ", ", by.head, " and ",
          by.batch);
  require(x.data != nullptr || x.size() == 0, name, ": expected data, got a null pointer");
}

/// The same for a view that is written: its tokens must not overlap either.
template <class T>
void check_output(const HeadsView<T>& x, const char* name, Index batch, Index heads, Index tokens, Index channels) {
  check_heads(x, name, batch, heads, tokens, channels);
  if (x.size() == 0) return;
  const HeadStrides by = x.all_strides();
  std::pair<Index, Index> axes[] = {{by.token, tokens}, {by.head, heads}, {by.batch, batch}};
  std::sort(std::begin(axes), std::end(axes));
  Index span = channels;
  for (const auto& [stride, count] : axes) {
    if (count <= 1) continue;
    require(stride >= span, name, ": expected strides that keep tokens apart, got ", by.token, ", ", by.head, " and ",
            by.batch, " (token, head, batch)");
    span += (count - 1) * stride;
  }
}

}  // namespace nprf
