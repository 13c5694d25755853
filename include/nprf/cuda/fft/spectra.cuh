// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "nprf/cuda/device/device_code.hpp"

namespace nprf::cuda {

/// The spectra of the weights. That of head h starts at values + h * stride; the stride is 0 if all heads share one
/// spectrum.
struct Spectra {
  const float2* values;
  std::ptrdiff_t stride;
};

}  // namespace nprf::cuda
