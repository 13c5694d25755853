// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/device/storage.cuh"

namespace nprf::cuda {

/// Statistics of a call. They lie on the device, and are valid when the call's stream has completed it. A row is
/// counted in at most one of the four fields. A row that is not counted is as the engine computed it.
struct Counts {
  int empty_rows;       // zero rows: they attend to no key, or D underflows and the features have no log domain
  int indefinite_rows;  // denominator is negative, NaN, infinite, or too small to have full precision
  int repaired_rows;    // recomputed by tiles: they fail the FFT error bound
  int rescued_rows;     // recomputed in the log domain: their denominator underflows
  float error_bound;    // largest bound of an accepted row, relative to the largest |v| that it attends to
};

/// For each matrix z, the rows to recompute, in no particular order.
struct RowList {
  int *rows, *sizes;  // [z, n] [z]
  int n;

  __device__ __forceinline__ void append(int z, int row) const {
    rows[static_cast<std::ptrdiff_t>(z) * n + atomicAdd(sizes + z, 1)] = row;
  }
  __device__ __forceinline__ const int* of(int z) const { return rows + static_cast<std::ptrdiff_t>(z) * n; }
};

/// The counters of a call. They are contiguous in memory, so that one memset clears them.
struct Counters {
  Counts* counts;
  int *failed_rows, *log_domain_rows;  // [z]: sizes of the row lists
  int* largest;                        // [z]: magnitude of the largest |v|; see power_of_two_scale

  static Counters take(Scratch& scratch, int z) {
    const auto all = static_cast<std::size_t>(z);
    Counters counters{};
    counters.counts = scratch.take<Counts>(1);
    counters.failed_rows = scratch.take<int>(all);
    counters.log_domain_rows = scratch.take<int>(all);
    counters.largest = scratch.take<int>(all);
    return counters;
  }

  void queue_clear(int z, cudaStream_t stream) const {
    const auto* begin = reinterpret_cast<const char*>(counts);
    const auto* end = reinterpret_cast<const char*>(largest + z);
    check(cudaMemsetAsync(counts, 0, static_cast<std::size_t>(end - begin), stream), "clearing counts");
  }
};

/// The bits of |x|. They have the order of the numbers; infinity and NaN compare larger than all finite numbers.
__device__ __forceinline__ int magnitude(float x) { return __float_as_int(fabsf(x)); }
constexpr int infinite_magnitude = 0x7f800000;

/// The power of two above a magnitude, and its inverse. Both are normal numbers. 1 for infinity and NaN.
struct PowerOfTwoScale {
  float value, inverse;
};
__device__ __forceinline__ PowerOfTwoScale power_of_two_scale(int magnitude) {
  if (magnitude >= infinite_magnitude) return {1, 1};
  const int exponent = min(max((magnitude >> 23) + 1, 1), 253);
  return {__int_as_float(exponent << 23), __int_as_float((254 - exponent) << 23)};
}

/// The reduction of x over all lanes of a warp by f. Every lane gets the result.
template <class T, class F>
__device__ __forceinline__ T over_warp(T x, F&& f) {
  for (int step = 16; step > 0; step /= 2) x = f(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

}  // namespace nprf::cuda
