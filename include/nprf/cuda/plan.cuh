// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "nprf/cuda/backward.cuh"
#include "nprf/cuda/device_matrix.hpp"
#include "nprf/cuda/device_model.cuh"
#include "nprf/cuda/features.cuh"
#include "nprf/cuda/finish.cuh"
#include "nprf/cuda/product.cuh"
#include "nprf/cuda/runtime.hpp"
#include "nprf/cuda/scratch.hpp"

namespace nprf::cuda {

/// How a plan works.
struct PlanOptions {
  Engine engine = Engine::automatic;
  bool gradients = false;                          // whether backward will be called
  bool owns_workspace = true;                      // false: each call brings its own
  std::size_t slab_bytes = std::size_t{64} << 20;  // of columns that are transformed through memory at a time
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
/// S is what queries, keys, values and y are stored as. float is computed with as float; half and bfloat16 on tensor
/// cores where the engine takes them, to bfloat16's precision (product.cuh), else as float. A plan belongs to the
/// device that was current when it was made. One call at a time uses the plan's own workspace; calls with workspaces of
/// their own may run at once.
template <Storage S>
class AttentionPlan {
 public:
  using View = DeviceMatrixView<const S>;

  /// Waits until what it sends to the device has arrived. Throws InvalidArgument for sizes that do not fit,
  /// BackendError where there is no device of compute capability 7.0 or newer, or not enough memory.
  AttentionPlan(AttentionModel model, const PlanShape& shape, const PlanOptions& options = {},
                cudaStream_t stream = nullptr)
      : m_device(Device::current()),
        m_model(std::move(model), shape, options.gradients, stream),
        m_engine(options.engine == Engine::automatic ? cheapest() : options.engine),
        m_product(m_device, m_engine,
                  {m_model.z(), m_model.heads(), m_model.n_q(), m_model.n_k(), m_model.r(), m_model.d_v()},
                  m_model.toeplitz(), options.slab_bytes) {
    if (options.gradients) m_backward.emplace(m_device, m_engine, m_model, options.slab_bytes);
    require(FeatureShape::shared(m_model.d_padded()) <= m_device.shared_bytes, "input_dim: expected what fits ",
            m_device.shared_bytes, " bytes of shared memory, got ", m_model.d());
    allow_features<S, float>(m_model.d_padded());
    allow_features<S, OnTensorCores>(m_model.d_padded());
    queue_spectra(stream);
    check(cudaStreamSynchronize(stream), "transforming the weights");
    Scratch count;
    take(count);
    m_bytes = count.bytes();
    if (options.owns_workspace) m_workspace = DeviceMemory(m_bytes);
  }

  const AttentionModel& model() const { return m_model.model(); }
  const PlanShape& shape() const { return m_model.shape(); }
  Engine engine() const { return m_engine; }

  /// Scratch memory of a call.
  std::size_t workspace_bytes() const { return m_bytes; }

  /// The positions' parameters from here on, [position, parameter] on the device: those of a training step, say. The
  /// weights are computed in the stream, not while calls run in others. Throws InvalidArgument for a null pointer.
  void set_parameters(const float* parameters, cudaStream_t stream) {
    check_device();
    m_model.queue_parameters(parameters, stream);
    queue_spectra(stream);
  }

  /// q [batch, heads, n_q, d], k [.., n_k, d], v [.., n_k, d_v] -> y [.., n_q, d_v]. A row that sees no key is zero.
  /// Throws InvalidArgument for views that do not have these shapes, BackendError for what CUDA refuses: a stream of
  /// another device, say.
  void forward(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y, const PlanCall& call,
               cudaStream_t stream) const {
    check_device();
    const auto& [batch, heads, n_q, n_k, d_v, offset] = shape();
    check_inputs(q, k, v);
    check_output(y, "y", batch, heads, n_q, d_v);
    const Arrays arrays = arrays_of(call);
    if (m_product.on_tensor_cores())
      queue_product<OnTensorCores>(q, k, v, call, arrays, stream);
    else
      queue_product<float>(q, k, v, call, arrays, stream);
    queue_finish(FinishTask<S>{arrays.product.sums, y, arrays.counts}, stream);
  }
  void forward(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y,
               cudaStream_t stream = nullptr) const {
    forward(q, k, v, y, {}, stream);
  }

  /// The gradients of L for dy [.., n_q, d_v] = dL/dy, from the same inputs; of forward's results it needs none. Rows
  /// that see no key, and keys that are padding, have none. Throws as forward does, and InvalidArgument for a plan
  /// without gradients.
  void backward(const View& q, const View& k, const View& v, const View& dy, const PlanGradients<S>& gradients,
                const PlanCall& call, cudaStream_t stream) const {
    check_device();
    require(m_backward.has_value(), "gradients: expected a plan with them (PlanOptions), got one without");
    const auto& [batch, heads, n_q, n_k, d_v, offset] = shape();
    check_inputs(q, k, v);
    check_matrix(dy, "dy", batch, heads, n_q, d_v);
    check_output(gradients.dq, "dq", batch, heads, n_q, m_model.d());
    check_output(gradients.dk, "dk", batch, heads, n_k, m_model.d());
    check_output(gradients.dv, "dv", batch, heads, n_k, d_v);
    m_backward->queue(m_model, q, k, v, dy, call.key_mask, gradients, arrays_of(call).backward, stream);
  }

