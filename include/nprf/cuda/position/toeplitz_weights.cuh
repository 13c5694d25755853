// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "nprf/cuda/device/device_code.hpp"
#include "nprf/cuda/position/band.cuh"
#include "nprf/cuda/position/token_places.cuh"

namespace nprf::cuda {

/// The weights of a Toeplitz matrix on the device. c[lag] of head h is values[h * stride + (lag - first) * step]. Lags
/// are differences of tokens, or in a grid of slots. The weights of the border of a grid are stored apart.
struct DeviceWeights {
  enum class Pairs { all, in_slots, of_border };

  const float* values;
  std::ptrdiff_t stride;              // 0: all heads share one table
  int size, first, step;              // the number of lags in `values`, and the first lag; step: 1, transposed -1
  int first_attended, last_attended;  // of other lags j - i the weights are zero
  TokenPlaces places = {};
  const float* border = nullptr;  // border[h * stride + entry] for head h
  Pairs pairs = Pairs::all;       // which pairs of a grid have these weights; the others have weight 0

  __device__ __forceinline__ float operator()(int head, int lag) const {
    const int at = lag - first;
    return at >= 0 && at < size ? values[head * stride + at * step] : 0.0f;
  }

  /// The weight of row i and column j, which are both in range.
  __device__ __forceinline__ float between(int head, int i, int j) const {
    if (!places.is_grid()) return (*this)(head, j - i);
    const bool is_border = places.is_border(i, j);
    if (pairs == (is_border ? Pairs::in_slots : Pairs::of_border)) return 0.0f;
    if (!is_border) return (*this)(head, places.lag(i, j));
    return border[head * stride + (step > 0 ? places.border_entry(i, j) : places.border_entry(j, i))];
  }

  /// The weights of the transposed matrix.
  DeviceWeights transposed() const {
    return {size > 0 ? values + (size - 1) * step : values,
            stride,
            size,
            1 - first - size,
            -step,
            -last_attended,
            -first_attended,
            places,
            border,
            pairs};
  }

  /// The first and the last lag whose weight may not be zero.
  __host__ __device__ int first_lag() const { return places.is_grid() ? first : first_attended; }
  __host__ __device__ int last_lag() const { return places.is_grid() ? first + size - 1 : last_attended; }

  /// Entry k of the first column of a circulant matrix that contains C: c[lag] is entry -lag modulo the length.
  __device__ __forceinline__ float in_circulant(int head, int k, int length) const {
    return (*this)(head, k <= -first ? -k : length - k);
  }
};

/// The matrices C of all heads.
struct ToeplitzWeights {
  DeviceWeights c;
  Band band;  // before and after it log c is linear in the lag
  TailSlope tail_slope;
  int positions;  // 1, or the number of heads

  /// The matrices C^T.
  ToeplitzWeights transposed() const { return {c.transposed(), {-band.last, -band.first}, tail_slope, positions}; }
};

}  // namespace nprf::cuda
