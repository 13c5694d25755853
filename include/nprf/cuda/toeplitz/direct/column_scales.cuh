// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/cuda/device/half_range.cuh"
#include "nprf/cuda/device/row_loader.cuh"

namespace nprf::cuda {

/// The scales, powers of two, of columns of a matrix M (r,p + 1) that is rounded to half: of 64 columns of a tile, and
/// of column p. A scale takes the largest magnitude of its column to [2^14, 2^15). An entry of the column then has a
/// relative error of at most 2^-11, or an absolute error of at most 2^-39 times the largest. Each column has its own
/// scale, because values may be far smaller than 1, which takes the place of a value in column p. A block has `threads`
/// threads.
template <int threads>
struct ColumnScales {
  static constexpr int columns = MmaTileShape::channels;
  static constexpr int size = threads + threads / 32;  // of `maxima`

  /// Writes maxima, from which of() computes the scales of the columns p0 .. p0 + 63, and of_last() the scale of column
  /// p. Columns from p on count as zero in of(). All threads of the block must call it; they are synchronised at the
  /// end.
  template <class Entries>
  __device__ __forceinline__ static void find(float* maxima, int r, int p0, int p, Entries&& at) {
    const int thread = static_cast<int>(threadIdx.x), column = p0 + thread % columns;
    const auto larger = [](float x, float y) { return fmaxf(x, y); };
    float largest = 0, last = 0;
    for (int f = thread / columns; f < r && column < p; f += threads / columns)
      largest = larger(largest, fabsf(at(f, column)));
    for (int f = thread; f < r; f += threads) last = larger(last, fabsf(at(f, p)));
    last = over_warp(last, larger);
    maxima[thread] = largest;
    if (thread % 32 == 0) maxima[threads + thread / 32] = last;
    __syncthreads();
  }

  /// The scale of column p0 + column.
  __device__ __forceinline__ static float of(const float* maxima, int column) {
    float largest = 0;
#pragma unroll
    for (int share = 0; share < threads; share += columns) largest = fmaxf(largest, maxima[share + column]);
    return scale_to_half(largest);
  }
  /// The scale of column p.
  __device__ __forceinline__ static float of_last(const float* maxima) {
    float largest = 0;
#pragma unroll
    for (int warp = 0; warp < threads / 32; ++warp) largest = fmaxf(largest, maxima[threads + warp]);
    return scale_to_half(largest);
  }
};

}  // namespace nprf::cuda
