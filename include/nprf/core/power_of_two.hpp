// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "nprf/core/types.hpp"

/// Powers of two, from their bits: what is multiplied by one loses no digit.
namespace nprf {

namespace detail {

template <Real T>
using Bits = std::conditional_t<sizeof(T) == sizeof(std::uint32_t), std::uint32_t, std::uint64_t>;

}  // namespace detail

/// 2^exponent, a normal number.
template <Real T>
constexpr T power_of_two(int exponent) {
  using Limits = std::numeric_limits<T>;
  return std::bit_cast<T>(static_cast<detail::Bits<T>>(exponent + Limits::max_exponent - 1) << (Limits::digits - 1));
}

/// floor(log2 x) of a positive normal number, as finite units are; less than that of any normal number for a subnormal
/// one, and more for infinity. For no negative number.
template <Real T>
constexpr int exponent_of(T x) {
  using Limits = std::numeric_limits<T>;
  return static_cast<int>(std::bit_cast<detail::Bits<T>>(x) >> (Limits::digits - 1)) - (Limits::max_exponent - 1);
}

/// The unit of numbers whose largest size this is: a power of two, and the size divided by it is between 1/2 and 1
/// (below 1/2 for a subnormal size, below 2 for one in the last binade; both unit and inverse are finite). 1 for
/// infinity and NaN. Infinity for 0: zeros stay zeros, whatever rounding they share.
template <Real T>
T unit_of(T largest) {
  using Limits = std::numeric_limits<T>;
  if (largest == 0) return Limits::infinity();
  if (!std::isfinite(largest)) return 1;
  return power_of_two<T>(std::clamp(exponent_of(largest) + 1, Limits::min_exponent, Limits::max_exponent - 1));
}

/// x *= 2^exponent, a number or a row, whatever the exponent: in steps of one sign, between which nothing overflows or
/// loses digits that the last does not. There is one step where |exponent| <= max_exponent - 2.
template <Real T, class X>
void scale_by_power_of_two(int exponent, X&& x) {
  constexpr int most = std::numeric_limits<T>::max_exponent - 2;
  for (int step; (step = std::clamp(exponent, -most, most)) != 0; exponent -= step) x *= power_of_two<T>(step);
}

}  // namespace nprf
