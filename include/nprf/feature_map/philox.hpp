// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>

namespace nprf {

/// Philox4x32-10, a counter-based generator: four random words are a pure function of (key, counter).
///
/// Source: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
struct Philox {
  using Words = std::array<std::uint32_t, 4>;
  using Key = std::array<std::uint32_t, 2>;

  static constexpr Words block(Words x, Key key) {
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t even = std::uint64_t{0xD2511F53} * x[0];
      const std::uint64_t odd = std::uint64_t{0xCD9E8D57} * x[2];
      x = {high(odd) ^ x[1] ^ key[0], low(odd), high(even) ^ x[3] ^ key[1], low(even)};
      key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
    }
    return x;
  }

 private:
  static constexpr std::uint32_t high(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }
  static constexpr std::uint32_t low(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
};

}  // namespace nprf
