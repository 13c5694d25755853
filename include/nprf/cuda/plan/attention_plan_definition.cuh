// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "nprf/config.hpp"
#include "nprf/cuda/attention/checked_product.cuh"
#include "nprf/cuda/attention/normalize.cuh"
#include "nprf/cuda/device/call_counters.cuh"
#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/device/kernel_loading.hpp"
#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/feature_map/forward.cuh"
#include "nprf/cuda/plan/attention_plan.cuh"
#include "nprf/cuda/plan/cost_model.cuh"
#include "nprf/cuda/plan/device_model.cuh"
#include "nprf/cuda/plan/exact_pairs.cuh"
#include "nprf/cuda/plan/options.cuh"
#include "nprf/cuda/position/attention_mask.cuh"
#include "nprf/cuda/toeplitz/product.cuh"
#if NPRF_CUDA_GRADIENTS
#include "nprf/cuda/plan/backward.cuh"
#else
#include "nprf/cuda/plan/no_backward.cuh"
#endif

/// Defines the members of AttentionPlan, and includes all kernels that they launch.
namespace nprf::cuda {

#if NPRF_CUDA_GRADIENTS
template <Storage S>
using PlanBackward = Backward<S>;
#else
template <Storage S>
using PlanBackward = NoBackward<S>;
#endif

template <Storage S>
class AttentionPlan<S>::Implementation {
 public:
  Implementation(AttentionModel model, const PlanShape& shape, const PlanOptions& options, cudaStream_t stream)
      : m_device(Device::current()),
        m_model(std::move(model), shape, options.gradients, stream),
        m_engine(options.engine == Engine::automatic ? cheapest<S>(m_device, m_model, options.gradients,
                                                                   options.tolerance, options.gradients_on_tensor_cores)
                                                     : options.engine),
        m_product(m_device, m_engine, m_model.product_shape(), m_model.toeplitz(), options.slab_bytes,
                  feature_type_of<S>(m_device, m_model, m_engine)),
        m_checked_product(m_device, m_product.shape(), m_product.weights(), m_product.length(), m_model.positive(),
                          options.tolerance),
        m_exact(m_device, m_model, m_product, options.slab_bytes) {
    require(options.tolerance >= 0, "tolerance: expected 0 or more, got ", options.tolerance);
    if (options.stream_ordered && !m_device.has_memory_pools)
      throw BackendError("stream_ordered: expected a device with memory pools (cudaMallocAsync), got one without");
    const int tiles = m_model.is_centred() ? 2 : 1;
    require(FeatureTile::shared(m_model.d_padded(), tiles, m_product.on_tensor_cores()) <= m_device.shared_bytes,
            "input_dim: expected a size that fits in ", m_device.shared_bytes, " bytes of shared memory, got ",
            m_model.d());
    if constexpr (MmaFactor<S>)
      if (m_product.on_tensor_cores()) m_model.template split_projections<S>(m_device, stream);
    if (options.gradients)
      m_backward.emplace(m_device, m_model, m_product, options.slab_bytes, options.gradients_on_tensor_cores);
    queue_weights(stream);
    check(cudaStreamSynchronize(stream), "transforming the weights");
    Scratch count;
    take(count);
    m_bytes = count.bytes();
    if (options.stream_ordered) {
      m_counts = DeviceMemory(sizeof(Counts));
      queue_fill("clearing counts", m_counts.data(), 0, sizeof(Counts), stream);
    } else if (options.owns_workspace)
      m_workspace = DeviceMemory(m_bytes);
    load_kernels(stream);
  }

  const AttentionModel& model() const { return m_model.model(); }
  const PlanShape& shape() const { return m_model.shape(); }
  Engine engine() const { return m_engine; }
  std::size_t workspace_bytes() const { return m_bytes; }

