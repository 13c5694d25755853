// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "nprf/cuda/attention/checked_product.cuh"
#include "nprf/cuda/attention/normalize.cuh"
#include "nprf/cuda/device/call_counters.cuh"
#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/device/packed_rows.cuh"
#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/feature_map/forward.cuh"
#include "nprf/cuda/plan/attention_plan.cuh"
#include "nprf/cuda/plan/backward.cuh"
#include "nprf/cuda/plan/cost_model.cuh"
#include "nprf/cuda/plan/device_model.cuh"
#include "nprf/cuda/plan/exact_pairs.cuh"
#include "nprf/cuda/plan/options.cuh"
#include "nprf/cuda/position/attention_mask.cuh"
#include "nprf/cuda/toeplitz/product.cuh"

/// Defines the members of AttentionPlan, and includes all kernels that they launch.
namespace nprf::cuda {

template <Storage S>
struct AttentionPlan<S>::Implementation {
  Implementation(AttentionModel of_plan, const PlanShape& shape, const PlanOptions& options, cudaStream_t stream)
      : device(Device::current()),
        model(std::move(of_plan), shape, options, stream),
        engine(options.engine == Engine::automatic
                   ? cheapest<S>(device, model, options.gradients, options.tolerance, options.gradients_on_tensor_cores)
                   : options.engine),
        product(device, engine, model.product_shape(), model.toeplitz(), options.slab_bytes,
                feature_type_of<S>(device, model, engine)),
        checked_product(device, product.shape(), product.weights(), product.length(), model.positive(),
                        options.tolerance),
        exact(device, model, product, options.slab_bytes) {
    check_options(options);
    if constexpr (MmaFactor<S>)
      if (product.on_tensor_cores()) model.template split_projections<S>(device, stream);
    if (options.gradients)
      backward.emplace(device, model, product, options.slab_bytes, options.gradients_on_tensor_cores);
    queue_weights(stream);
    check(cudaStreamSynchronize(stream), "transforming the weights");
    Scratch count;
    take(count);
    bytes = count.bytes();
    if (options.stream_ordered) {
      counts = DeviceMemory(sizeof(Counts));
      queue_fill("clearing counts", counts.data(), 0, sizeof(Counts), stream);
    } else if (options.owns_workspace)
      workspace = DeviceMemory(bytes);
    load_kernels(stream);
  }

  void check_options(const PlanOptions& options) const {
    require(options.tolerance >= 0, "tolerance: expected 0 or more, got ", options.tolerance);
    if (options.stream_ordered && !device.has_memory_pools)
      throw BackendError("stream_ordered: expected a device with memory pools (cudaMallocAsync), got one without");
    const int tiles = model.is_centred() ? 2 : 1;
    require(FeatureTile::shared(model.d_padded(), tiles, product.on_tensor_cores()) <= device.shared_bytes,
            "input_dim: expected a size that fits in ", device.shared_bytes, " bytes of shared memory, got ",
            model.d());
  }

  // the arrays of a call with the sequences padded to n_q queries and n_k keys; empty unless PlanShape::packed
  struct Padded {
    int* lengths;                                // [batch]: the numbers of keys
    DeviceMatrixView<S> q, k, v, y, dq, dk, dv;  // y is dy in backward; dq, dk and dv only with gradients
  };

  // scratch memory of a call
  struct Arrays {
    std::byte *phi_q, *phi_k;  // in the layout of Product::operand_A() and operand_B()
    int* max_log_scale;        // [z / feature_group]
    bool* present;             // [batch, n_k]: whether a key is no padding; set if a call has lengths
    Padded padded;
    typename Product<S>::Arrays product;
    typename CheckedProduct<S>::Arrays checks;
    typename ExactPlan<S>::Arrays exact;
    typename Backward<S>::Arrays backward;
  };

