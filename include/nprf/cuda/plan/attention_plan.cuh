// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include "nprf/cuda/attention/checked_product.cuh"
#include "nprf/cuda/attention/normalize.cuh"
#include "nprf/cuda/attention/recompute_log_domain.cuh"
#include "nprf/cuda/device/call_counters.cuh"
#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/feature_map/forward.cuh"
#include "nprf/cuda/plan/backward.cuh"
#include "nprf/cuda/plan/cost_model.cuh"
#include "nprf/cuda/plan/device_model.cuh"
#include "nprf/cuda/toeplitz/product.cuh"

namespace nprf::cuda {

/// How a plan works.
struct PlanOptions {
  Engine engine = Engine::automatic;
  bool gradients = false;                          // whether backward will be called
  bool owns_workspace = true;                      // false: each call brings its own
  std::size_t slab_bytes = std::size_t{64} << 20;  // of columns that are transformed through memory at a time
  double tolerance = 1e-4;                         // of a row, relative to the largest |v| it sees
};

/// What one call adds.
struct PlanCall {
  const bool* key_mask = nullptr;  // on the device, [batch, n_k]: false is padding; null: none is
  void* workspace = nullptr;       // on the device, workspace_bytes() of it, aligned to 256; null: the plan's own
};

/// Kernelized attention with a bias for the distance between tokens on a GPU (attention.hpp has the formula), for one
/// set of sizes, ready to be called: a call allocates nothing, waits for nothing, and may be captured in a graph.
///
///     AttentionPlan<float> plan(model_of(attention), {.batch = 4, .heads = 16, .n_q = n, .n_k = n, .d_v = 64});
///     plan.forward(q, k, v, y, stream);      // views of memory on the device
///     plan.backward(q, k, v, dy, {dq, dk, dv}, {}, stream);      // of a plan with .gradients
///
/// Where the rounding of transforms may put a row of y farther off than half the tolerance, relative to the largest |v|
/// that the row sees, that row is computed again by tiles; infinity leaves them all. By any engine, rows whose
/// denominator underflows are computed from the logarithms of their features, if those are exponentials. A NaN or an
/// infinity in a query is its own row's; in a key or a value it touches the rows that see it, and no other.
///
/// S is what queries, keys, values and y are stored as. float is computed with as float; half and bfloat16 on tensor
/// cores where the engine takes them, to bfloat16's precision (toeplitz/product.cuh), else as float. A plan belongs to
/// the device that was current when it was made. One call at a time uses the plan's own workspace; calls with
/// workspaces of their own may run at once.
template <Storage S>
class AttentionPlan {
 public:
  using View = DeviceMatrixView<const S>;

  /// Waits until what it sends to the device has arrived. Throws InvalidArgument for sizes that do not fit,
  /// BackendError where there is no device of compute capability 7.0 or newer, or not enough memory.
  AttentionPlan(AttentionModel model, const PlanShape& shape, const PlanOptions& options = {},
                cudaStream_t stream = nullptr);

  /// As it was given; parameters that were set later lie on the device.
  const AttentionModel& model() const { return m_model.model(); }
  const PlanShape& shape() const { return m_model.shape(); }
  Engine engine() const { return m_engine; }

  /// Scratch memory of a call.
  std::size_t workspace_bytes() const { return m_bytes; }

  /// The positions' parameters from here on, [position, parameter] on the device: those of a training step, say. The
  /// weights are computed in the stream, not while calls run in others. The engine stays, though another may be cheaper
  /// now. Throws InvalidArgument for a null pointer.
  void set_parameters(const float* parameters, cudaStream_t stream);

  /// q [batch, heads, n_q, d], k [.., n_k, d], v [.., n_k, d_v] -> y [.., n_q, d_v]. A row that sees no key is zero.
  /// Throws InvalidArgument for views that do not have these shapes, BackendError for what CUDA refuses: a stream of
  /// another device, say.
  void forward(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y, const PlanCall& call,
               cudaStream_t stream) const;
  void forward(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y,
               cudaStream_t stream = nullptr) const {
    forward(q, k, v, y, {}, stream);
  }

