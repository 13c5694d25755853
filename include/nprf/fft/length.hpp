// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>

namespace nprf::fft {

/// True if n >= 1 has no prime factor above 7: the lengths that FFTs are fast at.
template <std::integral I>
constexpr bool is_smooth(I n) {
  if (n < 1) return false;
  for (const I prime : {I(2), I(3), I(5), I(7)})
    while (n % prime == 0) n /= prime;
  return n == 1;
}

/// The smallest length >= n, at least 2, that is even and 2-3-5-7-smooth.
template <std::integral I>
constexpr I smooth_length(I n) {
  I length = std::max<I>(n + n % 2, 2);
  while (!is_smooth(length)) length += 2;
  return length;
}

}  // namespace nprf::fft