  Arrays take(Scratch& scratch) const {
    Arrays arrays{};
    const int z = model.z();
    const Counters counters = Counters::take(scratch, z);
    arrays.present = scratch.take<bool>(model.shape().batch, model.n_k());
    if (model.shape().packed) arrays.padded = take_padded(scratch);
    const auto of_forward = [&](Scratch& area) {
      arrays.phi_q = product.take_A(area);
      arrays.phi_k = product.take_B(area);
      arrays.max_log_scale = area.take<int>(model.needs_log_scales() ? z / model.feature_group() : 0);
      arrays.product = product.take(area);
      bool* recomputed = area.take<bool>(z, model.n_q());
      arrays.exact = exact.take(model, area, counters, exact.has_field());
      int* failed_rows = exact.has_field() ? area.take<int>(z, model.n_q()) : arrays.exact.rows.rows;
      arrays.checks = checked_product.take(area, recomputed, failed_rows, counters);
    };
    const auto of_backward = [&](Scratch& area) {
      if (backward) arrays.backward = backward->take(parts(), area);
    };
    scratch.overlap(of_forward, of_backward);
    return arrays;
  }
  Padded take_padded(Scratch& scratch) const {
    const PlanShape shape = sizes();
    const auto array = [&](std::ptrdiff_t heads, std::ptrdiff_t n, std::ptrdiff_t channels) {
      return DeviceMatrixView<S>(scratch.take<S>(shape.batch, heads, n, channels), shape.batch, heads, n, channels);
    };
    const auto of_q = [&](std::ptrdiff_t channels) { return array(shape.heads, shape.n_q, channels); };
    const auto of_k = [&](std::ptrdiff_t channels) { return array(shape.heads_k, shape.n_k, channels); };
    const std::ptrdiff_t d = model.d();
    Padded all{scratch.take<int>(shape.batch), of_q(d), of_k(d), of_k(shape.d_v), of_q(shape.d_v), {}, {}, {}};
    if (backward) all.dq = of_q(d), all.dk = of_k(d), all.dv = of_k(shape.d_v);
    return all;
  }

  // the shape, with the number of heads of keys in the place of heads_k = 0
  PlanShape sizes() const {
    PlanShape all = model.shape();
    all.heads_k = all.heads / all.group();
    return all;
  }
  // the shape of the arrays of a call: that of the plan, or one sequence with the packed tokens
  PlanShape sizes_of_call(const View& q, const View& k) const {
    PlanShape all = sizes();
    if (all.packed) all.batch = 1, all.n_q = q.tokens, all.n_k = k.tokens;
    return all;
  }

  void check_inputs(const View& q, const View& k, const View& v, const PlanCall& call) const {
    const PlanShape shape = sizes_of_call(q, k);
    check_matrix(q, "q", shape.batch, shape.heads, shape.n_q, model.d());
    check_matrix(k, "k", shape.batch, shape.heads_k, shape.n_k, model.d());
    check_matrix(v, "v", shape.batch, shape.heads_k, shape.n_k, shape.d_v);
    if (!shape.packed) {
      require(!call.cumulative_lengths && !call.key_cumulative_lengths,
              "cumulative_lengths: expected a plan with PlanShape::packed, got one without");
      return;
    }
    require(call.cumulative_lengths != nullptr, "cumulative_lengths: expected lengths, got a null pointer");
    require(!call.key_mask && !call.lengths, "key_mask and lengths: expected none for packed sequences");
    constexpr std::ptrdiff_t most = std::ptrdiff_t{1} << 30;
    require(q.tokens <= most && k.tokens <= most, "q and k: expected at most ", most, " tokens, got ", q.tokens,
            " and ", k.tokens);
    require(call.key_cumulative_lengths || q.tokens == k.tokens, "k: expected ", q.tokens,
            " tokens (those of q, without key_cumulative_lengths), got ", k.tokens);
  }

