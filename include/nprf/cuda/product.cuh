// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string_view>

#include "nprf/cuda/banded.cuh"
#include "nprf/cuda/direct.cuh"
#include "nprf/cuda/fused_engine.cuh"
#include "nprf/cuda/runtime.hpp"
#include "nprf/cuda/scratch.hpp"
#include "nprf/cuda/transforms.cuh"

namespace nprf::cuda {

/// How a plan computes its products. direct: tiles of the quadratic matrix. banded: T5, clipped tables, no position, in
/// linear time. fused: any position in n log n, up to 16384 tokens, by transforms in shared memory. cufft: any position
/// in n log n, by transforms through memory.
///
/// Rounding of transforms is relative to the largest rows: where a bias rises or is sharp, and for causal weights, it
/// may drown others. Those are found and computed again by tiles (certificates.cuh); the automatic engine takes no
/// transforms where that would be too many.
enum class Engine { automatic, direct, banded, fused, cufft };

constexpr std::string_view name(Engine engine) {
  switch (engine) {
    case Engine::automatic: return "automatic";
    case Engine::direct: return "direct";
    case Engine::banded: return "banded";
    case Engine::fused: return "fused";
    case Engine::cufft: return "cufft";
  }
  return "unknown";
}

/// The sizes of Y = ((A B^T) o C) [V 1] for every z: A (n_q,r), B (n_k,r), V (n_k,p).
struct ProductShape {
  int z, heads, n_q, n_k, r, p;
};

/// C of all heads, by its lags.
struct ToeplitzWeights {
  DeviceWeights c;
  Band band;
  int positions;  // 1 or heads

  /// Of C^T.
  ToeplitzWeights transposed() const { return {c.transposed(), {-band.last, -band.first}, positions}; }
};

/// Numerators [part, z, n_q, p] and denominators [part, z, n_q], the sums of their parts in order.
struct Sums {
  float *N, *D;
  int parts;
};

/// Y = ((A B^T) o C) [V 1] of one shape by one engine. The weights lie where they lay when it was made, and may change.
template <Storage S>
class Product {
 public:
  /// Throws InvalidArgument if the engine does not take the shape, BackendError for what CUDA refuses.
  Product(const Device& device, Engine engine, const ProductShape& shape, const ToeplitzWeights& weights,
          std::size_t slab_bytes)
      : m_engine(engine), m_shape(shape), m_weights(weights) {
    const auto& [z, heads, n_q, n_k, r, p] = shape;
    switch (engine) {
      case Engine::fused: m_fused = FusedEngine(device, n_q, n_k, r, p, z); break;
      case Engine::cufft: m_transforms = TransformEngine(n_q, n_k, r, p, z, weights.positions, slab_bytes); break;
      case Engine::banded: allow_shared(banded_kernel<S>, TileShape::shared); break;
      default: allow_shared(direct_kernel<S>, TileShape::shared); m_parts = direct_parts(device, n_q, n_k, p, z);
    }
    if (spectrum_size() == 0) return;
    m_memory = DeviceMemory(take_tables(Scratch()));
    take_tables(Scratch(m_memory.data()));
  }

  const ProductShape& shape() const { return m_shape; }
  const ToeplitzWeights& weights() const { return m_weights; }

  /// Of the transforms; 0 where there are none.
  int length() const { return static_cast<int>(spectrum_size()); }

  /// Tokens of a row of features of n tokens: transforms in shared memory take all that they have room for.
  int stride(int n) const { return m_engine == Engine::fused ? m_fused.length() : n; }

  /// Where A [z, r, stride(n_q)] and B [z, r, stride(n_k)] are, zero from n_q and n_k on.
  Operand<float> operand(const float* features, int n) const {
    return Operand<float>::by_channel(features, m_shape.heads, n, m_shape.r, stride(n));
  }

