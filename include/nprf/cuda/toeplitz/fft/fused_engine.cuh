// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <variant>

#include "nprf/core/error.hpp"
#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/device/storage.cuh"
#include "nprf/cuda/fft/complex.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"
#include "nprf/cuda/toeplitz/engine.cuh"
#include "nprf/cuda/toeplitz/fft/shared_memory_fft.cuh"
#include "nprf/cuda/toeplitz/fft/two_pass_fft.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"

namespace nprf::cuda {

/// Engine::fused: FFTs in shared memory if it is large enough for the tokens, else FFTs in two passes. Rows of features
/// are padded with zeros to N tokens.
class FusedEngine {
 public:
  static constexpr Engine name = Engine::fused;
  static constexpr bool is_tiled = false, supports_grid = false, has_states = false;

  /// FFTs in two passes move 40 bytes for each of the 2 N points of a signal.
  static CallCost cost(const CostInputs& x) {
    const int n = std::max(x.shape.n_q, x.shape.n_k);
    if (const SharedMemoryVariant* variant = SharedMemoryFft::variant_for(x.device, n)) {
      const double N = variant->N();
      return {55e-6, 13.5e12, 20 * N * std::log2(N) * x.signals(), 2 * variant->N()};
    }
    const TwoPassVariant* variant = TwoPassFft::variant_for(n);
    if (!variant) return {60e-6, 2.4e12, std::numeric_limits<double>::infinity()};
    return {60e-6, 2.4e12, 40 * 2 * static_cast<double>(variant->N()) * x.signals(), 2 * variant->N()};
  }

  /// Throws InvalidArgument for more than 2^20 tokens.
  explicit FusedEngine(const EngineInputs& x)
      : m_fft(fft_for(x)), m_weights(x.weights), m_spectrum(sizeof(float2) * spectrum_size() * positions()) {}

  struct Arrays {
    std::variant<SharedMemoryFft::Arrays, TwoPassFft::Arrays> of_fft;
  };
  Arrays take(Scratch& scratch) const {
    return std::visit([&](const auto& fft) { return Arrays{fft.take(scratch)}; }, m_fft);
  }

  int length() const { return 2 * stride(0); }
  int stride(int) const {
    return std::visit([](const auto& fft) { return fft.length(); }, m_fft);
  }
  int parts() const { return 1; }

  void queue_weights(cudaStream_t stream) const {
    std::visit([&](const auto& fft) { fft.queue_spectrum(m_weights.c, m_weights.positions, spectrum(), stream); },
               m_fft);
  }

  template <Storage S>
  void queue(const TileTask<S>& task, const Sums& sums, const Arrays& arrays, cudaStream_t stream) const {
    const Spectra spectra{spectrum(), m_weights.positions > 1 ? static_cast<std::ptrdiff_t>(length()) : 0};
    std::visit(
        [&]<class F>(const F& fft) {
          fft.queue(task, spectra, sums.N, sums.D, std::get<typename F::Arrays>(arrays.of_fft), stream);
        },
        m_fft);
  }

 private:
  using Fft = std::variant<SharedMemoryFft, TwoPassFft>;

  static Fft fft_for(const EngineInputs& x) {
    const auto& [z, heads, n_q, n_k, r, p, group_of_A, group_of_B] = x.shape;
    const int n = std::max(n_q, n_k);
    if (SharedMemoryFft::variant_for(x.device, n)) return SharedMemoryFft(x.device, n_q, n_k, r, p, z);
    const TwoPassVariant* variant = TwoPassFft::variant_for(n);
    require(variant != nullptr, "n_q and n_k: expected at most 2^20 by Engine::fused, got ", n_q, " and ", n_k);
    return TwoPassFft(*variant, x.device, r, p, z, x.slab_bytes);
  }

  std::size_t spectrum_size() const { return static_cast<std::size_t>(length()); }
  std::size_t positions() const { return static_cast<std::size_t>(m_weights.positions); }
  float2* spectrum() const { return static_cast<float2*>(m_spectrum.data()); }

  Fft m_fft;
  ToeplitzWeights m_weights;
  DeviceMemory m_spectrum;  // [position, length]
};

}  // namespace nprf::cuda
