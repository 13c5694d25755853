// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "nprf/core/types.hpp"

/// Powers of two, computed from their bits. Multiplication by a power of two is exact unless it overflows or
/// underflows.
namespace nprf {

namespace detail {

template <Real T>
using Bits = std::conditional_t<sizeof(T) == sizeof(std::uint32_t), std::uint32_t, std::uint64_t>;

}  // namespace detail

/// 2^exponent, which must be a normal number.
template <Real T>
constexpr T power_of_two(int exponent) {
  using Limits = std::numeric_limits<T>;
  return std::bit_cast<T>(static_cast<detail::Bits<T>>(exponent + Limits::max_exponent - 1) << (Limits::digits - 1));
}

/// floor(log2 x) of a positive normal x; finite scales of power_of_two_scale() are always positive and normal. Zero and
/// subnormal x give a smaller result than any normal number, infinity a larger one. x must not be negative.
template <Real T>
constexpr int exponent_of(T x) {
  using Limits = std::numeric_limits<T>;
  return static_cast<int>(std::bit_cast<detail::Bits<T>>(x) >> (Limits::digits - 1)) - (Limits::max_exponent - 1);
}

/// The power-of-two scale of numbers whose largest magnitude is `largest`. The quotient largest / scale is between 1/2
/// and 1 (below 1/2 for a subnormal magnitude, below 2 for one in the last binade), and both the scale and its inverse
/// are finite. The scale is 1 for infinity and NaN, and infinity for 0. Callers replace this infinity and its inverse
/// by the factor 0, so that a column of zeros gives exact zeros even if the rounding errors of other columns reach it.
template <Real T>
T power_of_two_scale(T largest) {
  using Limits = std::numeric_limits<T>;
  if (largest == 0) return Limits::infinity();
  if (!std::isfinite(largest)) return 1;
  return power_of_two<T>(std::clamp(exponent_of(largest) + 1, Limits::min_exponent, Limits::max_exponent - 1));
}

/// x *= 2^exponent for a number or a row and any exponent. It multiplies in steps, whose exponents have the same sign,
/// so that no step overflows or rounds where the result does not. |exponent| <= max_exponent - 2 needs one step.
template <Real T, class X>
void scale_by_power_of_two(int exponent, X&& x) {
  constexpr int most = std::numeric_limits<T>::max_exponent - 2;
  for (int step; (step = std::clamp(exponent, -most, most)) != 0; exponent -= step) x *= power_of_two<T>(step);
}

}  // namespace nprf