  /// To be called when the weights have changed.
  void queue_spectrum(cudaStream_t stream) const {
    if (m_engine == Engine::fused) m_fused.queue_spectrum(m_weights.c, m_weights.positions, m_spectrum, stream);
    if (m_engine != Engine::cufft) return;
    const std::scoped_lock lock(*m_mutex);
    m_transforms.queue_spectrum(m_weights.c, m_weights.positions, m_spectrum, m_spectrum_workspace, stream);
  }

  /// Scratch memory of a call, and its result.
  struct Arrays {
    Sums sums;
    float *before, *after;  // of Engine::banded
    FusedEngine::Arrays fused;
    TransformEngine::Arrays transforms;
  };
  Arrays take(Scratch& scratch) const {
    const auto size = [](auto... sizes) { return (static_cast<std::size_t>(sizes) * ... * 1); };
    const auto& [z, heads, n_q, n_k, r, p] = m_shape;
    Arrays arrays{};
    arrays.sums.N = scratch.take<float>(size(m_parts, z, n_q, p));
    arrays.sums.D = scratch.take<float>(size(m_parts, z, n_q));
    arrays.sums.parts = m_parts;
    if (m_engine == Engine::banded) {
      const std::size_t sums = size(z, (n_k + BandedTask<S>::chunk - 1) / BandedTask<S>::chunk + 1, r, p + 1);
      arrays.before = scratch.take<float>(sums);
      arrays.after = scratch.take<float>(sums);
    }
    if (m_engine == Engine::fused) arrays.fused = m_fused.take(scratch);
    if (m_engine == Engine::cufft) arrays.transforms = m_transforms.take(scratch);
    return arrays;
  }

  /// Queues arrays.sums, of features as operand() wants them.
  void queue(const float* A, const float* B, const Columns<S>& U, const Arrays& arrays, cudaStream_t stream) const {
    const TileTask<S> task{operand(A, m_shape.n_q), operand(B, m_shape.n_k), U, m_weights.c};
    const auto& [N, D, parts] = arrays.sums;
    const int z = m_shape.z;
    switch (m_engine) {
      case Engine::cufft: {
        const std::scoped_lock lock(*m_mutex);
        m_transforms.queue(task, z, m_spectrum, spectrum_stride(), N, D, arrays.transforms, stream);
        break;
      }
      case Engine::fused: m_fused.queue(task, z, m_spectrum, spectrum_stride(), N, D, arrays.fused, stream); break;
      case Engine::banded:
        queue_banded(BandedTask<S>{task, m_weights.band.first, m_weights.band.last, arrays.before, arrays.after, N, D},
                     z, stream);
        break;
      default: queue_direct(DirectTask<S>{task, parts, N, D}, z, stream);
    }
  }

 private:
  std::size_t spectrum_size() const {
    if (m_engine == Engine::fused) return 2 * static_cast<std::size_t>(m_fused.length());
    return m_engine == Engine::cufft ? static_cast<std::size_t>(m_transforms.length()) : 0;
  }
  std::ptrdiff_t spectrum_stride() const {
    return m_weights.positions > 1 ? static_cast<std::ptrdiff_t>(spectrum_size()) : 0;
  }

  std::size_t take_tables(Scratch scratch) {
    m_spectrum = scratch.take<float2>(spectrum_size() * static_cast<std::size_t>(m_weights.positions));
    if (m_engine == Engine::cufft) m_spectrum_workspace = m_transforms.take_for_spectrum(scratch);
    return scratch.bytes();
  }

  Engine m_engine;
  ProductShape m_shape;
  ToeplitzWeights m_weights;
  int m_parts = 1;
  FusedEngine m_fused;
  TransformEngine m_transforms;
  DeviceMemory m_memory;
  float2* m_spectrum = nullptr;  // [position, spectrum_size()]
  std::byte* m_spectrum_workspace = nullptr;
  std::unique_ptr<std::mutex> m_mutex = std::make_unique<std::mutex>();  // cuFFT's plans are told where to work
};

}  // namespace nprf::cuda
