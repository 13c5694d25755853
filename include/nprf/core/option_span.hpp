// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <span>
#include <type_traits>
#include <vector>

namespace nprf {

/// A std::span<const T> with the same constructors. A vector of another scalar type is rejected at compile time with a
/// readable message, and so is std::vector<bool>, which packs its elements into bits and has no array of bool.
template <class T>
class OptionSpan : public std::span<const T> {
 public:
  using std::span<const T>::span;
  constexpr OptionSpan() = default;
  constexpr OptionSpan(std::span<const T> x) : std::span<const T>(x) {}

  template <class X, class Allocator>
    requires(!std::constructible_from<std::span<const T>, const std::vector<X, Allocator>&>)
  OptionSpan(const std::vector<X, Allocator>&) {
    if constexpr (std::same_as<T, bool>)
      static_assert(!std::same_as<T, bool>,
                    "nprf: key_mask must be an array of bool, and std::vector<bool> has none: pass {data, size} of a "
                    "std::unique_ptr<bool[]> or of an Eigen::Array<bool, Eigen::Dynamic, 1>");
    else
      static_assert(std::same_as<T, bool>, "nprf: lengths must be nprf::Index: pass a std::vector<nprf::Index>");
  }
};

}  // namespace nprf