  /// The gradients of L for dy [.., n_q, d_v] = dL/dy, from the same inputs; of forward's results it needs none. Rows
  /// that see no key, those whose denominator underflows and features tell no logarithms, and keys that are padding
  /// have none. By transforms a query that sees keys and is no number leaves no gradient of its head that is one, nor
  /// of its position. Throws as forward does, and InvalidArgument for a plan without gradients.
  void backward(const View& q, const View& k, const View& v, const View& dy, const PlanGradients<S>& gradients,
                const PlanCall& call, cudaStream_t stream) const;

  /// What the last forward with this workspace did, on the device.
  const Counts* counts(const PlanCall& call = {}) const { return arrays_of(call).certificates.counters.counts; }

 private:
  // a call's scratch memory
  struct Arrays {
    std::byte *phi_q, *phi_k;  // as the product wants them
    int* tops;                 // [z]
    int* rows;                 // [z, n_q]: to be computed again
    typename Product<S>::Arrays product;
    typename Certificates<S>::Arrays certificates;
    typename Backward<S>::Arrays backward;
  };

  // by the engine, where that drowns rows by tiles, and where they underflow by logarithms
  template <class Feature>
  void queue_rows(const View& q, const View& k, const Columns<S>& U, const DeviceMatrixView<S>& y, const Arrays& arrays,
                  cudaStream_t stream) const {
    const int n_q = m_model.n_q(), n_k = m_model.n_k(), z = m_model.z();
    Feature *phi_q = reinterpret_cast<Feature*>(arrays.phi_q), *phi_k = reinterpret_cast<Feature*>(arrays.phi_k);
    const Counters& counters = arrays.certificates.counters;
    counters.queue_clear(z, stream);
    queue_features(m_model.features<S>(q, true, U.mask, nullptr, phi_q, m_product.stride(n_q)),
                   m_model.features<S>(k, false, U.mask, arrays.tops, phi_k, m_product.stride(n_k)), z, stream);
    CheckedSums sums{arrays.product.sums};
    if constexpr (std::is_same_v<Feature, float>)
      sums = m_certificates.queue(m_product, phi_q, phi_k, U, arrays.product, arrays.certificates, stream);
    else
      m_product.queue(phi_q, phi_k, U, arrays.product, stream);
    const RowList lost{m_model.exponential() ? arrays.rows : nullptr, counters.lost, n_q};
    queue_finish(FinishTask<S>{sums, m_model.positive(), y, lost, m_model.visibility(U.mask), counters.counts}, stream);
    if (lost.rows)
      queue_rescue(RescueTask<S>{m_model.features<S, float>(q, true, nullptr, nullptr, nullptr, 0),
                                 m_model.features<S, float>(k, false, U.mask, nullptr, nullptr, 0), U, m_model.bias(),
                                 m_model.weights().last_attended, lost, y, counters.counts},
                   z, 2 * m_device.multiprocessors, stream);
  }

  void check_inputs(const View& q, const View& k, const View& v) const {
    const auto& [batch, heads, n_q, n_k, d_v, offset] = shape();
    check_matrix(q, "q", batch, heads, n_q, m_model.d());
    check_matrix(k, "k", batch, heads, n_k, m_model.d());
    check_matrix(v, "v", batch, heads, n_k, d_v);
  }

  // what follows from the weights of lags
  void queue_weights(cudaStream_t stream) const {
    m_product.queue_spectrum(stream);
    m_certificates.queue_weights(stream);
    if (m_backward) m_backward->queue_weights(stream);
  }

  void check_device() const {
    int current = 0;
    check(cudaGetDevice(&current), "querying the current device");
    require(current == m_device.number, "device: expected ", m_device.number,
            ", which was current when the plan was made, got ", current);
  }

  Arrays take(Scratch& scratch) const {
    Arrays arrays{};
    const int z = m_model.z();
    const Counters counters = Counters::take(scratch, z);
    const auto forward = [&](Scratch& own) {
      arrays.phi_q = m_product.take_features(own, m_model.n_q());
      arrays.phi_k = m_product.take_features(own, m_model.n_k());
      arrays.tops = own.take<int>(m_model.needs_tops() ? z : 0);
      arrays.rows = own.take<int>(z, m_model.n_q());
      arrays.product = m_product.take(own);
      bool* recomputed = own.take<bool>(z, m_model.n_q());
      arrays.certificates = m_certificates.take(own, recomputed, arrays.rows, counters);
    };
    const auto backward = [&](Scratch& own) {
      if (m_backward) arrays.backward = m_backward->take(m_model, m_product, m_certificates, own);
    };
    scratch.overlap(forward, backward);
    return arrays;
  }

