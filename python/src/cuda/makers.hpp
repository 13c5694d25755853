// SPDX-License-Identifier: MIT
#pragma once

#include <memory>

#include "decoder.hpp"
#include "plan.hpp"

namespace nprf::python {

/// The constructors of what computes with one storage type. nvcc compiles each in a file of its own.
struct Makers {
  std::unique_ptr<Plan> (*plan)(PlanProblem);
  std::unique_ptr<DeviceDecoder> (*decoder)(DecoderProblem);
};

Makers makers_float32();
Makers makers_float16();
Makers makers_bfloat16();

}  // namespace nprf::python