  void set_parameters(const float* parameters, cudaStream_t stream) {
    m_device.check_current();
    m_model.queue_parameters(parameters, stream);
    queue_weights(stream);
  }
  void forward(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y, const PlanCall& call,
               cudaStream_t stream) const {
    m_device.check_current();
    const auto [batch, heads, n_q, n_k, d_v, offset, heads_k] = sizes();
    check_inputs(q, k, v);
    check_output(y, "y", batch, heads, n_q, d_v);
    with_workspace(call, stream, [&](const Arrays& arrays) {
      queue(q, k, v, y, call, arrays, stream);
      if (allocates_workspace(call))
        check(cudaMemcpyAsync(m_counts.data(), arrays.checks.counters.counts, sizeof(Counts), cudaMemcpyDeviceToDevice,
                              stream),
              "copying counts");
    });
  }
  void backward(const View& q, const View& k, const View& v, const View& dy, const PlanGradients<S>& gradients,
                const PlanCall& call, cudaStream_t stream) const {
    m_device.check_current();
    require(m_backward.has_value(), "gradients: expected a plan with PlanOptions::gradients, got one without");
    const auto [batch, heads, n_q, n_k, d_v, offset, heads_k] = sizes();
    check_inputs(q, k, v);
    check_matrix(dy, "dy", batch, heads, n_q, d_v);
    check_output(gradients.dq, "dq", batch, heads, n_q, m_model.d());
    check_output(gradients.dk, "dk", batch, heads_k, n_k, m_model.d());
    check_output(gradients.dv, "dv", batch, heads_k, n_k, d_v);
    with_workspace(call, stream, [&](const Arrays& arrays) {
      const bool* mask = queue_mask(call, arrays, stream);
      m_backward->queue(parts(), {q, k, v, dy, mask}, gradients, arrays.backward, stream);
    });
  }

  const Counts* counts(const PlanCall& call) const {
    return allocates_workspace(call) ? static_cast<const Counts*>(m_counts.data())
                                     : arrays_of(call).checks.counters.counts;
  }
  Counts host_counts(const PlanCall& call, cudaStream_t stream) const {
    m_device.check_current();
    return copied_to_host(counts(call), stream);
  }

 private:
  // scratch memory of a call
  struct Arrays {
    std::byte *phi_q, *phi_k;  // in the layout of Product::operand_A() and operand_B()
    int* max_log_scale;        // [z / feature_group]
    bool* present;             // [batch, n_k]: whether a key is no padding; set if a call has lengths
    typename Product<S>::Arrays product;
    typename CheckedProduct<S>::Arrays checks;
    typename ExactPlan<S>::Arrays exact;
    typename PlanBackward<S>::Arrays backward;
  };

  // returns the mask of the keys that are no padding; null: no padding. Queues its computation if the call has lengths
  const bool* queue_mask(const PlanCall& call, const Arrays& arrays, cudaStream_t stream) const {
    if (!call.lengths) return call.key_mask;
    const int sequences = static_cast<int>(shape().batch);
    queue_present_keys({call.key_mask, call.lengths, sequences, m_model.n_k(), arrays.present}, stream);
    return arrays.present;
  }

  void queue(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y, const PlanCall& call,
             const Arrays& arrays, cudaStream_t stream) const {
    const Columns<S> U{m_model.shared_by_group(v), queue_mask(call, arrays, stream)};
    m_product.with_feature_type([&]<class Feature>() { queue_forward<Feature>(q, k, U, y, arrays, stream); });
  }

  // loads the kernels of all calls, so that the first one can be captured in a graph
  void load_kernels(cudaStream_t stream) const {
    const KernelLoading loading;
    const std::uintptr_t nowhere = Scratch::alignment;  // an address of memory that is not accessed
    Scratch scratch(reinterpret_cast<void*>(nowhere));
    const Arrays arrays = take(scratch);
    const auto [batch, heads, n_q, n_k, d_v, offset, heads_k] = sizes();
    const std::ptrdiff_t d = m_model.d();
    S* const array = reinterpret_cast<S*>(nowhere);
    const DeviceMatrixView<S> of_q(array, batch, heads, n_q, d), of_k(array, batch, heads_k, n_k, d),
        of_v(array, batch, heads_k, n_k, d_v), of_y(array, batch, heads, n_q, d_v);
    const PlanCall with_lengths{.lengths = reinterpret_cast<const int*>(nowhere)};
    for (S* const at : {array, array + 1})  // other kernels store y if its rows are not aligned to 16 bytes
      queue(of_q, of_k, of_v, {at, batch, heads, n_q, d_v}, with_lengths, arrays, stream);
    if (!m_backward) return;
    const PlanGradients<S> gradients{of_q, of_k, of_v, reinterpret_cast<float*>(nowhere)};
    m_backward->queue(parts(), {of_q, of_k, of_v, of_y, nullptr}, gradients, arrays.backward, stream);
  }

