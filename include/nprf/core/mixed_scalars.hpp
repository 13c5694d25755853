// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>

namespace nprf::detail {

template <class X, class T>
concept OfOtherScalar = requires { typename X::Scalar; } && !std::same_as<typename X::Scalar, T>;

/// True if a matrix or view among X... has another scalar type than T. No call accepts such arguments: views do not
/// convert scalars.
template <class T, class... X>
concept MixedScalars = (OfOtherScalar<X, T> || ...);

/// Fails to compile with a readable message. Without this function the compiler only reports that no overload matches.
template <class T, class... X>
  requires MixedScalars<T, X...>
void reject_mixed_scalars() {
  static_assert(!MixedScalars<T, X...>, "nprf: all arrays of a call must have the scalar type of its feature map");
}

}  // namespace nprf::detail
