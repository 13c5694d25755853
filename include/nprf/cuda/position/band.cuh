// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

#include "nprf/core/lag_problem.hpp"
#include "nprf/cuda/device/device_code.hpp"

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

}  // namespace nprf::cuda
