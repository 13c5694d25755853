// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>

#include "nprf/config.hpp"
#include "nprf/cuda/device/call_counters.cuh"
#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/device/storage.cuh"
#include "nprf/cuda/model.hpp"
#include "nprf/cuda/plan/options.cuh"

namespace nprf::cuda {

/// Kernelized attention with relative position biases on a GPU (attention.hpp has the formula), for fixed sizes. A call
/// does not synchronise. It allocates nothing, unless PlanOptions::stream_ordered. It can be captured in a CUDA graph,
/// also the first one: the constructor loads its kernels, except those of cuFFT. Results must not overlap inputs, which
/// is not checked.
///
///     AttentionPlan<float> plan(model_of(attention), {.batch = 4, .heads = 16, .n_q = n, .n_k = n, .d_v = 64});
///     plan.forward(q, k, v, y, stream);      // views of device memory
///     plan.backward(q, k, v, dy, {dq, dk, dv}, {}, stream);      // needs PlanOptions::gradients
///
/// If the rounding error of an FFT may exceed half of the tolerance in a row of y, relative to the largest |v| that the
/// row attends to, the row is recomputed by tiles; an infinite tolerance disables this. With any engine, a row whose
/// denominator underflows is recomputed from its features, with weights relative to its largest bias; if the features
/// underflow, beside the largest of the head's keys, it is that of exact softmax, or zero if they do not estimate exp.
/// With a near field or attention sinks, and with quadratic features, such rows and those whose terms cancel are
/// computed by exact softmax instead, as on the CPU. The near field, sinks and rows of exact softmax are in float for
/// any storage type. A NaN or an infinity in a query affects only its own row; in a key or a value it affects only the
/// rows that attend to it.
///
/// Bits: the same call of a plan gives the same bits each time, in any stream, with any workspace, and beside any other
/// work of the device. Sums of floating-point numbers have a fixed order: atomic operations are on integers alone,
/// which are counts, the bits of largest magnitudes, and lengths of lists of rows, whose results do not depend on the
/// order of the list. This assumes the same of cuFFT, which Engine::cufft calls, and Engine::fused for gradients of
/// parameters. Plans for other sizes, other devices, and arrays whose rows are aligned otherwise may round otherwise.
///
/// S is the storage type of queries, keys, values and y. Arithmetic is in float. For half and bfloat16 some engines use
/// tensor cores, with the precision of the storage type or of bfloat16 (toeplitz/product.cuh). A plan belongs to the
/// device that was current at construction. Only one call at a time may use the plan's own workspace; calls with
/// different workspaces may run concurrently, and so may those with PlanOptions::stream_ordered. These allocate by
/// cudaMallocAsync from the device's default pool, which gives memory back to the device when a stream is waited for,
/// unless its release threshold (cudaMemPoolAttrReleaseThreshold) is raised.
template <Storage S>
class AttentionPlan {
 public:
  using View = DeviceMatrixView<const S>;

  /// Waits until the model has been copied to the device. Throws InvalidArgument if the sizes do not fit together or
  /// are not supported, BackendError if there is no device of compute capability 7.0 or newer, not enough memory, no
  /// memory pool where options.stream_ordered needs one, or if the kernels were compiled with -use_fast_math.
  AttentionPlan(AttentionModel model, const PlanShape& shape, const PlanOptions& options = {},
                cudaStream_t stream = nullptr);
  /// A plan that was moved from can only be assigned to and destroyed.
  AttentionPlan(AttentionPlan&&) noexcept = default;
  AttentionPlan& operator=(AttentionPlan&&) noexcept = default;

  /// The model passed to the constructor. Later set_parameters() calls do not change it.
  const AttentionModel& model() const;
  const PlanShape& shape() const;
  /// The one that computes, if the options say automatic the one that was chosen.
  Engine engine() const;

  /// Bytes of scratch memory that a call needs.
  std::size_t workspace_bytes() const;

  /// Replaces the positions' parameters by [position, parameter] on the device, for example in a training step. The
  /// weights are recomputed in the stream; calls in other streams must not run at the same time. The engine stays the
  /// same, even if another one is faster for the new parameters. Throws InvalidArgument for a null pointer.
  void set_parameters(const float* parameters, cudaStream_t stream);

  /// q [batch, heads, n_q, d], k [batch, heads_k, n_k, d], v [batch, heads_k, n_k, d_v] -> y [batch, heads, n_q, d_v],
  /// where heads_k is `heads` unless queries are grouped (PlanShape). A row that attends to no key is zero. Throws
  /// InvalidArgument if the views do not have these shapes, or if there is no workspace or one that is not aligned;
  /// BackendError if CUDA reports an error, for example because
  /// the stream belongs to another device.
  void forward(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y, const PlanCall& call,
               cudaStream_t stream) const;
  void forward(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y,
               cudaStream_t stream = nullptr) const {
    forward(q, k, v, y, {}, stream);
  }

  /// Computes the gradients of L from dy [batch, heads, n_q, d_v] = dL/dy and the same inputs. It needs no results of
  /// forward. Those of a head of keys and values are the sums over its group of queries. The gradients are zero for
  /// rows that attend to no key, for rows that are zero since features underflow, and for keys that are padding. With
  /// an FFT engine, a non-finite query that attends to a key makes all gradients of its head and of its position
  /// non-finite. Throws as forward does, and InvalidArgument if the plan has no gradients.
  void backward(const View& q, const View& k, const View& v, const View& dy, const PlanGradients<S>& gradients,
                const PlanCall& call, cudaStream_t stream) const;

  /// Statistics of the last forward call with this workspace, in device memory; of the last one without a workspace, if
  /// PlanOptions::stream_ordered. If such calls run at the same time they may be mixed: pass workspaces to read them.
  const Counts* counts(const PlanCall& call = {}) const;
  /// The same on the host, after all work of the stream. Waits for the stream. Throws BackendError if CUDA reports an
  /// error, for example one of that work.
  Counts host_counts(const PlanCall& call = {}, cudaStream_t stream = nullptr) const;

 private:
  class Implementation;  // attention_plan_definition.cuh

  std::shared_ptr<Implementation> m_implementation;  // not shared: a unique_ptr would need the complete class
};

}  // namespace nprf::cuda

#if NPRF_CUDA_EXTERN_INSTANCES  // instances.cuh
extern template class nprf::cuda::AttentionPlan<float>;
extern template class nprf::cuda::AttentionPlan<__half>;
extern template class nprf::cuda::AttentionPlan<__nv_bfloat16>;
#else
#include "nprf/cuda/plan/attention_plan_definition.cuh"
#endif
