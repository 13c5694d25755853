// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

/// Replaces nprf/cuda/device/mma.cuh on the host; the include path finds it first. It has the same functions, with the
/// register layout that PTX documents.
namespace nprf::cuda {

constexpr bool has_mma = true;

inline float half_of(unsigned word, int half) {
  const __nv_bfloat16 x{static_cast<std::uint16_t>(word >> 16 * half)};
  return __bfloat162float(x);
}

// Half e % 2 of register e / 2 of lane 4 g + t holds
//   a: row g, or g + 8 for e = 2, 3, 6, 7; column 2 t + e % 2, plus 8 for e >= 4
//   b: row 2 t + e % 2, plus 8 for e >= 2; column g
// c[e] is at row g, or g + 8 for e >= 2; column 2 t + e % 2.
inline void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  struct Operands {
    unsigned a[4], b[2];
  } operands;
  std::memcpy(operands.a, a, sizeof(a));
  std::memcpy(operands.b, b, sizeof(b));
  const stand_in::Exchange<Operands> all(operands);
  const int g = stand_in::lane() / 4, t = stand_in::lane() % 4;
  for (int e = 0; e < 4; ++e)
    for (int k = 0; k < 16; ++k) {
      const int column = 2 * t + e % 2, lower = e / 2, right = k / 8;
      const unsigned left_word = all.from(4 * g + k % 8 / 2).a[2 * right + lower];
      const unsigned right_word = all.from(4 * column + k % 8 / 2).b[right];
      c[e] += half_of(left_word, k % 2) * half_of(right_word, k % 2);
    }
}

// Register i of lane l holds elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of matrix i, or of its transpose.
template <bool transposed>
void load_matrices(unsigned (&x)[4], const __nv_bfloat16* row) {
  const stand_in::Exchange<const __nv_bfloat16*> rows(row);
  const int l = stand_in::lane();
  for (int i = 0; i < 4; ++i) {
    std::uint16_t halves[2];
    for (int e = 0; e < 2; ++e) {
      const int down = transposed ? l % 4 * 2 + e : l / 4, right = transposed ? l / 4 : l % 4 * 2 + e;
      std::memcpy(&halves[e], rows.from(8 * i + down) + right, sizeof(halves[e]));
    }
    x[i] = static_cast<unsigned>(halves[0]) | static_cast<unsigned>(halves[1]) << 16;
  }
}

inline unsigned pack(float first, float second) {
  return static_cast<unsigned>(__float2bfloat16_rn(first).bits) |
         static_cast<unsigned>(__float2bfloat16_rn(second).bits) << 16;
}

}  // namespace nprf::cuda
