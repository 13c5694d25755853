// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/runtime.hpp"
#include "support/catch.hpp"

namespace nprf::test {

template <int>
__global__ void empty_kernel() {}

/// Whether the device has tensor cores for bfloat16, and the program was compiled for them. A test that needs them
/// returns if it has none; a warning then says that it was skipped.
inline bool has_tensor_cores() {
  const bool has = cuda::Device::current().capability >= 80 && cuda::compiled_for(empty_kernel<0>) >= 80;
  if (!has) WARN("skipped: no tensor cores for bfloat16");
  return has;
}

/// Whether the device multiplies features of this type: those in float need no tensor cores.
template <class Feature>
bool can_multiply() {
  return std::is_same_v<Feature, float> || has_tensor_cores();
}

}  // namespace nprf::test
