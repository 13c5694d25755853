// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace nprf::ptx {

/// bfloat16: the upper half of a float.
struct BrainFloat {
  std::uint16_t bits = 0;

  BrainFloat() = default;
  /// Rounds to nearest, ties to even.
  explicit BrainFloat(float x) {
    const auto word = std::bit_cast<std::uint32_t>(x);
    bits =
        std::isnan(x) ? std::uint16_t{0x7fff} : static_cast<std::uint16_t>((word + 0x7fffu + (word >> 16 & 1u)) >> 16);
  }
  static BrainFloat of_bits(std::uint16_t bits) {
    BrainFloat x;
    x.bits = bits;
    return x;
  }
  explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};

}  // namespace nprf::ptx
