// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "nprf/cuda/certificates.cuh"
#include "nprf/cuda/counts.cuh"
#include "nprf/cuda/device_matrix.hpp"
#include "nprf/cuda/device_model.cuh"
#include "nprf/cuda/features.cuh"
#include "nprf/cuda/finish.cuh"
#include "nprf/cuda/product.cuh"
#include "nprf/cuda/rescue.cuh"
#include "nprf/cuda/runtime.hpp"
#include "nprf/cuda/scratch.hpp"
#include "nprf/fft/length.hpp"

namespace nprf::cuda {

/// How a plan works.
struct PlanOptions {
  Engine engine = Engine::automatic;
  bool owns_workspace = true;                      // false: each call brings its own
  std::size_t slab_bytes = std::size_t{64} << 20;  // of columns that Engine::cufft transforms at a time
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
///
/// Where the rounding of transforms may put a row of y farther off than half the tolerance, relative to the largest |v|
/// that the row sees, that row is computed again by tiles; infinity leaves them all. By any engine, rows whose
/// denominator underflows are computed from the logarithms of their features, if those are exponentials. A NaN or an
/// infinity in a query is its own row's; in a key or a value it touches the rows that see it, and no other.
///
/// S is what queries, keys, values and y are stored as. A plan belongs to the device that was current when it was made.
/// One call at a time uses the plan's own workspace; calls with workspaces of their own may run at once.
template <Storage S>
class AttentionPlan {
 public:
  using View = DeviceMatrixView<const S>;

  /// Waits until what it sends to the device has arrived. Throws InvalidArgument for sizes that do not fit,
  /// BackendError where there is no device of compute capability 7.0 or newer, or not enough memory.
  AttentionPlan(AttentionModel model, const PlanShape& shape, const PlanOptions& options = {},
                cudaStream_t stream = nullptr)
      : m_device(Device::current()),
        m_model(std::move(model), shape, stream),
        m_engine(options.engine == Engine::automatic ? cheapest(options.tolerance) : options.engine),
        m_product(m_device, m_engine,
                  {m_model.z(), m_model.heads(), m_model.n_q(), m_model.n_k(), m_model.r(), m_model.d_v()},
                  {m_model.weights(), m_model.band(), m_model.positions()}, options.slab_bytes),
        m_certificates(m_device, m_product.shape(), m_product.weights(), m_product.length(), m_model.positive(),
                       options.tolerance) {
    require(options.tolerance >= 0, "tolerance: expected 0 or more, got ", options.tolerance);
    const std::size_t shared = m_model.exponential() ? RescueShape::shared(m_model.d_padded(), m_model.m())
                                                     : FeatureShape::shared(m_model.d_padded());
    require(shared <= m_device.shared_bytes, "input_dim and num_features: expected what fits ", m_device.shared_bytes,
            " bytes of shared memory, got ", m_model.d(), " and ", m_model.m());
    allow_features<S>(m_model.d_padded());
    if (m_model.exponential()) allow_shared(rescue_kernel<S>, shared);
    queue_weights(stream);
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
    queue_weights(stream);
  }

  /// q [batch, heads, n_q, d], k [.., n_k, d], v [.., n_k, d_v] -> y [.., n_q, d_v]. A row that sees no key is zero.
  /// Throws InvalidArgument for views that do not have these shapes, BackendError for what CUDA refuses: a stream of
  /// another device, say.
  void forward(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y, const PlanCall& call,
               cudaStream_t stream) const {
    check_device();
    const auto& [batch, heads, n_q, n_k, d_v, offset] = shape();
    check_matrix(q, "q", batch, heads, n_q, m_model.d());
    check_matrix(k, "k", batch, heads, n_k, m_model.d());
    check_matrix(v, "v", batch, heads, n_k, d_v);
    check_matrix(y, "y", batch, heads, n_q, d_v);
    const Arrays arrays = arrays_of(call);
    arrays.certificates.counters.queue_clear(m_model.z(), stream);
    const FeatureTask<S> queries =
        m_model.features<S>(q, true, nullptr, nullptr, arrays.phi_q, m_product.stride(m_model.n_q()));
    const FeatureTask<S> keys =
        m_model.features<S>(k, false, call.key_mask, arrays.tops, arrays.phi_k, m_product.stride(m_model.n_k()));
    queue_features(queries, m_model.z(), stream);
    queue_features(keys, m_model.z(), stream);
    queue_rows(queries, keys, Columns<S>{Operand<S>(v), call.key_mask}, y, arrays, stream);
  }
  void forward(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y,
               cudaStream_t stream = nullptr) const {
    forward(q, k, v, y, {}, stream);
  }

  /// What the last call with this workspace did, on the device.
  const Counts* counts(const PlanCall& call = {}) const { return arrays_of(call).certificates.counters.counts; }