  // Queues the features, the sums and y = N / D. With a field, m_exact.queue() recomputes the rows that fail; else
  // m_exact.queue_rows() recomputes the rows whose D underflows.
  template <class Feature>
  void queue_forward(const View& q, const View& k, const Columns<S>& U, const DeviceMatrixView<S>& y,
                     const Arrays& arrays, cudaStream_t stream) const {
    const int n_q = m_model.n_q(), n_k = m_model.n_k(), z = m_model.z();
    Feature *phi_q = reinterpret_cast<Feature*>(arrays.phi_q), *phi_k = reinterpret_cast<Feature*>(arrays.phi_k);
    const Counters& counters = arrays.checks.counters;
    counters.queue_clear(z, stream);
    FeatureTask<S, Feature> queries = m_model.features<S>(q, true, U.mask, nullptr, phi_q, m_product.stride(n_q)),
                            keys = m_model.features<S>(k, false, U.mask, arrays.max_log_scale, phi_k,
                                                       m_product.stride(n_k));
    m_exact.prepare(m_model, queries, keys, arrays.exact, stream);
    queue_features(queries, keys, z, stream);
    const typename ExactPlan<S>::template Inputs<Feature> inputs{queries, keys, U, m_product};
    CheckedSums sums{arrays.product.sums};
    if (m_exact.has_field())
      sums = m_exact.queue(m_model, inputs, arrays.product, m_checked_product, arrays.checks, arrays.exact, stream);
    else if constexpr (std::is_same_v<Feature, float>)
      sums = m_checked_product.queue(m_product, phi_q, phi_k, U, arrays.product, arrays.checks, stream);
    else
      m_product.queue(phi_q, phi_k, U, arrays.product, stream);
    queue_normalize(NormalizeTask<S>{sums, m_model.positive(), y, m_exact.has_field() ? RowList{} : arrays.exact.rows,
                                     m_model.attention_mask(U.mask), counters.counts},
                    stream);
    if (!m_exact.has_field()) m_exact.queue_rows(m_model, inputs, sums, y, counters.counts, arrays.exact, stream);
  }

  // the shape, with the number of heads of keys in the place of heads_k = 0
  PlanShape sizes() const {
    PlanShape all = shape();
    all.heads_k = all.heads / all.group();
    return all;
  }

  void check_inputs(const View& q, const View& k, const View& v) const {
    const auto [batch, heads, n_q, n_k, d_v, offset, heads_k] = sizes();
    check_matrix(q, "q", batch, heads, n_q, m_model.d());
    check_matrix(k, "k", batch, heads_k, n_k, m_model.d());
    check_matrix(v, "v", batch, heads_k, n_k, d_v);
  }

  // recomputes everything that depends on the weights of lags
  void queue_weights(cudaStream_t stream) const {
    m_product.queue_spectrum(stream);
    m_checked_product.queue_weights(m_model.bias(), stream);
    m_exact.queue_weights(stream);
    if (m_backward) m_backward->queue_weights(stream);
  }

  ForwardParts<S> parts() const { return {m_model, m_product, m_checked_product, m_exact}; }

