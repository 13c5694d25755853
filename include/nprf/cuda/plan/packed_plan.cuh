// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>

#include "nprf/config.hpp"
#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/plan/attention_plan.cuh"

namespace nprf::cuda {

/// The lengths of the sequences of a call, in device memory.
struct PackedCall {
  const int* cumulative_lengths;                // [batch + 1]: 0, n_1, n_1 + n_2, ..., for n_b queries of sequence b
  const int* key_cumulative_lengths = nullptr;  // [batch + 1]: the same for keys; null: as many keys as queries
};

/// Attention of sequences that are packed into one array, each of which attends to itself alone, on a GPU.
///
///     PackedPlan<float> plan(model, {.batch = 8, .heads = 16, .n_q = longest, .n_k = longest, .d_v = 64});
///     plan.forward(q, k, v, y, {cumulative_lengths}, stream);      // q [1, heads, tokens, d]
///
/// The shape is that of an AttentionPlan of `batch` sequences, padded to n_q queries and n_k keys. A call copies the
/// rows into padded arrays, which the plan allocates, computes the attention of the padded sequences, and copies the
/// results back. It takes the time of the padded sequences, and that of the copies, O(batch (n_q + n_k) heads (d +
/// d_v)). A call does not synchronise, so that it cannot check the lengths: rows beyond the end of an array are left
/// out. If a sequence has more than n_q queries, its rows of y and dq from n_q on are NaN. If it has more than n_k
/// keys, its keys from n_k on are left out, and their gradients are NaN. Rows that belong to no sequence are not
/// written. Calls must run one after another.
template <Storage S>
class PackedPlan {
 public:
  using View = DeviceMatrixView<const S>;

  /// Throws as AttentionPlan does, and InvalidArgument if PlanOptions::owns_workspace and PlanOptions::stream_ordered
  /// are both false, since calls pass no workspace.
  PackedPlan(AttentionModel model, const PlanShape& shape, const PlanOptions& options = {},
             cudaStream_t stream = nullptr);
  /// A plan that was moved from can only be assigned to and destroyed.
  PackedPlan(PackedPlan&&) noexcept = default;
  PackedPlan& operator=(PackedPlan&&) noexcept = default;

  /// The plan of the padded sequences. Its counts() are those of the last forward call.
  const AttentionPlan<S>& padded() const;
  /// Bytes of the padded arrays.
  std::size_t bytes() const;

  /// Does what AttentionPlan::set_parameters does.
  void set_parameters(const float* parameters, cudaStream_t stream);

  /// q [1, heads, tokens, d], k [1, heads_k, keys, d], v [1, heads_k, keys, d_v] -> y [1, heads, tokens, d_v], for the
  /// sequences of the call. Throws InvalidArgument if the views do not have these shapes, or if cumulative_lengths is
  /// null; BackendError if CUDA reports an error.
  void forward(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y, const PackedCall& call,
               cudaStream_t stream = nullptr);

  /// Computes the gradients, which have the shapes of q, k and v, from dy, which has the shape of y, as
  /// AttentionPlan::backward does. Throws as forward does, and InvalidArgument without PlanOptions::gradients.
  void backward(const View& q, const View& k, const View& v, const View& dy, const PlanGradients<S>& gradients,
                const PackedCall& call, cudaStream_t stream = nullptr);

 private:
  class Implementation;  // packed_plan_definition.cuh

  std::shared_ptr<Implementation> m_implementation;  // has one owner; a unique_ptr would need the complete class
};

}  // namespace nprf::cuda

#if NPRF_CUDA_EXTERN_INSTANCES  // instances.cuh
extern template class nprf::cuda::PackedPlan<float>;
extern template class nprf::cuda::PackedPlan<__half>;
extern template class nprf::cuda::PackedPlan<__nv_bfloat16>;
#else
#include "nprf/cuda/plan/packed_plan_definition.cuh"
#endif
