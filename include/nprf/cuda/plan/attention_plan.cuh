// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "nprf/config.hpp"
#include "nprf/cuda/device/call_counters.cuh"
#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/storage.cuh"
#include "nprf/cuda/model.hpp"
#include "nprf/cuda/plan/options.cuh"

namespace nprf::cuda {

/// Kernelized attention with relative position biases on a GPU (attention.hpp has the formula), for fixed sizes. A call
/// does not synchronise. It allocates nothing, unless PlanOptions::stream_ordered is true. Every call, also the first
/// one, can be captured in a CUDA graph: the constructor loads the kernels, except those of cuFFT. Results must not
/// overlap inputs; this is not checked.
///
///     AttentionPlan<float> plan(model_of(attention), {.batch = 4, .heads = 16, .n_q = n, .n_k = n, .d_v = 64});
///     plan.forward(q, k, v, y, stream);      // views of device memory
///     plan.backward(q, k, v, dy, {dq, dk, dv}, {}, stream);      // needs PlanOptions::gradients
///
/// If the rounding error of an FFT may exceed half of the tolerance in a row of y, relative to the largest |v| that the
/// row attends to, the row is recomputed by tiles; an infinite tolerance disables this. With any engine, a row whose
/// denominator underflows is recomputed from its features, with weights relative to the row's largest bias. The
/// features of keys are relative to the largest of the head. If features underflow, the row is computed by exact
/// softmax, or is zero if the features do not estimate exp. With a near field, attention sinks or quadratic features,
/// all rows that fail in these ways, and rows whose terms cancel (terms_cancel), are computed by exact softmax instead,
/// as on the CPU. The near field, sinks and rows of exact softmax are computed in float for any storage type. A NaN or
/// an infinity in a query affects only its own row; in a key or a value it affects only the rows that attend to the
/// key.
///
/// Bits: the same call of a plan gives the same bits each time, in any stream, with any workspace, and beside any other
/// work of the device. Sums of floating-point numbers have a fixed order. Atomic operations are on integers alone:
/// counts, the bits of largest magnitudes, and lengths of lists of rows, and what is computed for a row does not depend
/// on its place in the list. cuFFT is assumed to repeat its bits, too; Engine::cufft calls it, and Engine::fused for
/// gradients of parameters. Other sizes, other devices, and arrays whose rows are aligned otherwise may change
/// rounding.
///
/// With PlanShape::packed a call copies the rows of packed sequences into padded arrays in its workspace, computes
/// their attention, and copies the results back. It takes the time of `batch` sequences of n_q queries and n_k keys,
/// and that of the copies, O(batch (n_q + n_k) heads (d + d_v)). A call cannot check the lengths, since it does not
/// synchronise: rows beyond the end of an array are left out. If a sequence has more than n_q queries, its rows of y
/// and dq from n_q on are NaN. If it has more than n_k keys, its keys from n_k on are left out, and their gradients are
/// NaN. Rows that belong to no sequence are not written.
///
/// S is the storage type of queries, keys, values and y. Arithmetic is in float. For half and bfloat16 some engines use
/// tensor cores, with the precision of the storage type or of bfloat16 (Engine in toeplitz/engine.cuh). A plan belongs
/// to the device that was current at construction. Only one call at a time may use the plan's own workspace. Calls with
/// different workspaces may run concurrently, and so may calls that allocate theirs (PlanOptions::stream_ordered). They
/// do so by cudaMallocAsync from the device's default pool. The pool gives memory back to the device when a stream is
/// waited for, unless its release threshold (cudaMemPoolAttrReleaseThreshold) is raised.
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
  /// The engine that computes the products. With Engine::automatic in the options, it is the one that the plan chose.
  Engine engine() const;

  /// Bytes of scratch memory that a call needs.
  std::size_t workspace_bytes() const;

