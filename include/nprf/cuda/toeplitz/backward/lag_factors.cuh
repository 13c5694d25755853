// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/cuda/device/strided_operand.cuh"

namespace nprf::cuda {

/// The operands of the gradient dL/db of the biases by lag, as matrices (tokens,channels): A and G = dL/dY of queries,
/// B and U of keys.
struct LagFactors {
  Operand<float> A, B, G, U;
};

}  // namespace nprf::cuda
