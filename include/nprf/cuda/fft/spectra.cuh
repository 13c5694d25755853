// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "nprf/cuda/device/device_code.hpp"

namespace nprf::cuda {

/// The spectra of the weights: those of two heads are `stride` apart, 0 if all heads share one.
struct Spectra {
  const float2* values;
  std::ptrdiff_t stride;
};

}  // namespace nprf::cuda