  // Calls use(q, k, v, call) with the inputs; or if they are packed with the padded ones and their lengths, which it
  // queues.
  template <class Use>
  void with_padded(const View& q, const View& k, const View& v, const PlanCall& call, const Arrays& arrays,
                   cudaStream_t stream, Use&& use) const {
    if (!model.shape().packed) return use(q, k, v, call);
    const Padded& to = arrays.padded;
    const PackedSequences of_k = packed_keys(call, k);
    queue_packed_lengths(of_k, to.lengths, stream);
    queue_unpack<S>(PackedTask<const S>{packed_queries(call, q), q, to.q}, stream);
    queue_unpack<S>(PackedTask<const S>{of_k, k, to.k}, stream);
    queue_unpack<S>(PackedTask<const S>{of_k, v, to.v}, stream);
    use(to.q, to.k, to.v, {.lengths = to.lengths});
  }
  // the packed sequences of an array of queries, and of one of keys
  PackedSequences packed_queries(const PlanCall& call, const View& q) const {
    return {call.cumulative_lengths, static_cast<int>(model.shape().batch), static_cast<int>(q.tokens)};
  }
  PackedSequences packed_keys(const PlanCall& call, const View& k) const {
    const int* first = call.key_cumulative_lengths ? call.key_cumulative_lengths : call.cumulative_lengths;
    return {first, static_cast<int>(model.shape().batch), static_cast<int>(k.tokens)};
  }

  // returns the mask of the keys that are no padding; null: no padding. Queues its computation if the call has lengths
  const bool* queue_mask(const PlanCall& call, const Arrays& arrays, cudaStream_t stream) const {
    if (!call.lengths) return call.key_mask;
    const int sequences = static_cast<int>(model.shape().batch);
    queue_present_keys({call.key_mask, call.lengths, sequences, model.n_k(), arrays.present}, stream);
    return arrays.present;
  }

  void queue(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y, const PlanCall& call,
             const Arrays& arrays, cudaStream_t stream) const {
    with_padded(q, k, v, call, arrays, stream,
                [&](const View& of_q, const View& of_k, const View& of_v, const PlanCall& of_rows) {
                  const Columns<S> U{model.shared_by_group(of_v), queue_mask(of_rows, arrays, stream)};
                  const DeviceMatrixView<S>& to = model.shape().packed ? arrays.padded.y : y;
                  product.with_feature_type(
                      [&]<class Feature>() { queue_forward<Feature>(of_q, of_k, U, to, arrays, stream); });
                });
    if (model.shape().packed) queue_pack(PackedTask<S>{packed_queries(call, q), y, arrays.padded.y}, stream);
  }

  void queue_backward(const View& q, const View& k, const View& v, const View& dy, const PlanGradients<S>& gradients,
                      const PlanCall& call, const Arrays& arrays, cudaStream_t stream) const {
    const bool packed = model.shape().packed;
    const Padded& padded = arrays.padded;
    if (packed) queue_unpack<S>(PackedTask<const S>{packed_queries(call, q), dy, padded.y}, stream);
    with_padded(q, k, v, call, arrays, stream,
                [&](const View& of_q, const View& of_k, const View& of_v, const PlanCall& of_rows) {
                  const bool* mask = queue_mask(of_rows, arrays, stream);
                  const PlanGradients<S> to{padded.dq, padded.dk, padded.dv, gradients.parameters};
                  backward->queue(parts(), {of_q, of_k, of_v, packed ? View(padded.y) : dy, mask},
                                  packed ? to : gradients, arrays.backward, stream);
                });
    if (!packed) return;
    queue_pack(PackedTask<S>{packed_queries(call, q), gradients.dq, padded.dq}, stream);
    queue_pack(PackedTask<S>{packed_keys(call, k), gradients.dk, padded.dk}, stream);
    queue_pack(PackedTask<S>{packed_keys(call, k), gradients.dv, padded.dv}, stream);
  }