  Arrays take(Scratch& scratch) const {
    Arrays arrays{};
    const int z = m_model.z();
    const Counters counters = Counters::take(scratch, z);
    arrays.present = scratch.take<bool>(shape().batch, m_model.n_k());
    const auto forward = [&](Scratch& area) {
      arrays.phi_q = m_product.take_A(area);
      arrays.phi_k = m_product.take_B(area);
      arrays.max_log_scale = area.take<int>(m_model.needs_log_scales() ? z / m_model.feature_group() : 0);
      arrays.product = m_product.take(area);
      bool* recomputed = area.take<bool>(z, m_model.n_q());
      arrays.exact = m_exact.take(m_model, area, counters, m_exact.has_field());
      int* failed_rows = m_exact.has_field() ? area.take<int>(z, m_model.n_q()) : arrays.exact.rows.rows;
      arrays.checks = m_checked_product.take(area, recomputed, failed_rows, counters);
    };
    const auto backward = [&](Scratch& area) {
      if (m_backward) arrays.backward = m_backward->take(parts(), area);
    };
    scratch.overlap(forward, backward);
    return arrays;
  }

  // whether a call allocates its workspace
  bool allocates_workspace(const PlanCall& call) const { return m_counts.data() && !call.workspace; }

  // Calls use(arrays) with arrays in the workspace of the call. If the call allocates the workspace, frees it
  // afterwards.
  template <class Use>
  void with_workspace(const PlanCall& call, cudaStream_t stream, Use&& use) const {
    if (!allocates_workspace(call)) return use(arrays_of(call));
    const StreamMemory memory(m_bytes, stream);
    const Arrays arrays = arrays_of({.workspace = memory.data()});
    use(arrays);
  }

  Arrays arrays_of(const PlanCall& call) const {
    void* memory = call.workspace ? call.workspace : m_workspace.data();
    require(memory != nullptr,
            "workspace: expected memory from the call, since the plan owns none, got a null pointer");
    require(reinterpret_cast<std::uintptr_t>(memory) % Scratch::alignment == 0,
            "workspace: expected memory aligned to ", Scratch::alignment, " bytes, got an address that is not");
    Scratch scratch(memory);
    return take(scratch);
  }

  Device m_device;
  DeviceModel m_model;
  Engine m_engine;
  Product<S> m_product;
  CheckedProduct<S> m_checked_product;
  ExactPlan<S> m_exact;
  std::optional<PlanBackward<S>> m_backward;
  DeviceMemory m_workspace;
  DeviceMemory m_counts;  // Counts, if calls allocate their workspace; else none
  std::size_t m_bytes = 0;
};

template <Storage S>
AttentionPlan<S>::AttentionPlan(AttentionModel model, const PlanShape& shape, const PlanOptions& options,
                                cudaStream_t stream)
    : m_implementation(std::make_shared<Implementation>(std::move(model), shape, options, stream)) {}
template <Storage S>
const AttentionModel& AttentionPlan<S>::model() const {
  return m_implementation->model();
}
template <Storage S>
const PlanShape& AttentionPlan<S>::shape() const {
  return m_implementation->shape();
}
template <Storage S>
Engine AttentionPlan<S>::engine() const {
  return m_implementation->engine();
}
template <Storage S>
std::size_t AttentionPlan<S>::workspace_bytes() const {
  return m_implementation->workspace_bytes();
}
template <Storage S>
void AttentionPlan<S>::set_parameters(const float* parameters, cudaStream_t stream) {
  m_implementation->set_parameters(parameters, stream);
}
template <Storage S>
void AttentionPlan<S>::forward(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y,
                               const PlanCall& call, cudaStream_t stream) const {
  m_implementation->forward(q, k, v, y, call, stream);
}
template <Storage S>
void AttentionPlan<S>::backward(const View& q, const View& k, const View& v, const View& dy,
                                const PlanGradients<S>& gradients, const PlanCall& call, cudaStream_t stream) const {
  m_implementation->backward(q, k, v, dy, gradients, call, stream);
}
template <Storage S>
const Counts* AttentionPlan<S>::counts(const PlanCall& call) const {
  return m_implementation->counts(call);
}
template <Storage S>
Counts AttentionPlan<S>::host_counts(const PlanCall& call, cudaStream_t stream) const {
  return m_implementation->host_counts(call, stream);
}

}  // namespace nprf::cuda
