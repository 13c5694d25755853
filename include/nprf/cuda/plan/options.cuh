// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/core/row_quotient.hpp"
#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/device/storage.cuh"
#include "nprf/cuda/toeplitz/engine.cuh"

namespace nprf::cuda {

/// The sizes of an AttentionPlan.
struct PlanShape {
  std::ptrdiff_t batch = 1, heads = 1, n_q = 0, n_k = 0, d_v = 0;
  std::ptrdiff_t offset = 0;   // query i has position i + offset, key j has position j
  std::ptrdiff_t heads_k = 0;  // heads of keys and values: heads / heads_k heads of queries next to each other share
                               // one of them (grouped queries); 0: as many as `heads`
  bool packed = false;  // whether calls pass `batch` sequences of at most n_q queries and n_k keys, each of which
                        // attends to itself alone, in one array [1, heads, tokens, channels] (PlanCall)

  /// How many heads of queries share a head of keys and values.
  std::ptrdiff_t group() const { return heads_k > 0 ? heads / heads_k : 1; }
};

/// Options of a plan.
struct PlanOptions {
  Engine engine = Engine::automatic;
  bool gradients = false;                          // whether the plan supports backward; not with NPRF_CUDA_GRADIENTS=0
  bool owns_workspace = true;                      // false: each call must pass a workspace
  std::size_t slab_bytes = std::size_t{64} << 20;  // maximum size of a slab, the buffer of FFTs in global memory
  double tolerance = default_tolerance<float>;  // of the error of a row, relative to the largest |v| that it attends to
  bool gradients_on_tensor_cores = false;  // whether backward computes dA, dB and dU on tensor cores, in the storage
                                           // type; no effect for float, for FFTs, on grids, and where forward
                                           // multiplies half in bfloat16
  bool sets_parameters = false;  // whether set_parameters() is called often: Engine::automatic then takes no engine
                                 // that waits for the stream there
  bool stream_ordered = false;   // whether calls that pass no workspace allocate one from the device's memory pool in
                                 // their stream, and free it there; the plan then owns no workspace
};

/// Options of a call. Only keys can be padding: each query has a row, also beyond the length of its sequence, as on the
/// CPU (CallOptions).
struct PlanCall {
  const bool* key_mask = nullptr;  // on the device, [batch, n_k]: false is padding; null: no padding
  const int* lengths = nullptr;    // on the device, [batch]: keys of sequence b from lengths[b] on are padding, too;
                                   // null: no such padding
  void* workspace = nullptr;       // on the device, workspace_bytes() long, aligned to 256 bytes; null: use the plan's,
                                   // or with PlanOptions::stream_ordered allocate one
  const int* cumulative_lengths = nullptr;  // with PlanShape::packed, on the device, [batch + 1]: 0, n_1, n_1 + n_2,
                                            // ..., for n_b queries of sequence b; else null
  const int* key_cumulative_lengths = nullptr;  // the same for keys; null: as many keys as queries
};

/// The outputs of AttentionPlan::backward.
template <Storage S>
struct PlanGradients {
  DeviceMatrixView<S> dq, dk, dv;  // of the shapes of q, k and v; with grouped queries dk and dv have heads_k heads
  float* parameters = nullptr;  // [position, parameter], summed over batch and heads of a position; null: not computed
};

}  // namespace nprf::cuda