  /// What the last call with this workspace did, on the device.
  const Counts* counts(const PlanCall& call = {}) const { return arrays_of(call).counts; }

 private:
  // features on tensor cores, of what is stored in half the bits
  using OnTensorCores = std::conditional_t<std::is_same_v<S, float>, float, __nv_bfloat16>;

  // a call's scratch memory
  struct Arrays {
    std::byte *phi_q, *phi_k;  // as the product wants them
    int* tops;                 // [z]
    typename Product<S>::Arrays product;
    typename Backward<S>::Arrays backward;
    Counts* counts;
  };

  // features of queries and keys, and their product
  template <class Feature>
  void queue_product(const View& q, const View& k, const View& v, const PlanCall& call, const Arrays& arrays,
                     cudaStream_t stream) const {
    const int n_q = m_model.n_q(), n_k = m_model.n_k(), z = m_model.z();
    Feature *phi_q = reinterpret_cast<Feature*>(arrays.phi_q), *phi_k = reinterpret_cast<Feature*>(arrays.phi_k);
    queue_features(m_model.features<S>(q, true, nullptr, nullptr, phi_q, m_product.stride(n_q)),
                   m_model.features<S>(k, false, call.key_mask, arrays.tops, phi_k, m_product.stride(n_k)), z, stream);
    m_product.queue(phi_q, phi_k, Columns<S>{Operand<S>(v), call.key_mask}, arrays.product, stream);
  }

  // by flops and bytes: tiles and transforms in shared memory at 30 TFLOP/s, tiles on tensor cores at 300; at 3 TB/s
  // transforms in two passes, 40 bytes a point of 2 N, and slabs that pass through memory ten times. No transforms
  // whose rounding may drown rows
  Engine cheapest() const {
    const double n_q = m_model.n_q(), n_k = m_model.n_k(), r = m_model.r(), columns = m_model.d_v() + 1;
    const double band = std::min<double>(n_k, m_model.band().last - m_model.band().first + 1 + 3 * TileShape::tile);
    constexpr double flops = 30e12, bytes = 3e12;
    const double by_tiles = Product<S>::takes_tensor_cores(m_device, Engine::direct) ? 300e12 : flops;
    const double direct = 2 * n_q * n_k * (r + columns) / by_tiles;
    const double banded = (2 * n_q * band * (r + columns) + 4 * (n_q + n_k) * r * columns) / by_tiles;
    if (model().direction == Direction::causal || m_model.bias_spread() > 8)
      return banded <= direct ? Engine::banded : Engine::direct;
    const int n = std::max(m_model.n_q(), m_model.n_k());
    const double products = r * (columns / 2), cufft = 10 * 8 * (n_q + n_k) * products / bytes;
    const FusedVariant* in_shared = FusedEngine::variant_for(m_device, n);
    const LongVariant* in_passes = LongEngine::variant_for(n);
    const double N = in_shared ? in_shared->N() : in_passes ? in_passes->N() : 0;
    const double fused = in_shared   ? 20 * N * std::log2(N) * products / flops
                         : in_passes ? 40 * 2 * N * products / bytes
                                     : std::numeric_limits<double>::infinity();
    const double transforms = std::min(fused, cufft);
    if (banded <= std::min(direct, transforms)) return Engine::banded;
    return direct <= transforms ? Engine::direct : fused <= cufft ? Engine::fused : Engine::cufft;
  }

  void check_inputs(const View& q, const View& k, const View& v) const {
    const auto& [batch, heads, n_q, n_k, d_v, offset] = shape();
    check_matrix(q, "q", batch, heads, n_q, m_model.d());
    check_matrix(k, "k", batch, heads, n_k, m_model.d());
    check_matrix(v, "v", batch, heads, n_k, d_v);
  }

  void queue_spectra(cudaStream_t stream) const {
    m_product.queue_spectrum(stream);
    if (m_backward) m_backward->queue_spectrum(stream);
  }

  void check_device() const {
    int current = 0;
    check(cudaGetDevice(&current), "asking for the current device");
    require(current == m_device.number, "device: expected ", m_device.number,
            ", which was current when the plan was made, got ", current);
  }

  Arrays take(Scratch& scratch) const {
    Arrays arrays{};
    arrays.counts = scratch.take<Counts>(1);
    const auto forward = [&](Scratch& own) {
      arrays.phi_q = m_product.take_features(own, m_model.n_q());
      arrays.phi_k = m_product.take_features(own, m_model.n_k());
      arrays.tops = own.take<int>(m_model.needs_tops() ? static_cast<std::size_t>(m_model.z()) : 0);
      arrays.product = m_product.take(own);
    };
    const auto backward = [&](Scratch& own) {
      if (m_backward) arrays.backward = m_backward->take(m_model, own);
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
  std::optional<Backward<S>> m_backward;
  DeviceMemory m_workspace;
  std::size_t m_bytes = 0;
};

}  // namespace nprf::cuda
