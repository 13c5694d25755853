// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include "nprf/cuda/device/device_code.hpp"

namespace nprf::cuda {

/// How many of the first `count` entries of an ascending list are less than x: std::lower_bound, which not every
/// compiler of these headers has on the device. O(log count).
__device__ __forceinline__ int count_below(const int* list, int count, int x) {
  int first = 0;
  while (first < count) {
    const int middle = (first + count) / 2;
    if (list[middle] < x)
      first = middle + 1;
    else
      count = middle;
  }
  return first;
}

}  // namespace nprf::cuda