  // loads the kernels of all calls, so that the first one can be captured in a graph
  void load_kernels(cudaStream_t stream) const {
    const KernelLoading loading;
    const std::uintptr_t nowhere = Scratch::alignment;  // an address of memory that is not accessed
    Scratch scratch(reinterpret_cast<void*>(nowhere));
    const Arrays arrays = take(scratch);
    const PlanShape shape = sizes();
    const std::ptrdiff_t batch = shape.packed ? 1 : shape.batch, heads = shape.heads, heads_k = shape.heads_k;
    const auto array = [&](std::ptrdiff_t of_heads, std::ptrdiff_t n, std::ptrdiff_t channels) {
      return DeviceMatrixView<S>(reinterpret_cast<S*>(nowhere), batch, of_heads, n, channels);
    };
    const DeviceMatrixView<S> q = array(heads, shape.n_q, model.d()), k = array(heads_k, shape.n_k, model.d()),
                              v = array(heads_k, shape.n_k, shape.d_v), y = array(heads, shape.n_q, shape.d_v);
    DeviceMatrixView<S> unaligned = y;  // other kernels store y if its rows are not aligned to 16 bytes
    ++unaligned.data;
    const PlanCall with_lengths{.lengths = reinterpret_cast<const int*>(nowhere)};
    queue(q, k, v, y, with_lengths, arrays, stream);
    queue(q, k, v, unaligned, with_lengths, arrays, stream);
    if (backward) queue_backward(q, k, v, y, {q, k, v, reinterpret_cast<float*>(nowhere)}, {}, arrays, stream);
  }

  // Queues the features, the sums and y = N / D. With a field, exact.queue() recomputes the rows that fail; else
  // exact.queue_rows() recomputes the rows whose D underflows.
  template <class Feature>
  void queue_forward(const View& q, const View& k, const Columns<S>& U, const DeviceMatrixView<S>& y,
                     const Arrays& arrays, cudaStream_t stream) const {
    const int n_q = model.n_q(), n_k = model.n_k(), z = model.z();
    Feature *phi_q = reinterpret_cast<Feature*>(arrays.phi_q), *phi_k = reinterpret_cast<Feature*>(arrays.phi_k);
    const Counters& counters = arrays.checks.counters;
    counters.queue_clear(z, stream);
    FeatureTask<S, Feature> queries = model.features<S>(q, true, U.mask, nullptr, phi_q, product.stride(n_q)),
                            keys =
                                model.features<S>(k, false, U.mask, arrays.max_log_scale, phi_k, product.stride(n_k));
    exact.prepare(model, queries, keys, arrays.exact, stream);
    queue_features(queries, keys, z, stream);
    const typename ExactPlan<S>::template Inputs<Feature> inputs{queries, keys, U, product};
    CheckedSums sums{arrays.product.sums};
    if (exact.has_field())
      sums = exact.queue(model, inputs, arrays.product, checked_product, arrays.checks, arrays.exact, stream);
    else if constexpr (std::is_same_v<Feature, float>)
      sums = checked_product.queue(product, phi_q, phi_k, U, arrays.product, arrays.checks, stream);
    else
      product.queue(phi_q, phi_k, U, arrays.product, stream);
    queue_normalize(NormalizeTask<S>{sums, model.positive(), y, exact.has_field() ? RowList{} : arrays.exact.rows,
                                     model.attention_mask(U.mask), counters.counts},
                    stream);
    if (!exact.has_field()) exact.queue_rows(model, inputs, sums, y, counters.counts, arrays.exact, stream);
  }

  // recomputes everything that depends on the weights of lags
  void queue_weights(cudaStream_t stream) const {
    product.queue_weights(stream);
    checked_product.queue_weights(model.bias(), stream);
    exact.queue_weights(stream);
    if (backward) backward->queue_weights(stream);
  }

  ForwardParts<S> parts() const { return {model, product, checked_product, exact}; }

  // whether a call allocates its workspace
  bool allocates_workspace(const PlanCall& call) const { return counts.data() && !call.workspace; }

  // Calls use(arrays) with arrays in the workspace of the call. If the call allocates the workspace, frees it
  // afterwards.
  template <class Use>
  void with_workspace(const PlanCall& call, cudaStream_t stream, Use&& use) const {
    if (!allocates_workspace(call)) return use(arrays_of(call));
    const StreamMemory memory(bytes, stream);
    const Arrays arrays = arrays_of({.workspace = memory.data()});
    use(arrays);
  }

