// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

/// bfloat16: the upper half of a float, rounded to nearest, ties to even.

struct __nv_bfloat16 {
  std::uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 x) {
  const std::uint32_t bits = static_cast<std::uint32_t>(x.bits) << 16;
  float y;
  std::memcpy(&y, &bits, sizeof(y));
  return y;
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  if (std::isnan(x)) return {0x7fff};
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  bits += 0x7fff + (bits >> 16 & 1);
  return {static_cast<std::uint16_t>(bits >> 16)};
}
