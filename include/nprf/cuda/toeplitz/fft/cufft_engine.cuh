// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

#include "nprf/cuda/device/cufft.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/device/storage.cuh"
#include "nprf/cuda/device/value_columns.cuh"
#include "nprf/cuda/toeplitz/direct/kernel.cuh"
#include "nprf/cuda/toeplitz/engine.cuh"
#include "nprf/cuda/toeplitz/fft/slab_kernels.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"
#include "nprf/fft/length.hpp"

namespace nprf::cuda {

/// Engine::cufft. C is part of a circulant matrix of length at least n_q + n_k - 1. For a grid, n_q and n_k are the
/// numbers of slots; the pairs of the border are computed by tiles, as a second part of the sums. Signals are
/// transformed in slabs (slab_kernels.cuh) of at most slab_bytes, but of at least one signal. O(r (p + 1) n log n)
/// time. Memory: a slab and cuFFT's workspace.
class CufftEngine {
 public:
  static constexpr Engine name = Engine::cufft;
  static constexpr bool is_tiled = false, supports_grid = true, has_states = false;

  /// The cost is that of passing each slab through memory ten times.
  static CallCost cost(const CostInputs& x) {
    const TokenPlaces& places = x.weights.c.places;
    const double slots = static_cast<double>(places.slot_count(x.shape.n_q)) + places.slot_count(x.shape.n_k);
    return {60e-6, 2e12, 10 * 8 * slots * x.signals(), length_for(x.shape, places)};
  }

  /// Throws BackendError if cuFFT reports an error.
  explicit CufftEngine(const EngineInputs& x)
      : m_weights(x.weights),
        m_z(x.shape.z),
        m_length(length_for(x.shape, x.weights.c.places)),
        m_pairs(column_pairs(x.shape.p)),
        m_slab(SlabShape::of(m_length, x.shape.r, static_cast<std::ptrdiff_t>(m_z) * m_pairs, x.slab_bytes)),
        m_signals(m_length, m_slab.signals()),
        m_circulant(m_length, m_weights.positions),
        m_memory(take_tables(Scratch())) {
    take_tables(Scratch(m_memory.data()));
  }

  struct Arrays {
    float2* slab;
    std::byte* cufft;
  };
  Arrays take(Scratch& scratch) const {
    float2* slab = scratch.take<float2>(m_slab.signals(), m_length);
    return {slab, scratch.take<std::byte>(m_signals.workspace_bytes())};
  }

  int length() const { return m_length; }
  int stride(int n) const { return n; }
  int parts() const { return has_border() ? 2 : 1; }

  void queue_weights(cudaStream_t stream) const {
    const std::scoped_lock lock(*m_mutex);
    launch("circulant", circulant_kernel<threads>,
           dim3{blocks_of<threads>(m_length), static_cast<unsigned>(m_weights.positions), 1},
           dim3{static_cast<unsigned>(threads), 1, 1}, 0, stream, CirculantTask{m_weights.c, m_length, m_spectrum});
    m_circulant.run(m_spectrum, CUFFT_FORWARD, m_workspace, stream);
  }

  template <Storage S>
  void queue(const TileTask<S>& task, const Sums& sums, const Arrays& arrays, cudaStream_t stream) const {
    const std::scoped_lock lock(*m_mutex);
    queue_slabs(task, sums.N, sums.D, arrays, stream);
    if (!has_border()) return;
    TileTask<S> border = task;
    border.c.pairs = DeviceWeights::Pairs::of_border;
    queue_direct<S, float>({border, 1, sums.N + sums.rows * sums.p, sums.D + sums.rows}, m_z, stream);
  }

 private:
  static constexpr int threads = 256;

  static int length_for(const ProductShape& shape, const TokenPlaces& places) {
    return nprf::fft::smooth_length(places.slot_count(shape.n_q) + places.slot_count(shape.n_k) - 1);
  }
  bool has_border() const { return m_weights.c.places.outside > 0; }

  template <Storage S>
  void queue_slabs(const TileTask<S>& task, float* N, float* D, const Arrays& arrays, cudaStream_t stream) const {
    const auto& [A, B, U, c, scales] = task;
    const int p = U.V.channels, r = A.channels, all_pairs = m_z * m_pairs;
    const std::size_t rows = static_cast<std::size_t>(m_z) * static_cast<std::size_t>(A.tokens);
    queue_fill("clearing sums", N, 0, rows * static_cast<std::size_t>(p) * sizeof(float), stream);
    queue_fill("clearing sums", D, 0, rows * sizeof(float), stream);
    if (rows == 0 || B.tokens == 0) return;
    const unsigned signals = static_cast<unsigned>(m_slab.signals()), pairs = static_cast<unsigned>(m_slab.pairs);
    const std::ptrdiff_t stride = m_weights.positions > 1 ? m_length : 0;
    const dim3 block{threads, 1, 1};
    for (int pair = 0; pair < all_pairs; pair += m_slab.pairs)
      for (int f = 0; f < r; f += m_slab.features) {
        const SlabTask<S> slab{{B, U, m_length, m_pairs, all_pairs, pair, f, m_slab.features, arrays.slab, c.places},
                               A,
                               m_spectrum,
                               stride,
                               N,
                               D};
        queue_spread<S>("spread", slab, m_slab.pairs, stream);
        m_signals.run(arrays.slab, CUFFT_FORWARD, arrays.cufft, stream);
        launch("filter", filter_kernel<S>, dim3{blocks_of<threads>(m_length), signals, 1}, block, 0, stream, slab);
        m_signals.run(arrays.slab, CUFFT_INVERSE, arrays.cufft, stream);
        launch("gather", gather_kernel<S>, dim3{blocks_of<threads>(A.tokens), pairs, 1}, block, 0, stream, slab);
      }
  }

  std::size_t take_tables(Scratch scratch) {
    m_spectrum = scratch.take<float2>(m_weights.positions, m_length);
    m_workspace = scratch.take<std::byte>(m_circulant.workspace_bytes());
    return scratch.bytes();
  }

  ToeplitzWeights m_weights;
  int m_z, m_length, m_pairs;
  SlabShape m_slab;
  CufftPlan m_signals, m_circulant;
  DeviceMemory m_memory;
  float2* m_spectrum;  // [position, length]
  std::byte* m_workspace;
  std::unique_ptr<std::mutex> m_mutex = std::make_unique<std::mutex>();  // cuFFT's plans store workspace and stream
};

}  // namespace nprf::cuda