  /// Replaces the positions' parameters by the array `parameters` [position, parameter] on the device, for example in a
  /// training step. The weights are recomputed in the stream; calls in other streams must not run at the same time. The
  /// engine stays the same, even if another one is faster for the new parameters. Engine::smooth waits for the stream,
  /// so that the call cannot be captured in a graph. Throws InvalidArgument for a null pointer.
  void set_parameters(const float* parameters, cudaStream_t stream);

  /// q [batch, heads, n_q, d], k [batch, heads_k, n_k, d], v [batch, heads_k, n_k, d_v] -> y [batch, heads, n_q, d_v],
  /// where heads_k is `heads` unless queries are grouped (PlanShape). Packed sequences are one sequence of any numbers
  /// of tokens here. A row that attends to no key is zero. Throws InvalidArgument if the views do not have these
  /// shapes, if there is no workspace, or if it is not aligned (PlanCall); if cumulative_lengths is null and sequences
  /// are packed, or the reverse; BackendError if CUDA reports an error, for example because the stream belongs to
  /// another device.
  void forward(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y, const PlanCall& call,
               cudaStream_t stream) const;
  void forward(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y,
               cudaStream_t stream = nullptr) const {
    forward(q, k, v, y, {}, stream);
  }

  /// Computes the gradients of a loss L from dy [batch, heads, n_q, d_v] = dL/dy and the inputs q, k and v of forward.
  /// It needs no results of forward. dk and dv of a head of keys are sums over the heads of queries that share it. The
  /// gradients are zero for rows that attend to no key, for rows that are zero since features underflow, and for keys
  /// that are padding. With an FFT engine, a non-finite query that attends to a key makes all gradients of its head and
  /// of its position non-finite. Throws as forward does, and InvalidArgument without PlanOptions::gradients.
  void backward(const View& q, const View& k, const View& v, const View& dy, const PlanGradients<S>& gradients,
                const PlanCall& call, cudaStream_t stream) const;

  /// Statistics, in device memory, of the last forward call with the workspace of `call`, or with the plan's own. With
  /// PlanOptions::stream_ordered and no workspace in `call`: of the last forward call that passed none. The statistics
  /// of such calls that run at the same time may be mixed; to read them, pass workspaces.
  const Counts* counts(const PlanCall& call = {}) const;
  /// Waits for all work of the stream, and returns a copy of counts(call) on the host. Throws BackendError if CUDA
  /// reports an error, for example one of the work of the stream.
  Counts host_counts(const PlanCall& call = {}, cudaStream_t stream = nullptr) const;

 private:
  struct Implementation;  // attention_plan_definition.cuh

  std::shared_ptr<Implementation> m_implementation;  // has one owner; a unique_ptr would need the complete class
};

/// The lengths of the packed sequences of a call, and its workspace: those of PlanCall.
struct PackedCall {
  const int* cumulative_lengths;
  const int* key_cumulative_lengths = nullptr;
  void* workspace = nullptr;

  operator PlanCall() const {
    return {.workspace = workspace,
            .cumulative_lengths = cumulative_lengths,
            .key_cumulative_lengths = key_cumulative_lengths};
  }
};

/// An AttentionPlan with PlanShape::packed.
///
///     PackedPlan<float> plan(model, {.batch = 8, .heads = 16, .n_q = longest, .n_k = longest, .d_v = 64});
///     plan.forward(q, k, v, y, {cumulative_lengths}, stream);      // q [1, heads, tokens, d]
template <Storage S>
class PackedPlan : public AttentionPlan<S> {
 public:
  using typename AttentionPlan<S>::View;

  PackedPlan(AttentionModel model, PlanShape shape, const PlanOptions& options = {}, cudaStream_t stream = nullptr)
      : AttentionPlan<S>(std::move(model), (shape.packed = true, shape), options, stream) {}

