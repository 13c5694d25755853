// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <optional>

#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/toeplitz/backward/tensor_gradients.cuh"
#include "nprf/cuda/toeplitz/product.cuh"

namespace nprf::cuda {

/// The products of the backward pass of Y = ((A B^T) o C) U, from G = dL/dY,
///
///     dA = ((G U^T) o C) B     dB = ((U G^T) o C^T) A     dU = ((B A^T) o C^T) G
///
/// They are computed in float by any engine, or on tensor cores (TensorGradients) from factors that are rounded to S.
/// Callers pass factors as float by channel: A [z, r, n_q], B [z / group_of_B, r, n_k], G [z, p + 1, n_q] and
/// U [z, p + 1, n_k]. The cost is that of three forward products.
template <Storage S>
class GradientProducts {
 public:
  /// `forward` is the forward product. With `on_tensor_cores`, its engine must be tiled, the position no grid, and the
  /// device must have instructions for S.
  GradientProducts(const Device& device, const Product<S>& forward, std::size_t slab_bytes, bool on_tensor_cores)
      : GradientProducts(device, forward.engine(), forward.shape(), forward.weights(), slab_bytes) {
    if (on_tensor_cores) m_tensor.emplace(device, forward.shape(), m_dA, m_dB, m_dU);
  }

  bool on_tensor_cores() const { return m_tensor.has_value(); }
  /// The products in float. Products on tensor cores have the same shapes and weights.
  const Product<float>& dA() const { return m_dA; }
  const Product<float>& dB() const { return m_dB; }
  const Product<float>& dU() const { return m_dU; }

  /// Must be called after the weights have changed.
  void queue_weights(cudaStream_t stream) const {
    for (const Product<float>* each : {&m_dA, &m_dB, &m_dU}) each->queue_weights(stream);
    if constexpr (!std::same_as<S, float>)
      if (m_tensor) m_tensor->queue_weights(stream);
  }

  /// Scratch memory of a call for the factors that are rounded to 16 bits. It is empty if the products are computed in
  /// float.
  using Rows = typename TensorGradients<S>::Rows;
  Rows take_rows(Scratch& scratch) const { return m_tensor ? m_tensor->take_rows(scratch) : Rows{}; }

  /// Scratch memory of one of the three products, and its result, `sums`.
  struct Arrays {
    Sums sums;
    Product<float>::Arrays in_float;
    typename TensorGradients<S>::Arrays tensor;
  };
  Arrays take_dA(Scratch& scratch) const { return m_tensor ? of(m_tensor->take_dA(scratch)) : of(m_dA.take(scratch)); }
  /// If the products are computed in float, the arrays have room for `extra_parts` additional parts of the sums.
  Arrays take_dB(Scratch& scratch, int extra_parts) const {
    return m_tensor ? of(m_tensor->take_dB(scratch)) : of(m_dB.take(scratch, extra_parts));
  }
  Arrays take_dU(Scratch& scratch, int extra_parts) const {
    return m_tensor ? of(m_tensor->take_dU(scratch)) : of(m_dU.take(scratch, extra_parts));
  }

  /// Queue the rounding of A and B, or of G and U, to `rows`. They do nothing if the products are computed in float.
  void queue_features(const float* A, const float* B, const Rows& rows, cudaStream_t stream) const {
    if constexpr (!std::same_as<S, float>)
      if (m_tensor) m_tensor->queue_features(A, B, rows, stream);
  }
  void queue_columns(const float* G, const float* U, const Rows& rows, cudaStream_t stream) const {
    if constexpr (!std::same_as<S, float>)
      if (m_tensor) m_tensor->queue_columns(G, U, rows, stream);
  }

  /// Queue the computation of arrays.sums. In float the first two arguments are the factors of the weights, by channel,
  /// and the third has the columns that are summed. On tensor cores all factors are read from `rows` instead.
  void queue_dA(const float* G, const float* U, const Columns<float>& B, const Rows& rows, const Arrays& arrays,
                cudaStream_t stream) const {
    if constexpr (!std::same_as<S, float>)
      if (m_tensor) return m_tensor->queue_dA(rows, arrays.tensor, stream);
    m_dA.queue(G, U, B, arrays.in_float, stream);
  }
  void queue_dB(const float* U, const float* G, const Columns<float>& A, const Rows& rows, const Arrays& arrays,
                cudaStream_t stream) const {
    if constexpr (!std::same_as<S, float>)
      if (m_tensor) return m_tensor->queue_dB(rows, arrays.tensor, stream);
    m_dB.queue(U, G, A, arrays.in_float, stream);
  }
  void queue_dU(const float* B, const float* A, const Columns<float>& G, const Rows& rows, const Arrays& arrays,
                cudaStream_t stream) const {
    if constexpr (!std::same_as<S, float>)
      if (m_tensor) return m_tensor->queue_dU(rows, arrays.tensor, stream);
    m_dU.queue(B, A, G, arrays.in_float, stream);
  }

 private:
  GradientProducts(const Device& device, Engine engine, const ProductShape& forward, const ToeplitzWeights& weights,
                   std::size_t slab_bytes)
      : m_dA(device, engine, {forward.z, forward.heads, forward.n_q, forward.n_k, forward.p + 1, forward.r}, weights,
             slab_bytes),
        m_dB(device, engine, {forward.z, forward.heads, forward.n_k, forward.n_q, forward.p + 1, forward.r},
             weights.transposed(), slab_bytes),
        m_dU(device, engine,
             {forward.z, forward.heads, forward.n_k, forward.n_q, forward.r, forward.p, forward.group_of_B, 1},
             weights.transposed(), slab_bytes) {}

  static Arrays of(const Product<float>::Arrays& arrays) { return {arrays.sums, arrays, {}}; }
  static Arrays of(const typename TensorGradients<S>::Arrays& arrays)
    requires(!std::same_as<S, float>)
  {
    return {arrays.sums, {}, arrays};
  }

  Product<float> m_dA, m_dB, m_dU;
  std::optional<TensorGradients<S>> m_tensor;
};

}  // namespace nprf::cuda
