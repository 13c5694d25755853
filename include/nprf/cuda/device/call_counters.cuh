// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/device/storage.cuh"

namespace nprf::cuda {

/// What a call did; it lies on the device, and may be copied when its stream has come so far. A row is one of these at
/// most, or as the engine made it.
struct Counts {
  int empty_rows;       // they see no key, or their denominator is lost and features tell no logarithms; they are zero
  int indefinite_rows;  // their denominator is negative, NaN or infinite, or has lost digits to underflow
  int repaired_rows;    // by tiles: the rounding of transforms may have drowned them
  int rescued_rows;     // from logarithms: their denominator had underflown
  float error_bound;    // the largest that transforms may have left in a row, relative to the largest |v| it sees
};

/// Rows of each matrix z that are to be computed again, in no order.
struct RowList {
  int *rows, *sizes;  // [z, n] [z]
  int n;

  __device__ __forceinline__ void append(int z, int row) const {
    rows[static_cast<std::ptrdiff_t>(z) * n + atomicAdd(sizes + z, 1)] = row;
  }
  __device__ __forceinline__ const int* of(int z) const { return rows + static_cast<std::ptrdiff_t>(z) * n; }
};

/// What a call counts, in one piece of memory that is zero at its beginning.
struct Counters {
  Counts* counts;
  int *drowned, *lost;  // [z]: sizes of lists
  int* largest;         // [z]: see unit_of

  static Counters take(Scratch& scratch, int z) {
    const auto all = static_cast<std::size_t>(z);
    Counters counters{};
    counters.counts = scratch.take<Counts>(1);
    counters.drowned = scratch.take<int>(all);
    counters.lost = scratch.take<int>(all);
    counters.largest = scratch.take<int>(all);
    return counters;
  }

  void queue_clear(int z, cudaStream_t stream) const {
    const auto* begin = reinterpret_cast<const char*>(counts);
    const auto* end = reinterpret_cast<const char*>(largest + z);
    check(cudaMemsetAsync(counts, 0, static_cast<std::size_t>(end - begin), stream), "clearing counts");
  }
};

/// The bits of |x|, in the order of their numbers; infinities and NaNs behind all of them.
__device__ __forceinline__ int magnitude(float x) { return __float_as_int(fabsf(x)); }
constexpr int infinite_magnitude = 0x7f800000;

/// The power of two above a magnitude, and its inverse, both normal; 1 for no number.
struct Unit {
  float value, inverse;
};
__device__ __forceinline__ Unit unit_of(int magnitude) {
  if (magnitude >= infinite_magnitude) return {1, 1};
  const int exponent = min(max((magnitude >> 23) + 1, 1), 253);
  return {__int_as_float(exponent << 23), __int_as_float((254 - exponent) << 23)};
}

/// f of all lanes of a warp, the same in each.
template <class T, class F>
__device__ __forceinline__ T over_warp(T x, F&& f) {
  for (int step = 16; step > 0; step /= 2) x = f(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

/// Whether y = N / D keeps its digits: D is neither lost to underflow nor beyond all numbers.
__device__ __forceinline__ bool is_sound(float D, bool positive) {
  constexpr float smallest = 0x1p-63f;
  return (positive ? D : fabsf(D)) >= smallest && fabsf(D) <= largest_float;
}

}  // namespace nprf::cuda
