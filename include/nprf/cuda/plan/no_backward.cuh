// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/core/error.hpp"
#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/plan/backward_inputs.cuh"
#include "nprf/cuda/plan/options.cuh"

namespace nprf::cuda {

/// Takes the place of Backward (backward.cuh) with NPRF_CUDA_GRADIENTS=0, so that no kernels of gradients are compiled.
/// The constructor throws InvalidArgument.
template <Storage S>
class NoBackward {
 public:
  NoBackward(const Device&, const DeviceModel&, const Product<S>&, std::size_t, bool) {
    throw InvalidArgument("gradients: expected a program compiled with NPRF_CUDA_GRADIENTS=1, got 0");
  }

  struct Arrays {};
  Arrays take(const ForwardParts<S>&, Scratch&) const { return {}; }
  void queue_weights(cudaStream_t) const {}
  void queue(const ForwardParts<S>&, const BackwardInputs<S>&, const PlanGradients<S>&, const Arrays&,
             cudaStream_t) const {}
};

}  // namespace nprf::cuda