  void forward(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y, const PackedCall& call,
               cudaStream_t stream = nullptr) const {
    AttentionPlan<S>::forward(q, k, v, y, call, stream);
  }
  void backward(const View& q, const View& k, const View& v, const View& dy, const PlanGradients<S>& gradients,
                const PackedCall& call, cudaStream_t stream = nullptr) const {
    AttentionPlan<S>::backward(q, k, v, dy, gradients, call, stream);
  }
};

/// Computes y [batch, heads, n_q, d_v] from q [batch, heads, n_q, d], k [batch, heads_k, n_k, d] and v [batch, heads_k,
/// n_k, d_v] on the current device. All arrays are contiguous in host memory.
///
///     std::vector<float> y = attend(model_of(attention), {.n_q = n, .n_k = n, .d_v = 64}, q, k, v);
///
/// Each call makes a plan, copies its inputs to the device, waits, and copies y back. To avoid this in repeated calls,
/// use an AttentionPlan with device memory. Throws as AttentionPlan does, and InvalidArgument for vectors of other
/// sizes and for PlanShape::packed.
template <Storage S>
std::vector<S> attend(const AttentionModel& model, const PlanShape& shape, const std::vector<S>& q,
                      const std::vector<S>& k, const std::vector<S>& v, const PlanOptions& options = {}) {
  require(!shape.packed, "packed: expected false without cumulative_lengths, got true");
  PlanOptions owning = options;
  owning.owns_workspace = true;
  const AttentionPlan<S> plan(model, shape, owning);
  const std::ptrdiff_t d = plan.model().features.front().d, heads_q = shape.heads, heads_k = heads_q / shape.group();
  const auto size = [&](std::ptrdiff_t heads, std::ptrdiff_t tokens, std::ptrdiff_t channels) {
    return static_cast<std::size_t>(shape.batch * heads * tokens * channels);
  };
  const auto copy_to_device = [](const std::vector<S>& x, const char* name, std::size_t expected) {
    require(x.size() == expected, name, ": expected ", expected, " scalars (batch heads tokens channels), got ",
            x.size());
    DeviceMemory memory(x.size() * sizeof(S));
    if (!x.empty())
      check(cudaMemcpyAsync(memory.data(), x.data(), x.size() * sizeof(S), cudaMemcpyHostToDevice, nullptr),
            "copying a vector to the device");
    return memory;
  };
  const DeviceMemory device_q = copy_to_device(q, "q", size(heads_q, shape.n_q, d)),
                     device_k = copy_to_device(k, "k", size(heads_k, shape.n_k, d)),
                     device_v = copy_to_device(v, "v", size(heads_k, shape.n_k, shape.d_v));
  std::vector<S> y(size(heads_q, shape.n_q, shape.d_v));
  const DeviceMemory device_y(y.size() * sizeof(S));
  const auto view = [&](const DeviceMemory& memory, std::ptrdiff_t heads, std::ptrdiff_t tokens,
                        std::ptrdiff_t channels) {
    return DeviceMatrixView<S>(static_cast<S*>(memory.data()), shape.batch, heads, tokens, channels);
  };
  plan.forward(view(device_q, heads_q, shape.n_q, d), view(device_k, heads_k, shape.n_k, d),
               view(device_v, heads_k, shape.n_k, shape.d_v), view(device_y, heads_q, shape.n_q, shape.d_v));
  if (!y.empty())
    check(cudaMemcpyAsync(y.data(), device_y.data(), y.size() * sizeof(S), cudaMemcpyDeviceToHost, nullptr),
          "copying a vector to the host");
  check(cudaStreamSynchronize(nullptr), "computing attention");
  return y;
}

}  // namespace nprf::cuda

#if NPRF_CUDA_EXTERN_INSTANCES  // instances.cuh
extern template class nprf::cuda::AttentionPlan<float>;
extern template class nprf::cuda::AttentionPlan<__half>;
extern template class nprf::cuda::AttentionPlan<__nv_bfloat16>;
#else
#include "nprf/cuda/plan/attention_plan_definition.cuh"
#endif
