// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/storage.cuh"
#include "support/catch.hpp"

namespace nprf::test {

template <int>
__global__ void empty_kernel() {}

/// Whether the device has an instruction for features of this type, and the program was compiled for it. A test that
/// needs it returns with a warning if there is none. Those in float need no tensor cores.
template <class Feature, cuda::MmaShape shape = cuda::MmaShape::native>
bool can_multiply() {
  if constexpr (std::is_same_v<Feature, float>) {
    return true;
  } else {
    constexpr bool needs_ampere = !std::is_same_v<Feature, __half> || shape == cuda::MmaShape::m16n8k16;
    constexpr int least = needs_ampere ? 80 : shape == cuda::MmaShape::m16n8k8 ? 75 : 70;
    const bool can = cuda::Device::current().capability >= least && cuda::compiled_for(empty_kernel<0>) >= least;
    if (!can) WARN("skipped: no tensor cores of compute capability " << least);
    return can;
  }
}

}  // namespace nprf::test
