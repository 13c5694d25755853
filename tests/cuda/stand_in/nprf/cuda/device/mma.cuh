// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <bit>
#include <cstdint>
#include <type_traits>

#include "nprf/cuda/device/storage.cuh"

/// Replaces nprf/cuda/device/mma.cuh on the host; the include path finds it first. It has the same functions, with the
/// register layouts that PTX documents.
namespace nprf::cuda {

/// The instruction that multiplies. m16n8k16 multiplies half and bfloat16 from compute capability 8.0 on, m16n8k8 half
/// from 7.5 on, and m8n8k4 half from 7.0 on. native: of these three, in this order, the first one that the device code
/// can have.
enum class MmaShape { native, m8n8k4, m16n8k8, m16n8k16 };

/// The order in which the factors of m8n8k4 are distributed over the lanes.
enum class MmaLayout { row, column };

template <MmaFactor T>
constexpr bool has_mma = true;

template <MmaFactor T>
constexpr MmaShape native_shape = MmaShape::m16n8k16;

namespace mma_on_host {

/// The halves of `words` registers.
template <MmaFactor T, int words>
struct Halves {
  float of[2 * words];

  explicit Halves(const unsigned (&registers)[words]) {
    for (int e = 0; e < 2 * words; ++e) {
      const T x = std::bit_cast<T>(static_cast<std::uint16_t>(registers[e / 2] >> 16 * (e % 2)));
      if constexpr (std::is_same_v<T, __half>)
        of[e] = __half2float(x);
      else
        of[e] = __bfloat162float(x);
    }
  }
};

/// What a lane contributes.
template <MmaFactor T, int words_of_a, int words_of_b>
struct Operands {
  Halves<T, words_of_a> a;
  Halves<T, words_of_b> b;

  Operands(const unsigned (&registers_of_a)[words_of_a], const unsigned (&registers_of_b)[words_of_b])
      : a(registers_of_a), b(registers_of_b) {}
};

template <MmaFactor T>
unsigned bits_of(float x) {
  if constexpr (std::is_same_v<T, __half>)
    return std::bit_cast<std::uint16_t>(__float2half_rn(x));
  else
    return std::bit_cast<std::uint16_t>(__float2bfloat16_rn(x));
}

}  // namespace mma_on_host

// Half e % 2 of register e / 2 of lane 4 g + t holds
//   a: row g, or g + 8 for e = 2, 3, 6, 7; column 2 t + e % 2, plus 8 for e >= 4
//   b: row 2 t + e % 2, plus 8 for e >= 2; column g
// c[e] is at row g, or g + 8 for e >= 2; column 2 t + e % 2.
template <MmaFactor T>
void mma_m16n8k16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  const stand_in::Exchange all(mma_on_host::Operands<T, 4, 2>(a, b));
  const int g = stand_in::lane() / 4, t = stand_in::lane() % 4;
  for (int k = 0; k < 16; ++k) {
    const int right = k / 8, e_of_k = k % 2;
    const auto& left = all.from(4 * g + k % 8 / 2).a.of;
    for (int e = 0; e < 4; ++e) {
      const int column = 2 * t + e % 2, lower = e / 2;
      c[e] += left[4 * right + 2 * lower + e_of_k] * all.from(4 * column + k % 8 / 2).b.of[2 * right + e_of_k];
    }
  }
}

// Half e % 2 of register e / 2 of lane 4 g + t holds of a row g, or g + 8 for e >= 2, and column 2 t + e % 2; of b row
// 2 t + e and column g. c is that of m16n8k16.
inline void mma_m16n8k8(float (&c)[4], unsigned a_0, unsigned a_1, unsigned b) {
  const stand_in::Exchange all(mma_on_host::Operands<__half, 2, 1>({a_0, a_1}, {b}));
  const int g = stand_in::lane() / 4, t = stand_in::lane() % 4;
  for (int k = 0; k < 8; ++k) {
    const auto& left = all.from(4 * g + k / 2).a.of;
    for (int e = 0; e < 4; ++e) c[e] += left[2 * (e / 2) + k % 2] * all.from(4 * (2 * t + e % 2) + k / 2).b.of[k % 2];
  }
}

// Lane l belongs to the pair of quads l / 4 % 4, whose first lane is that times 4. It is number u = l % 4 + 4 (l / 16)
// of the pair. Half e of its registers holds of a, by rows, row u and column e; by columns, row e + 4 (l / 16) and
// column l % 4; of b, by columns, row e and column u; by rows, row l % 4 and column e + 4 (l / 16). c[e] is at row l %
// 2 + e & 2 + 4 (l / 16) and column l & 2 + e & 1 + e & 4.
template <MmaLayout a_layout, MmaLayout b_layout>
void mma_m8n8k4(float (&c)[2][4], const unsigned (&a)[2], const unsigned (&b)[2]) {
  using Operands = mma_on_host::Operands<__half, 2, 2>;
  const stand_in::Exchange all(Operands(a, b));
  const int l = stand_in::lane(), first = l / 4 % 4 * 4;
  // the entry of line `line` of 8, and of channel k of 4; the lines are rows of a, or columns of b
  const auto entry = [&](auto halves, bool has_own_line, int line, int k) {
    const int own = has_own_line ? line % 4 : k, e = has_own_line ? k : line % 4;
    return (all.from(first + own + 16 * (line / 4)).*halves).of[e];
  };
  for (int e = 0; e < 8; ++e) {
    const int row = l % 2 + (e & 2) + 4 * (l / 16), column = (l & 2) + (e & 1) + (e & 4);
    for (int k = 0; k < 4; ++k)
      c[e / 4][e % 4] += entry(&Operands::a, a_layout == MmaLayout::row, row, k) *
                         entry(&Operands::b, b_layout == MmaLayout::column, column, k);
  }
}

// Register i of lane l holds elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of matrix i, or of its transpose.
template <bool transposed, MmaFactor T>
void load_matrices(unsigned (&x)[4], const T* row) {
  const stand_in::Exchange<const T*> rows(row);
  const int l = stand_in::lane();
  for (int i = 0; i < 4; ++i) {
    unsigned halves[2];
    for (int e = 0; e < 2; ++e) {
      const int down = transposed ? l % 4 * 2 + e : l / 4, right = transposed ? l / 4 : l % 4 * 2 + e;
      halves[e] = std::bit_cast<std::uint16_t>(rows.from(8 * i + down)[right]);
    }
    x[i] = halves[0] | halves[1] << 16;
  }
}

template <MmaFactor T>
unsigned pack(float first, float second) {
  return mma_on_host::bits_of<T>(first) | mma_on_host::bits_of<T>(second) << 16;
}

}  // namespace nprf::cuda
