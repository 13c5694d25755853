// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <span>
#include <type_traits>
#include <vector>

namespace nprf {

/// A std::span<const T>, made from what such a span can be made from. A vector of other scalars, and std::vector<bool>,
/// which is no array, are refused by one sentence at compile time.
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
                    "nprf: key_mask is an array of bool, and std::vector<bool> is none: give {data, size} of a "
                    "std::unique_ptr<bool[]> or of an Eigen::Array<bool, Eigen::Dynamic, 1>");
    else
      static_assert(std::same_as<T, bool>, "nprf: lengths are nprf::Index: give a std::vector<nprf::Index>");
  }
};

}  // namespace nprf
