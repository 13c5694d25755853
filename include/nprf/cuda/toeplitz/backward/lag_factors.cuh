// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/cuda/device/strided_operand.cuh"

namespace nprf::cuda {

/// The operands of the gradient dL/db of the biases by lag, as matrices (tokens,channels): A and G = dL/dY of queries,
/// B and U of keys.
struct LagFactors {
  Operand<float> A, B, G, U;  // (n_q,r) (n_k,r) (n_q,p + 1) (n_k,p + 1)
};

}  // namespace nprf::cuda
