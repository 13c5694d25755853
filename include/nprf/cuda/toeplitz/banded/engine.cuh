// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/device/storage.cuh"
#include "nprf/cuda/toeplitz/banded/kernel.cuh"
#include "nprf/cuda/toeplitz/direct/engine.cuh"
#include "nprf/cuda/toeplitz/engine.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"

namespace nprf::cuda {

/// Engine::banded: tiles of a band of lags, and states of the keys before and after it.
template <Storage S>
class BandedEngine {
 public:
  static constexpr Engine name = Engine::banded;
  static constexpr bool is_tiled = true, supports_grid = false, has_states = true;

  static CallCost cost(const CostInputs& x) {
    const double z = x.shape.z, n_q = x.shape.n_q, n_k = x.shape.n_k, r = x.shape.r,
                 columns = static_cast<double>(x.shape.p) + 1;
    const Band& lags = x.weights.band;
    const double band = std::min<double>(n_k, lags.last - lags.first + 1 + 3 * TileShape::tile);
    const double sides = x.weights.tail_slope.is_zero() ? 1 : 2;  // with a slope each side has its own sums of chunks
    const double work = z * (2 * n_q * band * (r + columns) + sides * 4 * (n_q + n_k) * r * columns);
    if (x.on_tensor_cores) return {26e-6, 85e12, work};
    return {50e-6, 12.5e12, work};
  }

  explicit BandedEngine(const EngineInputs& x) : m_shape(x.shape), m_weights(x.weights), m_type(x.type) {
    const Band& band = m_weights.band;
    m_parts = parts_of_keys(x.device, tiles_of_queries(m_shape.n_q, m_type),
                            std::min(m_shape.n_k, band.last - band.first + 1 + queries_of_tile(m_type)), m_shape.p,
                            m_shape.z);
  }

  struct Arrays {
    float *before, *after;  // as in ChunkTask
  };
  Arrays take(Scratch& scratch) const {
    const int matrices = ChunkTask<S>::chunks_of(m_shape.n_k) + 1, features = m_shape.features(m_type);
    float* before = scratch.take<float>(m_shape.z, matrices, features, m_shape.p + 1);
    return {before, scratch.take<float>(m_shape.z, matrices, features, m_shape.p + 1)};
  }

  int parts() const { return parts_with_tails(m_weights.c, m_weights.tail_slope, m_parts); }

  template <class Feature>
  void queue(const TileTask<S, Feature>& task, const Sums& sums, const Arrays& arrays, cudaStream_t stream) const {
    queue_banded<S, Feature>({chunks(task, arrays), m_weights.band, m_parts, sums.N, sums.D}, m_shape.z, stream);
  }

  /// Queues the computation of the states alone.
  void queue_states(const TileTask<S>& task, const Arrays& arrays, cudaStream_t stream) const {
    if (m_shape.n_q == 0 || m_shape.z == 0) return;
    queue_chunks<S, float>(chunks(task, arrays), m_shape.z, stream);
  }

 private:
  template <class Feature>
  ChunkTask<S, Feature> chunks(const TileTask<S, Feature>& task, const Arrays& arrays) const {
    return {task, arrays.before, arrays.after, m_weights.tail_slope};
  }

  ProductShape m_shape;
  ToeplitzWeights m_weights;
  FeatureType m_type;
  int m_parts;  // that the band is divided into
};

}  // namespace nprf::cuda
