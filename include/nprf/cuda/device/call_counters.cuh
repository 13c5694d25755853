// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstring>

#include "nprf/config.hpp"
#include "nprf/cuda/device/runtime.hpp"
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

}  // namespace nprf::cuda
