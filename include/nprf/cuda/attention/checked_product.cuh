// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/attention/normalize.cuh"
#include "nprf/cuda/attention/recompute_tiled.cuh"
#include "nprf/cuda/error_bound/fft_row_bound.cuh"
#include "nprf/cuda/toeplitz/product.cuh"

namespace nprf::cuda {

/// Keeps the rows of a product by FFT within a tolerance. It finds the rows that fail the error bound
/// (error_bound/fft_row_bound.cuh), and recomputes them by tiles (attention/recompute_tiled.cuh). It does nothing for
/// products without an FFT. If no row fails, it costs one more pass over A, B and V.
template <Storage S>
class CheckedProduct {
 public:
  /// `length` is the length of the FFT, or 0 if the product has no FFT. Throws BackendError if CUDA reports an error.
  CheckedProduct(const Device& device, const ProductShape& shape, const ToeplitzWeights& weights, int length,
                 bool positive, double tolerance)
      : m_shape(shape),
        m_weights(weights),
        m_length(length),
        m_positive(positive),
        m_tolerance(static_cast<float>(tolerance)),
        m_blocks(2 * device.multiprocessors) {
    if (!uses_fft()) return;
    m_parts = parts_of_keys(device, TileShape::tiles(shape.n_q), shape.n_k, shape.p, shape.z);
    m_norms = DeviceMemory(sizeof(WeightNorms) * static_cast<std::size_t>(weights.positions));
  }

  /// Must be called after the weights have changed, with the biases that they are computed from.
  void queue_weights(const DeviceBias& bias, cudaStream_t stream) const {
    if (uses_fft()) queue_weight_norms({m_weights.c, norms(), bias}, m_weights.positions, stream);
  }

  /// Scratch memory of a call.
  struct Arrays {
    SignalNorms signals;
    float* feature_errors;  // [z, 2, r]
    Sums extra;             // of recomputed rows, parts after the first one
    bool* recomputed;       // [z, n_q]: which rows are recomputed
    RowList failed_rows;    // the same rows as a list
    Counters counters;
  };
  /// Takes the arrays of a call. With an FFT, queue() or queue_bounds() sets `recomputed` [z, n_q], and appends to the
  /// lists `rows` [z, n_q].
  Arrays take(Scratch& scratch, bool* recomputed, int* rows, const Counters& counters) const {
    Arrays arrays{};
    arrays.recomputed = recomputed;
    arrays.counters = counters;
    arrays.failed_rows = {rows, counters.failed_rows, m_shape.n_q};
    if (!uses_fft()) return arrays;
    const auto [z, heads, n_q, n_k, r, p, group_of_A, group_of_B] = m_shape;
    const std::size_t of_part = static_cast<std::size_t>(z) * static_cast<std::size_t>(n_q);
    arrays.signals = SignalNorms::take(scratch, z, n_k, r, counters.largest);
    arrays.feature_errors = scratch.take<float>(z, 2, r);
    const std::size_t more = of_part * static_cast<std::size_t>(m_parts - 1);
    float* N = scratch.take<float>(more * static_cast<std::size_t>(p));
    arrays.extra = {N, scratch.take<float>(more), m_parts - 1, p, static_cast<std::ptrdiff_t>(z) * n_q};
    return arrays;
  }

  /// Queues the product of the features A and B in the layout of Product::operand_A() and operand_B(), the checks of
  /// its rows and their recomputation.
  CheckedSums queue(const Product<S>& product, const float* A, const float* B, Columns<S> U,
                    const typename Product<S>::Arrays& sums, const Arrays& arrays, cudaStream_t stream) const {
    U = queue_product(product, A, B, U, sums, arrays, stream);
    if (!uses_fft()) return {sums.sums};
    queue_bounds(product, A, sums, arrays, stream);
    DeviceWeights c = m_weights.c;
    c.pairs = DeviceWeights::Pairs::in_slots;  // the border is another part of the sums
    queue_recompute_tiled(RecomputeTiledTask<S>{{product.operand_A(A), product.operand_B(B), U, c},
                                                arrays.failed_rows,
                                                m_parts,
                                                sums.sums.N,
                                                sums.sums.D,
                                                arrays.extra.N,
                                                arrays.extra.D},
                          m_shape.z, m_blocks, stream);
    return {sums.sums, arrays.recomputed, arrays.extra, U.largest};
  }

  /// The first part of queue(): queues the product. Returns U with the scale of its values.
  Columns<S> queue_product(const Product<S>& product, const float* A, const float* B, Columns<S> U,
                           const typename Product<S>::Arrays& sums, const Arrays& arrays, cudaStream_t stream) const {
    if (uses_fft()) {
      queue_signal_norms(SignalTask<S>{product.operand_B(B), U, arrays.signals}, m_shape.z, stream);
      U.largest = arrays.counters.largest;  // scales the values to at most 1
    }
    product.queue(A, B, U, sums, stream);
    return U;
  }
  /// The second part of queue(): queues the checks, which set arrays.recomputed and failed_rows. Does nothing without
  /// an FFT. The third part, the recomputation, is in queue() alone.
  void queue_bounds(const Product<S>& product, const float* A, const typename Product<S>::Arrays& sums,
                    const Arrays& arrays, cudaStream_t stream) const {
    if (!uses_fft()) return;
    const auto [N, D, parts, p, rows] = sums.sums;
    const float *N_border = parts > 1 ? N + rows * p : nullptr, *D_border = parts > 1 ? D + rows : nullptr;
    DeviceWeights c = m_weights.c;
    c.pairs = DeviceWeights::Pairs::in_slots;  // the border is another part of the sums
    queue_row_bounds({product.operand_A(A), N, D, N_border, D_border, norms(), m_weights.positions, c.first_lag(),
                      c.places, arrays.signals, arrays.feature_errors, m_length, p, m_positive, m_tolerance,
                      arrays.recomputed, arrays.failed_rows, arrays.counters.counts},
                     m_shape.z, stream);
  }

  bool uses_fft() const { return m_length > 0; }

 private:
  WeightNorms* norms() const { return static_cast<WeightNorms*>(m_norms.data()); }

  ProductShape m_shape;
  ToeplitzWeights m_weights;
  int m_length;
  bool m_positive;
  float m_tolerance;
  int m_blocks, m_parts = 1;
  DeviceMemory m_norms;  // [position]
};

}  // namespace nprf::cuda
