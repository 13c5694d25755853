// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/scales.cuh"

namespace nprf::cuda {

/// Which pairs of a row are computed one by one. field: the near pairs (core/lags.hpp) and the pairs whose key is
/// a sink. features, softmax: all pairs, because the row is recomputed from its features, or by exact softmax.
enum class RowKind : unsigned char { field, features, softmax };

/// Numerators and denominators of rows, as sums of parts that are added in order.
struct Sums {
  float *N, *D;  // [part, rows, p] [part, rows]: one row for each z and query
  int parts, p;
  std::ptrdiff_t rows;

  __device__ __forceinline__ float numerator(std::ptrdiff_t row, int column) const {
    float sum = 0;
    for (int part = 0; part < parts; ++part) sum += N[(part * rows + row) * p + column];
    return sum;
  }
  /// to[k] += the numerator of column `column` + k, for k < width. If width is not 1, width and p are multiples of 4.
  template <int width>
  __device__ __forceinline__ void add_numerators(std::ptrdiff_t row, int column, float (&to)[width]) const {
    const float* from = N + row * p + column;
#pragma unroll 2  // loads in flight together
    for (int part = 0; part < parts; ++part, from += rows * p) {
      if constexpr (width == 1) {
        to[0] += *from;
      } else {
#pragma unroll
        for (int k = 0; k < width; k += 4) {
          const float4 four = *reinterpret_cast<const float4*>(from + k);
          to[k] += four.x, to[k + 1] += four.y, to[k + 2] += four.z, to[k + 3] += four.w;
        }
      }
    }
  }
  __device__ __forceinline__ float denominator(std::ptrdiff_t row) const {
    float sum = 0;
    for (int part = 0; part < parts; ++part) sum += D[part * rows + row];
    return sum;
  }
};

/// The sums of a product whose rows were checked against an error bound. Some rows may be recomputed.
struct CheckedSums {
  Sums sums;
  const bool* recomputed = nullptr;  // [z, n_q]: which rows are recomputed; null: none
  Sums extra{};                      // parts of recomputed rows after the first one, which `sums` has
  const int* largest = nullptr;      // [z]: N is divided by the power_of_two_scale of this magnitude; null: not divided

  __device__ __forceinline__ bool is_recomputed(std::ptrdiff_t row) const { return recomputed && recomputed[row]; }
  __device__ __forceinline__ float denominator(std::ptrdiff_t row) const {
    return sums.denominator(row) + (is_recomputed(row) ? extra.denominator(row) : 0.0f);
  }
  __device__ __forceinline__ float numerator(std::ptrdiff_t row, int column) const {
    return sums.numerator(row, column) + (is_recomputed(row) ? extra.numerator(row, column) : 0.0f);
  }
  template <int width>
  __device__ __forceinline__ void add_numerators(std::ptrdiff_t row, int column, float (&to)[width]) const {
    sums.add_numerators(row, column, to);
    if (is_recomputed(row)) extra.add_numerators(row, column, to);
  }
  /// What the quotients of matrix z are multiplied by.
  __device__ __forceinline__ float scale(int z) const { return largest ? power_of_two_scale(largest[z]).value : 1.0f; }
  /// The entry y = N / D of matrix z.
  __device__ __forceinline__ float quotient(int z, std::ptrdiff_t row, int column, float D) const {
    return scale(z) * (numerator(row, column) / D);
  }
};

}  // namespace nprf::cuda
