// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <random>

#include "nprf/core/types.hpp"

namespace nprf::test::differential {

/// Random choices from a seed, equal on every platform: only integers are drawn, and the arithmetic on them is exact.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : m_bits(seed) {}

  std::uint64_t bits() { return m_bits(); }

  /// 0, ..., n - 1.
  Index below(Index n) { return static_cast<Index>(m_bits() % static_cast<std::uint64_t>(n)); }
  /// first, ..., last.
  Index between(Index first, Index last) { return first + below(last - first + 1); }
  bool one_in(Index n) { return below(n) == 0; }

  template <class X>
  X one_of(std::initializer_list<X> all) {
    return *(all.begin() + below(static_cast<Index>(all.size())));
  }

  /// 1, ..., most; often small, and often a width of vector registers or next to it.
  Index size(Index most) {
    switch (below(3)) {
      case 0: return between(1, std::max<Index>(most / 8, 1));
      case 1: return std::min(one_of<Index>({1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65}), most);
      default: return between(1, most);
    }
  }

  /// In [0, 1).
  double uniform() { return static_cast<double>(m_bits() >> 11) * 0x1p-53; }

  /// Nearly N(0,1), within +-6: the sum of twelve uniform numbers of 16 bits.
  double normal() {
    std::uint64_t sum = 0;
    for (int word = 0; word < 3; ++word)
      for (std::uint64_t bits = m_bits(), part = 0; part < 4; ++part, bits >>= 16) sum += bits & 0xffff;
    return (static_cast<double>(sum) - 6 * 65535.0) * 0x1p-16;
  }

 private:
  std::mt19937_64 m_bits;
};

}  // namespace nprf::test::differential
