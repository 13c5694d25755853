// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>

#include "nprf/config.hpp"
#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/plan/attention_plan.cuh"

namespace nprf::cuda {

/// The sequences of a call, in device memory.
struct PackedCall {
  const int* cumulative_lengths;                // [batch + 1]: 0, n_1, n_1 + n_2, ..., of queries
  const int* key_cumulative_lengths = nullptr;  // likewise of keys; null: as of queries
};

/// Attention of sequences that are packed into one array, each of which attends to itself alone, on a GPU.
///
///     PackedPlan<float> plan(model, {.batch = 8, .heads = 16, .n_q = longest, .n_k = longest, .d_v = 64});
///     plan.forward(q, k, v, y, {cumulative_lengths}, stream);      // q [1, heads, tokens, d]
///
/// The shape is that of an AttentionPlan of `batch` sequences, padded to n_q queries and n_k keys. A call copies the
/// rows into padded arrays, which the plan allocates, computes those, and copies the results back: it takes the time of
/// the padded sequences and of these copies, O(batch (n_q + n_k) heads (d + d_v)). It does not synchronise, so that it
/// cannot check the lengths: rows beyond the arrays are left out. Of a sequence with more queries than n_q the other
/// rows are NaN; of one with more keys than n_k the other keys are left out, and their gradients are NaN. Rows that
/// belong to no sequence are not written. Calls must run one after another.
template <Storage S>
class PackedPlan {
 public:
  using View = DeviceMatrixView<const S>;

  /// Throws as AttentionPlan does, and InvalidArgument if neither the plan nor a stream has its workspace.
  PackedPlan(AttentionModel model, const PlanShape& shape, const PlanOptions& options = {},
             cudaStream_t stream = nullptr);
  /// A plan that was moved from can only be assigned to and destroyed.
  PackedPlan(PackedPlan&&) noexcept = default;
  PackedPlan& operator=(PackedPlan&&) noexcept = default;

  /// The plan of padded sequences, with the counts of the last forward call.
  const AttentionPlan<S>& padded() const;
  /// Bytes of the padded arrays.
  std::size_t bytes() const;

  /// As AttentionPlan::set_parameters.
  void set_parameters(const float* parameters, cudaStream_t stream);

  /// q [1, heads, tokens, d], k [1, heads_k, keys, d], v [1, heads_k, keys, d_v] -> y [1, heads, tokens, d_v], with the
  /// sequences of the call. Throws InvalidArgument if the views do not have these shapes, or for a null pointer,
  /// BackendError if CUDA reports an error.
  void forward(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y, const PackedCall& call,
               cudaStream_t stream = nullptr);

  /// The gradients, of the shapes of q, k and v, from dy, of the shape of y, as AttentionPlan::backward. Throws as
  /// forward does, and InvalidArgument if the plan has no gradients.
  void backward(const View& q, const View& k, const View& v, const View& dy, const PlanGradients<S>& gradients,
                const PackedCall& call, cudaStream_t stream = nullptr);

 private:
  class Implementation;  // packed_plan_definition.cuh

  std::shared_ptr<Implementation> m_implementation;  // not shared: a unique_ptr would need the complete class
};

}  // namespace nprf::cuda

#if NPRF_CUDA_EXTERN_INSTANCES  // instances.cuh
extern template class nprf::cuda::PackedPlan<float>;
extern template class nprf::cuda::PackedPlan<__half>;
extern template class nprf::cuda::PackedPlan<__nv_bfloat16>;
#else
#include "nprf/cuda/plan/packed_plan_definition.cuh"
#endif
