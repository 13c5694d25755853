// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

/// bfloat16: the upper half of a float, rounded to nearest, ties to even.

struct __nv_bfloat16 {
  std::uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  if (std::isnan(x)) return {0x7fff};
  auto bits = std::bit_cast<std::uint32_t>(x);
  bits += 0x7fff + (bits >> 16 & 1);
  return {static_cast<std::uint16_t>(bits >> 16)};
}
