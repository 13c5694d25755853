// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/core/row_quotient.hpp"
#include "nprf/cuda/toeplitz/engine.cuh"

namespace nprf::cuda {

/// Options of a plan.
struct PlanOptions {
  Engine engine = Engine::automatic;
  bool gradients = false;                          // whether the plan supports backward
  bool owns_workspace = true;                      // false: each call must pass a workspace
  std::size_t slab_bytes = std::size_t{64} << 20;  // maximum size of a slab, the buffer of FFTs in global memory
  double tolerance = default_tolerance<float>;  // of the error of a row, relative to the largest |v| that it attends to
  bool gradients_on_tensor_cores = false;  // whether backward computes dA, dB and dU on tensor cores, in the storage
                                           // type; no effect for float, for FFTs, on grids, and where forward
                                           // multiplies half in bfloat16
  bool stream_ordered = false;  // whether calls that pass no workspace take it from the device's memory pool in their
                                // stream, and free it there; the plan then owns none
};

/// Options of a call. Only keys can be padding: each query has a row, also beyond the length of its sequence, as on the
/// CPU (CallOptions).
struct PlanCall {
  const bool* key_mask = nullptr;  // on the device, [batch, n_k]: false is padding; null: no padding
  const int* lengths = nullptr;    // on the device, [batch]: keys of sequence b from lengths[b] on are padding, too;
                                   // null: none
  void* workspace = nullptr;       // on the device, workspace_bytes() long, aligned to 256 bytes; null: use the plan's,
                                   // or that of the stream
};

}  // namespace nprf::cuda
