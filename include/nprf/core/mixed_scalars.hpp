// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>

namespace nprf::detail {

template <class X, class T>
concept OfOtherScalar = requires { typename X::Scalar; } && !std::same_as<typename X::Scalar, T>;

/// Matrices or views X, of which no call can make its own views: these never change the scalar.
template <class T, class... X>
concept MixedScalars = (OfOtherScalar<X, T> || ...);

/// Stops the compiler with a sentence, where it would only say that no call fits.
template <class T, class... X>
  requires MixedScalars<T, X...>
void refuse() {
  static_assert(!MixedScalars<T, X...>, "nprf: all arrays of a call must have the scalar of its feature map");
}

}  // namespace nprf::detail
