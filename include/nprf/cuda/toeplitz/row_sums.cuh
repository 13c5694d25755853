// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/call_counters.cuh"

namespace nprf::cuda {

/// Numerators and denominators, the sums of their parts in order.
struct Sums {
  float *N, *D;  // [part, rows, p] [part, rows]: a row for each z and query
  int parts, p;
  std::ptrdiff_t rows;

  __device__ __forceinline__ float numerator(std::ptrdiff_t row, int column) const {
    float sum = 0;
    for (int part = 0; part < parts; ++part) sum += N[(part * rows + row) * p + column];
    return sum;
  }
  __device__ __forceinline__ float denominator(std::ptrdiff_t row) const {
    float sum = 0;
    for (int part = 0; part < parts; ++part) sum += D[part * rows + row];
    return sum;
  }
};

/// The sums of a product whose rows have been looked at: some were computed again.
struct CertifiedSums {
  Sums sums;
  const bool* again = nullptr;   // [z, n_q]: which; null: none
  Sums more{};                   // their parts behind the first one
  const int* largest = nullptr;  // [z]: N is divided by the unit of this magnitude; null: by nothing

  __device__ __forceinline__ bool repaired(std::ptrdiff_t row) const { return again && again[row]; }
  __device__ __forceinline__ float denominator(std::ptrdiff_t row) const {
    return sums.denominator(row) + (repaired(row) ? more.denominator(row) : 0.0f);
  }
  __device__ __forceinline__ float numerator(std::ptrdiff_t row, int column) const {
    return sums.numerator(row, column) + (repaired(row) ? more.numerator(row, column) : 0.0f);
  }
  /// y = N / D of matrix z.
  __device__ __forceinline__ float quotient(int z, std::ptrdiff_t row, int column, float D) const {
    return (largest ? power_of_two_scale(largest[z]).value : 1.0f) * (numerator(row, column) / D);
  }
};

}  // namespace nprf::cuda