 private:
  // a call's scratch memory
  struct Arrays {
    float *phi_q, *phi_k;  // [z, r, stride(n_q)] [z, r, stride(n_k)]
    int* tops;             // [z]
    int* rows;             // [z, n_q]: to be computed again
    typename Product<S>::Arrays product;
    typename Certificates<S>::Arrays certificates;
  };

  // rows of y from features: by the engine, where that drowns them by tiles, and where they underflow by logarithms
  void queue_rows(const FeatureTask<S>& queries, const FeatureTask<S>& keys, const Columns<S>& U,
                  const DeviceMatrixView<S>& y, const Arrays& arrays, cudaStream_t stream) const {
    const int z = m_model.z(), n_q = m_model.n_q();
    const Counters& counters = arrays.certificates.counters;
    const RowList lost{m_model.exponential() ? arrays.rows : nullptr, counters.lost, n_q};
    const auto A = m_product.operand(queries.phi, n_q), B = m_product.operand(keys.phi, m_model.n_k());
    const Columns<S> near_one = m_certificates.queue_norms(B, U, arrays.certificates, stream);
    m_product.queue(queries.phi, keys.phi, near_one, arrays.product, stream);
    const Repaired repaired =
        m_certificates.queue_repair(A, B, near_one, arrays.product.sums, arrays.certificates, stream);
    queue_finish(FinishTask<S>{arrays.product.sums, repaired, near_one.largest, m_model.positive(), z, n_q,
                               m_model.d_v(), m_model.heads(), y, lost, counters.counts},
                 stream);
    if (lost.rows)
      queue_rescue(
          RescueTask<S>{queries, keys, U, m_model.bias(), m_model.weights().last_seen, lost, y, counters.counts}, z,
          2 * m_device.multiprocessors, stream);
  }

  // what follows from the weights of lags
  void queue_weights(cudaStream_t stream) const {
    m_product.queue_spectrum(stream);
    m_certificates.queue_weights(stream);
  }

  // by flops and bytes: tiles and transforms in shared memory at 30 TFLOP/s, slabs that pass through memory ten times
  // at 3 TB/s; and the rows that transforms would drown
  Engine cheapest(double tolerance) const {
    const int n_q = m_model.n_q(), n_k = m_model.n_k(), r = m_model.r(), columns = m_model.d_v() + 1;
    const double tokens = double(n_q) + n_k, pairs = double(n_q) * n_k, work = double(r) * columns;
    const double band = std::min<double>(n_k, m_model.band().last - m_model.band().first + 1 + 3 * TileShape::tile);
    constexpr double flops = 30e12, bytes = 3e12;
    const double seen = model().direction == Direction::causal ? 0.5 : 1;
    const double direct = seen * 2 * pairs * (r + columns) / flops;
    const double banded = (2 * n_q * band * (r + columns) + 4 * tokens * work) / flops;
    const FusedVariant* variant = FusedEngine::variant_for(m_device, std::max(n_q, n_k));
    const double N = variant ? variant->N() : 0;
    double transforms = variant ? 20 * N * std::log2(N) * work / 2 / flops : 10 * 8 * tokens * work / 2 / bytes;
    if (transforms < std::min(direct, banded)) {
      const int length = variant ? 2 * variant->N() : nprf::fft::smooth_length(n_q + n_k - 1);
      double drowned = 0;
      for (const PositionModel& one : model().positions)
        drowned += drowned_share(m_model.weights_of(one), n_q, n_k, length, tolerance) / m_model.positions();
      transforms += drowned * direct;
    }
    if (banded <= std::min(direct, transforms)) return Engine::banded;
    return direct <= transforms ? Engine::direct : variant ? Engine::fused : Engine::cufft;
  }

  void check_device() const {
    int current = 0;
    check(cudaGetDevice(&current), "asking for the current device");
    require(current == m_device.number, "device: expected ", m_device.number,
            ", which was current when the plan was made, got ", current);
  }

  Arrays take(Scratch& scratch) const {
    const auto size = [](auto... sizes) { return (static_cast<std::size_t>(sizes) * ... * 1); };
    const int z = m_model.z(), r = m_model.r();
    Arrays arrays{};
    arrays.phi_q = scratch.take<float>(size(z, r, m_product.stride(m_model.n_q())));
    arrays.phi_k = scratch.take<float>(size(z, r, m_product.stride(m_model.n_k())));
    arrays.tops = scratch.take<int>(m_model.needs_tops() ? size(z) : 0);
    arrays.rows = scratch.take<int>(size(z, m_model.n_q()));
    arrays.product = m_product.take(scratch);
    arrays.certificates = m_certificates.take(scratch, arrays.rows, Counters::take(scratch, z));
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
  DeviceMemory m_workspace;
  std::size_t m_bytes = 0;
};

}  // namespace nprf::cuda