  Arrays arrays_of(const PlanCall& call) const {
    void* memory = call.workspace ? call.workspace : m_workspace.data();
    require(memory != nullptr,
            "workspace: expected memory of the call's, since the plan owns none, got a null pointer");
    require(reinterpret_cast<std::uintptr_t>(memory) % Scratch::alignment == 0,
            "workspace: expected memory aligned to ", Scratch::alignment, " bytes, got an address that is not");
    Scratch scratch(memory);
    return take(scratch);
  }

  Device m_device;
  DeviceModel m_model;
  Engine m_engine;
  Product<S> m_product;
  Certificates<S> m_certificates;
  std::optional<Backward<S>> m_backward;
  DeviceMemory m_workspace;
  std::size_t m_bytes = 0;
};

template <Storage S>
AttentionPlan<S>::AttentionPlan(AttentionModel model, const PlanShape& shape, const PlanOptions& options,
                                cudaStream_t stream)
    : m_device(Device::current()),
      m_model(std::move(model), shape, options.gradients, stream),
      m_engine(options.engine == Engine::automatic
                   ? cheapest<S>(m_device, m_model, options.gradients, options.tolerance)
                   : options.engine),
      m_product(m_device, m_engine,
                {m_model.z(), m_model.heads(), m_model.n_q(), m_model.n_k(), m_model.r(), m_model.d_v()},
                m_model.toeplitz(), options.slab_bytes),
      m_certificates(m_device, m_product.shape(), m_product.weights(), m_product.length(), m_model.positive(),
                     options.tolerance) {
  require(options.tolerance >= 0, "tolerance: expected 0 or more, got ", options.tolerance);
  const std::size_t shared = m_model.exponential() ? RescueShape::shared(m_model.d_padded(), m_model.m())
                                                   : FeatureShape::shared(m_model.d_padded());
  require(shared <= m_device.shared_bytes, "input_dim and num_features: expected what fits ", m_device.shared_bytes,
          " bytes of shared memory, got ", m_model.d(), " and ", m_model.m());
  if (options.gradients) m_backward.emplace(m_device, m_engine, m_model, m_product, options.slab_bytes);
  queue_weights(stream);
  check(cudaStreamSynchronize(stream), "transforming the weights");
  Scratch count;
  take(count);
  m_bytes = count.bytes();
  if (options.owns_workspace) m_workspace = DeviceMemory(m_bytes);
}

template <Storage S>
void AttentionPlan<S>::set_parameters(const float* parameters, cudaStream_t stream) {
  check_device();
  m_model.queue_parameters(parameters, stream);
  queue_weights(stream);
}

template <Storage S>
void AttentionPlan<S>::forward(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y,
                               const PlanCall& call, cudaStream_t stream) const {
  check_device();
  const auto& [batch, heads, n_q, n_k, d_v, offset] = shape();
  check_inputs(q, k, v);
  check_output(y, "y", batch, heads, n_q, d_v);
  const Arrays arrays = arrays_of(call);
  if (m_product.on_tensor_cores())
    queue_rows<OnTensorCores<S>>(q, k, {Operand<S>(v), call.key_mask}, y, arrays, stream);
  else
    queue_rows<float>(q, k, {Operand<S>(v), call.key_mask}, y, arrays, stream);
}

template <Storage S>
void AttentionPlan<S>::backward(const View& q, const View& k, const View& v, const View& dy,
                                const PlanGradients<S>& gradients, const PlanCall& call, cudaStream_t stream) const {
  check_device();
  require(m_backward.has_value(), "gradients: expected a plan with them (PlanOptions), got one without");
  const auto& [batch, heads, n_q, n_k, d_v, offset] = shape();
  check_inputs(q, k, v);
  check_matrix(dy, "dy", batch, heads, n_q, d_v);
  check_output(gradients.dq, "dq", batch, heads, n_q, m_model.d());
  check_output(gradients.dk, "dk", batch, heads, n_k, m_model.d());
  check_output(gradients.dv, "dv", batch, heads, n_k, d_v);
  m_backward->queue(m_model, m_product, m_certificates, q, k, v, dy, call.key_mask, gradients, arrays_of(call).backward,
                    stream);
}

}  // namespace nprf::cuda
