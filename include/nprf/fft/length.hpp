// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/types.hpp"

namespace nprf::fft {

/// True if n >= 1 has no prime factor above 7: the lengths that FFTs are fast at.
constexpr bool is_smooth(Index n) {
  if (n < 1) return false;
  for (Index prime : {2, 3, 5, 7})
    while (n % prime == 0) n /= prime;
  return n == 1;
}

/// The smallest length >= n, at least 2, that is even and 2-3-5-7-smooth.
constexpr Index smooth_length(Index n) {
  Index length = std::max<Index>(n + n % 2, 2);
  while (!is_smooth(length)) length += 2;
  return length;
}

}  // namespace nprf::fft