  Arrays arrays_of(const PlanCall& call) const {
    void* memory = call.workspace ? call.workspace : workspace.data();
    require(memory != nullptr,
            "workspace: expected memory from the call, since the plan owns none, got a null pointer");
    require(reinterpret_cast<std::uintptr_t>(memory) % Scratch::alignment == 0,
            "workspace: expected memory aligned to ", Scratch::alignment, " bytes, got an address that is not");
    Scratch scratch(memory);
    return take(scratch);
  }

  Device device;
  DeviceModel model;
  Engine engine;
  Product<S> product;
  CheckedProduct<S> checked_product;
  ExactPlan<S> exact;
  std::optional<Backward<S>> backward;
  DeviceMemory workspace;
  DeviceMemory counts;  // Counts, if calls allocate their workspace; else none
  std::size_t bytes = 0;
};

template <Storage S>
AttentionPlan<S>::AttentionPlan(AttentionModel model, const PlanShape& shape, const PlanOptions& options,
                                cudaStream_t stream)
    : m_implementation(std::make_shared<Implementation>(std::move(model), shape, options, stream)) {}
template <Storage S>
const AttentionModel& AttentionPlan<S>::model() const {
  return m_implementation->model.model();
}
template <Storage S>
const PlanShape& AttentionPlan<S>::shape() const {
  return m_implementation->model.shape();
}
template <Storage S>
Engine AttentionPlan<S>::engine() const {
  return m_implementation->engine;
}
template <Storage S>
std::size_t AttentionPlan<S>::workspace_bytes() const {
  return m_implementation->bytes;
}
template <Storage S>
void AttentionPlan<S>::set_parameters(const float* parameters, cudaStream_t stream) {
  m_implementation->device.check_current();
  m_implementation->model.queue_parameters(parameters, stream);
  m_implementation->queue_weights(stream);
}
template <Storage S>
void AttentionPlan<S>::forward(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y,
                               const PlanCall& call, cudaStream_t stream) const {
  const Implementation& plan = *m_implementation;
  plan.device.check_current();
  plan.check_inputs(q, k, v, call);
  const PlanShape shape = plan.sizes_of_call(q, k);
  check_output(y, "y", shape.batch, shape.heads, shape.n_q, shape.d_v);
  plan.with_workspace(call, stream, [&](const auto& arrays) {
    plan.queue(q, k, v, y, call, arrays, stream);
    if (plan.allocates_workspace(call))
      check(cudaMemcpyAsync(plan.counts.data(), arrays.checks.counters.counts, sizeof(Counts), cudaMemcpyDeviceToDevice,
                            stream),
            "copying counts");
  });
}
template <Storage S>
void AttentionPlan<S>::backward(const View& q, const View& k, const View& v, const View& dy,
                                const PlanGradients<S>& gradients, const PlanCall& call, cudaStream_t stream) const {
  const Implementation& plan = *m_implementation;
  plan.device.check_current();
  require(plan.backward.has_value(), "gradients: expected a plan with PlanOptions::gradients, got one without");
  plan.check_inputs(q, k, v, call);
  const PlanShape shape = plan.sizes_of_call(q, k);
  check_matrix(dy, "dy", shape.batch, shape.heads, shape.n_q, shape.d_v);
  check_output(gradients.dq, "dq", shape.batch, shape.heads, shape.n_q, plan.model.d());
  check_output(gradients.dk, "dk", shape.batch, shape.heads_k, shape.n_k, plan.model.d());
  check_output(gradients.dv, "dv", shape.batch, shape.heads_k, shape.n_k, shape.d_v);
  plan.with_workspace(call, stream,
                      [&](const auto& arrays) { plan.queue_backward(q, k, v, dy, gradients, call, arrays, stream); });
}
template <Storage S>
const Counts* AttentionPlan<S>::counts(const PlanCall& call) const {
  const Implementation& plan = *m_implementation;
  return plan.allocates_workspace(call) ? static_cast<const Counts*>(plan.counts.data())
                                        : plan.arrays_of(call).checks.counters.counts;
}
template <Storage S>
Counts AttentionPlan<S>::host_counts(const PlanCall& call, cudaStream_t stream) const {
  m_implementation->device.check_current();
  return copied_to_host(counts(call), stream);
}

}  // namespace nprf::cuda
