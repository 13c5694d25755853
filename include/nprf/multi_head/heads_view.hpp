// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "nprf/attention/batch/head_matrices.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// A view of the caller's array [batch, heads, tokens, channels]: contiguous, the last index varies fastest.
template <class T>
struct HeadsView {
  using Scalar = std::remove_const_t<T>;
  static_assert(Real<Scalar>, "nprf: the scalar of a view of heads must be float or double, or const");

  T* data;
  Index batch, heads, tokens, channels;

  Index size() const { return batch * heads * tokens * channels; }

  operator HeadsView<const T>() const
    requires(!std::is_const_v<T>)
  {
    return {data, batch, heads, tokens, channels};
  }

  operator HeadMatrices<T>() const {
    const Index head = tokens * channels;
    return {data, tokens, channels, channels, head, heads * head};
  }

  /// The rows (tokens,channels) of head h of sequence b.
  Eigen::Map<std::conditional_t<std::is_const_v<T>, const Matrix<Scalar>, Matrix<Scalar>>> operator()(Index b,
                                                                                                      Index h) const {
    return {data + (b * heads + h) * tokens * channels, tokens, channels};
  }
};

/// Throws InvalidArgument unless the view has this shape, whose size in bytes must not overflow, and data if the size
/// is not zero.
template <class T>
void check_heads(const HeadsView<T>& x, const char* name, Index batch, Index heads, Index tokens, Index channels) {
  require(x.batch == batch && x.heads == heads && x.tokens == tokens && x.channels == channels, name, ": expected ",
          batch, " x ", heads, " x ", tokens, " x ", channels, " (batch, heads, tokens, channels), got ", x.batch,
          " x ", x.heads, " x ", x.tokens, " x ", x.channels);
  require(batch >= 0 && heads >= 0 && tokens >= 0 && channels >= 0, name, ": expected no negative size, got ", batch,
          " x ", heads, " x ", tokens, " x ", channels);
  Index room = std::numeric_limits<Index>::max() / static_cast<Index>(sizeof(T));
  for (const Index extent : {batch, heads, tokens, channels})
    room /= std::max<Index>(extent, 1);  // the other sizes must not overflow even if one is zero
  require(room > 0, name, ": expected sizes whose product does not overflow, got ", batch, " x ", heads, " x ", tokens,
          " x ", channels);
  require(x.data != nullptr || x.size() == 0, name, ": expected data, got a null pointer");
}

}  // namespace nprf
