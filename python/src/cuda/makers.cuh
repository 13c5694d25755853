// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <utility>

#include "decoder.cuh"
#include "makers.hpp"
#include "plan.cuh"

namespace nprf::python {

template <cuda::Storage S>
Makers makers() {
  return {[](PlanProblem problem) -> std::unique_ptr<Plan> { return std::make_unique<PlanOf<S>>(std::move(problem)); },
          [](DecoderProblem problem) -> std::unique_ptr<DeviceDecoder> {
            return std::make_unique<DeviceDecoderOf<S>>(std::move(problem));
          }};
}

}  // namespace nprf::python
