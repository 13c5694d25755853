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
/// there. Unlike on the CPU, only rows that fail are recomputed, even where most rows do. A row that is NaN, since its
/// query or a key that it attends to is not finite, is not counted.
struct Counts {
  int empty_rows;         // rows that attend to no key, and are zero
  int indefinite_rows;    // rows whose denominator is not positive
  int repaired_rows;      // rows that were recomputed, since rounding or underflow may have made them inaccurate
  int softmax_rows;       // those repaired_rows that were computed by exact softmax
  int imprecise_rows;     // rows of elu features that are zero, since the recomputed D underflows or overflows, too
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
  int *failed_rows, *recomputed_rows;  // [z]: the sizes of the row lists of CheckedProduct and of ExactPlan
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

/// The bits of |x|, as an integer. Magnitudes of two numbers compare as the numbers |x| do; those of infinity and NaN
/// are larger than those of all finite numbers.
NPRF_HOST_DEVICE __forceinline__ int magnitude(float x) {
  int bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits & 0x7fffffff;
}
constexpr int infinite_magnitude = 0x7f800000;

/// For the magnitude() of a number x: `value` is the power of two above |x|, in the range in which `value` and
/// `inverse` are both normal numbers. Both are 1 for infinity and NaN.
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

/// Combines the x of all lanes of a warp, or of groups of `lanes` neighbouring lanes, by f(a, b). Every lane gets the
/// result of its group.
template <int lanes = 32, class T, class F>
__device__ __forceinline__ T over_warp(T x, F&& f) {
  for (int step = lanes / 2; step > 0; step /= 2) x = f(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

}  // namespace nprf::cuda
