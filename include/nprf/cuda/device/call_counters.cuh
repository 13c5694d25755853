// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstring>

#include "nprf/config.hpp"
#include "nprf/cuda/device/kernel_loading.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/device/storage.cuh"

namespace nprf::cuda {

/// Statistics of a call, in device memory. They are valid when the call's stream has completed it. The first three
/// fields have the meaning of the fields of Report with the same names (attention/options.hpp); the others do not exist
/// there. Here only rows that fail are recomputed, also where most do. A row that is NaN, since its query or a key that
/// it attends to is not finite, is not counted.
struct Counts {
  int empty_rows;         // attend to no key, and are zero
  int indefinite_rows;    // their denominator is not positive
  int repaired_rows;      // recomputed, since rounding or underflow may have made them inaccurate
  int softmax_rows;       // of these, the rows by exact softmax
  int imprecise_rows;     // zero, since D underflows or overflows even relative to the largest bias: only elu features
  float fft_error_bound;  // largest FFT error bound of the rows that were not recomputed, relative to their largest |v|
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
  int *failed_rows, *recomputed_rows;  // [z]: sizes of the row lists
  int* largest;                        // [z]: magnitude of the largest |v|; see power_of_two_scale

  static Counters take(Scratch& scratch, int z) {
    const auto all = static_cast<std::size_t>(z);
    Counters counters{};
    counters.counts = scratch.take<Counts>(1);
    counters.failed_rows = scratch.take<int>(all);
    counters.recomputed_rows = scratch.take<int>(all);
    counters.largest = scratch.take<int>(all);
    return counters;
  }

  void queue_clear(int z, cudaStream_t stream) const {
    const auto* begin = reinterpret_cast<const char*>(counts);
    const auto* end = reinterpret_cast<const char*>(largest + z);
    queue_fill("clearing counts", counts, 0, static_cast<std::size_t>(end - begin), stream);
  }
};

/// The bits of |x|. They have the order of the numbers; infinity and NaN compare larger than all finite numbers.
NPRF_HOST_DEVICE __forceinline__ int magnitude(float x) {
  int bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits & 0x7fffffff;
}
constexpr int infinite_magnitude = 0x7f800000;

/// The power of two above a magnitude, and its inverse. Both are normal numbers. 1 for infinity and NaN.
struct PowerOfTwoScale {
  float value, inverse;
};
NPRF_HOST_DEVICE __forceinline__ PowerOfTwoScale power_of_two_scale(int magnitude) {
  if (magnitude >= infinite_magnitude) return {1, 1};
  const int wanted = (magnitude >> 23) + 1, exponent = wanted < 1 ? 1 : wanted > 253 ? 253 : wanted;
  const int bits[2] = {exponent << 23, (254 - exponent) << 23};
  PowerOfTwoScale scale;
  std::memcpy(&scale, bits, sizeof(scale));
  return scale;
}

/// The reduction of x by f over all lanes of a warp, or over groups of `lanes` neighbouring lanes. Every lane gets the
/// result.
template <int lanes = 32, class T, class F>
__device__ __forceinline__ T over_warp(T x, F&& f) {
  for (int step = lanes / 2; step > 0; step /= 2) x = f(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

}  // namespace nprf::cuda
