// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>

namespace nprf::fft {

/// True if n >= 1 has no prime factor above 7. FFTs of such lengths are fast.
template <std::integral I>
constexpr bool is_smooth(I n) {
  if (n < 1) return false;
  for (const I prime : {I(2), I(3), I(5), I(7)})
    while (n % prime == 0) n /= prime;
  return n == 1;
}

/// The smallest even length >= max(n, 2) that has no prime factor above 7.
template <std::integral I>
constexpr I smooth_length(I n) {
  I length = std::max<I>(n + n % 2, 2);
  while (!is_smooth(length)) length += 2;
  return length;
}

}  // namespace nprf::fft
