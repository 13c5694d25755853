// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>

#include "nprf/cuda/certificates.cuh"
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
/// and those of the lags. About four times forward's time, which it repeats, and where transforms are taken twice as
/// much again for the gradients of parameters. Rounding of transforms is relative to the largest gradients of a head;
/// Y itself is held to the tolerance as forward's is.
template <Storage S>
class Backward {
 public:
  /// `forward` is the plan's own product, which is repeated; calls get the same.
  Backward(const Device& device, Engine engine, const DeviceModel& model, const Product<S>& forward,
           std::size_t slab_bytes)
      : m_has_tiles(engine == Engine::direct || engine == Engine::banded),
        m_dA(device, engine, {model.z(), model.heads(), model.n_q(), model.n_k(), model.d_v() + 1, model.r()},
             model.toeplitz(), slab_bytes),
        m_dB(device, engine, {model.z(), model.heads(), model.n_k(), model.n_q(), model.d_v() + 1, model.r()},
             model.toeplitz().transposed(), slab_bytes),
        m_dU(device, engine, {model.z(), model.heads(), model.n_k(), model.n_q(), model.r(), model.d_v()},
             model.toeplitz().transposed(), slab_bytes) {
    if (forward.on_tensor_cores())
      m_in_float.emplace(device, engine, forward.shape(), forward.weights(), slab_bytes, false);
    const std::size_t shared = FeatureGradientShape::shared(model.d_padded());
    require(shared <= device.shared_bytes, "input_dim: expected what fits ", device.shared_bytes,
            " bytes of shared memory with gradients, got ", model.d());
    const auto& [c, band, positions] = model.toeplitz();
    if (!m_has_tiles)
      m_correlation =
          CorrelationEngine(model.n_q(), model.n_k(), model.r(), model.d_v(), model.z(), positions, c, slab_bytes);
    else
      m_lags = LagGradients(device, model.z(), positions, model.n_q(), model.n_k(),
                            engine == Engine::banded ? band : Band{c.first, c.first + c.size - 1}, c);
  }

  /// To be called when the weights have changed.
  void queue_weights(cudaStream_t stream) const {
    m_dA.queue_spectrum(stream);
    m_dB.queue_spectrum(stream);
    m_dU.queue_spectrum(stream);
  }

  /// Scratch memory of a call.
  struct Arrays {
    float *phi_q, *phi_k;  // [z, r, stride(n_q)] [z, r, stride(n_k)]
    int *tops, *rows;      // [z] [z, n_q]
    float *G, *U;          // [z, p + 1, stride(n_q)] [z, p + 1, stride(n_k)]
    float* db;             // [position, lags]
    typename Product<S>::Arrays Y;
    typename Certificates<S>::Arrays certificates;
    LagGradients::Arrays lags;
    CorrelationEngine::Arrays correlation;
    Product<float>::Arrays dA, dB, dU;
  };
  Arrays take(const DeviceModel& model, const Product<S>& forward, const Certificates<S>& certificates,
              Scratch& scratch) const {
    const Product<S>& Y = in_float(forward);
    const int z = model.z(), r = model.r(), p = model.d_v(), tokens_q = Y.stride(model.n_q()),
              tokens_k = Y.stride(model.n_k());
    Arrays arrays{};
    arrays.phi_q = scratch.take<float>(z, r, tokens_q);
    arrays.phi_k = scratch.take<float>(z, r, tokens_k);
    arrays.tops = scratch.take<int>(model.needs_tops() ? z : 0);
    arrays.rows = scratch.take<int>(z, model.n_q());
    const Counters counters = Counters::take(scratch, z);
    arrays.G = scratch.take<float>(z, p + 1, tokens_q);
    arrays.U = scratch.take<float>(z, p + 1, tokens_k);
    arrays.db = scratch.take<float>(model.positions(), model.weights().size);
    scratch.overlap(
        [&](Scratch& own) {
          arrays.Y = Y.take(own);
          arrays.certificates = certificates.take(own, arrays.rows, counters);
          if (m_has_tiles)
            arrays.lags = m_lags.take(own);
          else
            arrays.correlation = m_correlation.take(own);
        },
        [&](Scratch& own) { arrays.dA = m_dA.take(own); }, [&](Scratch& own) { arrays.dB = m_dB.take(own); },
        [&](Scratch& own) { arrays.dU = m_dU.take(own); });
    return arrays;
  }

  /// Queues all gradients.
  void queue(const DeviceModel& model, const Product<S>& forward, const Certificates<S>& certificates,
             const DeviceMatrixView<const S>& q, const DeviceMatrixView<const S>& k, const DeviceMatrixView<const S>& v,
             const DeviceMatrixView<const S>& dy, const bool* key_mask, const PlanGradients<S>& gradients,
             const Arrays& arrays, cudaStream_t stream) const {
    const Product<S>& Y = in_float(forward);
    const int n_q = model.n_q(), n_k = model.n_k(), z = model.z(), tokens_q = Y.stride(n_q), tokens_k = Y.stride(n_k);
    const auto& [phi_q, phi_k, tops, rows, G, U, db, product, certificate, lags, correlation, to_dA, to_dB, to_dU] =
        arrays;
    const FeatureTask<S> queries = model.features<S>(q, true, key_mask, nullptr, phi_q, tokens_q);
    const FeatureTask<S> keys = model.features<S>(k, false, key_mask, tops, phi_k, tokens_k);
    const Columns<S> V{Operand<S>(v), key_mask};
    const auto A = Y.operand(phi_q, n_q), B = Y.operand(phi_k, n_k);  // (n_q,r) (n_k,r)
    certificate.counters.queue_clear(z, stream);
    queue_features(queries, keys, z, stream);
    const CertifiedSums sums = certificates.queue(Y, phi_q, phi_k, V, product, certificate, stream);
    queue_gradient_columns(
        GradientColumnsTask<S>{Operand<S>(dy), sums, model.positive(), V, z, tokens_q, tokens_k, G, U}, stream);

    auto G_c = m_dA.operand(G, n_q), U_c = m_dA.operand(U, n_k);  // (n_q,p + 1) (n_k,p + 1)
    if (gradients.parameters && model.parameter_count() > 0) {
      if (m_has_tiles)
        m_lags.queue(A, B, G_c, U_c, product.before, product.after, db, lags, stream);
      else
        m_correlation.queue(A, B, G_c, U_c, db, correlation, stream);
      queue_parameter_gradients(model.parameter_gradients(db, gradients.parameters), model.positions(), stream);
    }

    m_dA.queue(G, U, {B, nullptr, nullptr, 0}, to_dA, stream);
    queue_feature_gradients(FeatureGradientTask<S>{queries, to_dA.sums, z, gradients.dq}, stream);
    m_dB.queue(U, G, {A, nullptr, nullptr, 0}, to_dB, stream);
    queue_feature_gradients(FeatureGradientTask<S>{keys, to_dB.sums, z, gradients.dk}, stream);
    G_c.channels = model.d_v();  // (n_q,p)
    m_dU.queue(phi_k, phi_q, {G_c, nullptr, nullptr, 0}, to_dU, stream);
    queue_store(StoreTask<S>{to_dU.sums, gradients.dv}, stream);
  }

 private:
  // features are float's here
  const Product<S>& in_float(const Product<S>& forward) const { return m_in_float ? *m_in_float : forward; }

  bool m_has_tiles;
  std::optional<Product<S>> m_in_float;
  Product<float> m_dA, m_dB, m_dU;
  LagGradients m_lags;
  CorrelationEngine m_correlation;
};

}  // namespace nprf::cuda
