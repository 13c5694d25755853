// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

#include "nprf/core/lag_problem.hpp"
#include "nprf/cuda/device/device_code.hpp"
#include "nprf/cuda/position/token_places.cuh"

namespace nprf::cuda {

/// The lags first..last, both included; empty if last = first - 1. Before and after the band the bias is linear in the
/// lag, with the slopes of a TailSlope.
struct Band {
  int first, last;
};

/// How much the bias b changes from one lag to the next further away from the band, on either side of it. With ALiBi b
/// falls by the position's parameter.
struct TailSlope {
  const float* parameters = nullptr;  // [position]; null: the slope is 0, the weights of a tail are constant
  std::ptrdiff_t stride = 0;          // 0: one position for all heads

  __host__ __device__ bool is_zero() const { return parameters == nullptr; }
  __device__ __forceinline__ double operator()(int head) const {
    return parameters ? -static_cast<double>(parameters[head * stride]) : 0.0;
  }
};

/// The smallest band of j - i such that b is linear before and after it for any values of the parameters, where b of
/// lags beyond those attended counts as a constant -infinity. The lags at the ends of the position's table belong to
/// the tails.
template <Real T>
Band band_of(const LagProblem<T>& x, bool is_linear) {
  const bool has_one_scalar = x.table.size() == 1, ends_early = x.reach.last < x.lags.last;
  const bool is_constant = !is_linear && (has_one_scalar || x.table.last <= x.lags.first);
  // the last lag of the tail before the band, and the first one of the tail after it
  Index before = is_constant ? x.lags.last : std::clamp(x.table.first, x.lags.first, x.lags.last);
  Index after = std::clamp(x.table.last, x.lags.first, x.lags.last) + (has_one_scalar ? 1 : 0);
  before = std::min(before, x.reach.last);
  if (is_constant || ends_early) after = x.reach.last + 1;
  return {static_cast<int>(before + 1), static_cast<int>(std::max(before + 1, after) - 1)};
}

/// The smallest band that contains `band` and those lags `near` of j - i that are attended. Near lags have the weight
/// 0, so that they cannot be in a tail.
template <Real T>
Band with_near(Band band, LagRange near, const LagProblem<T>& x) {
  const int first = static_cast<int>(std::max(near.first, x.reach.first)),
            last = static_cast<int>(std::min(near.last, x.reach.last));
  if (near.size() == 0 || first > last) return band;
  if (band.first > band.last) return {first, last};
  return {std::min(band.first, first), std::max(band.last, last)};
}

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
  int positions;             // 1, or the number of heads
  double max_deviation = 0;  // as in LagWeightsView

  /// The matrices C^T.
  ToeplitzWeights transposed() const {
    return {c.transposed(), {-band.last, -band.first}, tail_slope, positions, max_deviation};
  }
};

}  // namespace nprf::cuda
