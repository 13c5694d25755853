// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/correlation.cuh"
#include "nprf/cuda/device_matrix.hpp"
#include "nprf/cuda/device_model.cuh"
#include "nprf/cuda/feature_gradients.cuh"
#include "nprf/cuda/gradients.cuh"
#include "nprf/cuda/lag_gradients.cuh"
#include "nprf/cuda/parameter_gradients.cuh"
#include "nprf/cuda/product.cuh"
#include "nprf/cuda/runtime.hpp"
#include "nprf/cuda/scratch.hpp"

namespace nprf::cuda {

/// Where a plan writes gradients.
template <Storage S>
struct PlanGradients {
  DeviceMatrixView<S> dq, dk, dv;  // of the shapes of q, k and v
  float* parameters = nullptr;  // [position, parameter], summed over the batch, and over heads that share one; or null
};

/// The gradients of y = N / D, where [N D] = Y = ((A B^T) o C) U, U = [V 1], from G = dL/dY: three more products with
/// the same weights, by the same engine,
///
///     dA = ((G U^T) o C) B     dB = ((U G^T) o C^T) A     dU = ((B A^T) o C^T) G
///
/// and those of the lags. About four times forward's time, which it repeats.
template <Storage S>
class Backward {
 public:
  Backward(const Device& device, Engine engine, const DeviceModel& model, std::size_t slab_bytes)
      : m_engine(engine),
        m_dA(device, engine, {model.z(), model.heads(), model.n_q(), model.n_k(), model.d_v() + 1, model.r()},
             model.toeplitz(), slab_bytes),
        m_dB(device, engine, {model.z(), model.heads(), model.n_k(), model.n_q(), model.d_v() + 1, model.r()},
             model.toeplitz().transposed(), slab_bytes),
        m_dU(device, engine, {model.z(), model.heads(), model.n_k(), model.n_q(), model.r(), model.d_v()},
             model.toeplitz().transposed(), slab_bytes) {
    const std::size_t shared = FeatureGradientShape::shared(model.d_padded());
    require(shared <= device.shared_bytes, "input_dim: expected what fits ", device.shared_bytes,
            " bytes of shared memory with gradients, got ", model.d());
    allow_shared(feature_gradients_for<S>(model.d()), shared);
    const auto& [c, band, positions] = model.toeplitz();
    if (!has_tiles())
      m_correlation =
          CorrelationEngine(model.n_q(), model.n_k(), model.r(), model.d_v(), model.z(), positions, c, slab_bytes);
    else
      m_lags = LagGradients(device, model.z(), positions, model.n_q(), model.n_k(),
                            engine == Engine::banded ? band : Band{c.first, c.first + c.size - 1}, c);
  }

  /// To be called when the weights have changed.
  void queue_spectrum(cudaStream_t stream) const {
    m_dA.queue_spectrum(stream);
    m_dB.queue_spectrum(stream);
    m_dU.queue_spectrum(stream);
  }

  /// Scratch memory of a call.
  struct Arrays {
    float *G, *U;  // [z, p + 1, stride(n_q)] [z, p + 1, stride(n_k)]
    float* db;     // [position, lags]
    LagGradients::Arrays lags;
    CorrelationEngine::Arrays correlation;
    Product<float>::Arrays dA, dB, dU;
  };
  /// `forward` takes what the forward product needs.
  template <class Forward>
  Arrays take(const DeviceModel& model, Scratch& scratch, Forward&& forward) const {
    const auto size = [](auto... sizes) { return (static_cast<std::size_t>(sizes) * ... * 1); };
    Arrays arrays{};
    arrays.G = scratch.take<float>(size(model.z(), model.d_v() + 1, m_dA.stride(model.n_q())));
    arrays.U = scratch.take<float>(size(model.z(), model.d_v() + 1, m_dA.stride(model.n_k())));
    arrays.db = scratch.take<float>(size(model.positions(), model.weights().size));
    scratch.overlap(
        [&](Scratch& own) {
          forward(own);
          if (has_tiles())
            arrays.lags = m_lags.take(own);
          else
            arrays.correlation = m_correlation.take(own);
        },
        [&](Scratch& own) { arrays.dA = m_dA.take(own); }, [&](Scratch& own) { arrays.dB = m_dB.take(own); },
        [&](Scratch& own) { arrays.dU = m_dU.take(own); });
    return arrays;
  }

  /// Queues all gradients, behind the features of queries and keys and the forward product.
  void queue(const DeviceModel& model, const FeatureTask<S>& queries, const FeatureTask<S>& keys, const Columns<S>& V,
             const DeviceMatrixView<const S>& dy, const typename Product<S>::Arrays& forward,
             const PlanGradients<S>& gradients, const Arrays& arrays, cudaStream_t stream) const {
    const int n_q = model.n_q(), n_k = model.n_k();
    const float *phi_q = queries.phi, *phi_k = keys.phi, *G = arrays.G, *U = arrays.U;
    queue_gradient_columns(GradientColumnsTask<S>{Operand<S>(dy), forward.sums, V, model.z(), m_dA.stride(n_q),
                                                  m_dA.stride(n_k), arrays.G, arrays.U},
                           stream);
    const auto A = m_dU.operand(phi_q, n_q), B = m_dU.operand(phi_k, n_k);          // (n_q,r) (n_k,r)
    const auto G_columns = m_dA.operand(G, n_q), U_columns = m_dA.operand(U, n_k);  // (n_q,p + 1) (n_k,p + 1)
    if (gradients.parameters && model.parameter_count() > 0) {
      if (has_tiles())
        m_lags.queue(A, B, G_columns, U_columns, forward.before, forward.after, arrays.db, arrays.lags, stream);
      else
        m_correlation.queue(A, B, G_columns, U_columns, arrays.db, arrays.correlation, stream);
      queue_parameter_gradients(model.parameter_gradients(arrays.db, gradients.parameters), model.positions(), stream);
    }

    m_dA.queue(G, U, {B, nullptr, 0}, arrays.dA, stream);
    queue_feature_gradients(FeatureGradientTask<S>{queries, arrays.dA.sums, model.z(), gradients.dq}, stream);
    m_dB.queue(U, G, {A, nullptr, 0}, arrays.dB, stream);
    queue_feature_gradients(FeatureGradientTask<S>{keys, arrays.dB.sums, model.z(), gradients.dk}, stream);
    auto values = G_columns;
    values.channels = model.d_v();  // (n_q,p)
    m_dU.queue(phi_k, phi_q, {values, nullptr, 0}, arrays.dU, stream);
    queue_store(StoreTask<S>{arrays.dU.sums, gradients.dv}, stream);
  }

 private:
  bool has_tiles() const { return m_engine == Engine::direct || m_engine == Engine::banded; }

  Engine m_engine;
  Product<float> m_dA, m_dB, m_dU;
  LagGradients m_lags;
  CorrelationEngine m_correlation;
};

}  // namespace nprf::cuda
