// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/toeplitz/banded/kernel.cuh"
#include "nprf/cuda/toeplitz/direct/kernel.cuh"
#include "nprf/cuda/toeplitz/fft/cufft_engine.cuh"
#include "nprf/cuda/toeplitz/fft/shared_memory_engine.cuh"
#include "nprf/cuda/toeplitz/fft/two_pass_engine.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"

namespace nprf::cuda {

/// How a plan computes its products. direct: tiles of the quadratic matrix. banded: T5, clipped tables, ALiBi or no
/// position, in linear time. fused: any position but a grid in O(n log n), by FFTs in shared memory up to 16384 tokens,
/// and by FFTs in two passes through memory up to 2^20 tokens. cufft: any position in O(n log n), by cuFFT, in about
/// ten passes through memory. A grid needs direct or cufft.
///
/// direct and banded use tensor cores if the storage type has 16 bits and the position is no grid. Storage in half is
/// multiplied in half, by any device, if the features fit its range (DeviceModel::features_fit_half); other features,
/// and those of bfloat16 storage, are multiplied in bfloat16, if the device can (8.0 and newer). The precision is then
/// that of the type (toeplitz/direct/mma_tile.cuh). All other arithmetic is in float.
///
/// The rounding error of an FFT is relative to the largest rows. If the bias rises with the distance, if it has narrow
/// peaks, or if attention is causal, small rows may fail the error bound. Those rows are found and recomputed by tiles
/// (attention/checked_product.cuh). The automatic engine does not choose an FFT if too many rows would fail.
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

/// The sizes of Y = ((A B^T) o C) [V 1] for every z = (sequence, head): A (n_q,r), B (n_k,r), V (n_k,p).
struct ProductShape {
  int z, heads, n_q, n_k, r, p;        // z: the number of sequences times heads
  int group_of_A = 1, group_of_B = 1;  // heads next to each other that share A, and B
};

/// Y = ((A B^T) o C) [V 1] of one shape by one engine. It refers to the weights, whose values may change between calls.
/// Features are float by channel, [z / group, r, stride], or, for tensor cores, of 16 bits by token, [z / group, n,
/// stride].
template <Storage S>
class Product {
 public:
  /// The type of features that an engine multiplies fastest. For tensor cores the device must have instructions for the
  /// type, and the program must be compiled for them.
  static FeatureType feature_type(const Device& device, Engine engine, bool features_fit_half) {
    if (engine != Engine::direct && engine != Engine::banded) return FeatureType::in_float;
    if constexpr (std::same_as<S, __half>) {
      // instructions of Volta are slow on newer devices
      const int least = device.capability >= 75 ? 75 : 70;
      if (features_fit_half && compiled_for(direct_kernel<S, __half, MmaShape::native>) >= least)
        return FeatureType::in_half;
    }
    if constexpr (!std::same_as<S, float>) {
      if (device.capability >= 80 && compiled_for(direct_kernel<S, __nv_bfloat16, MmaShape::native>) >= 80)
        return FeatureType::in_bfloat16;
    }
    return FeatureType::in_float;
  }

  /// Throws InvalidArgument if the engine does not support the shape, BackendError if CUDA reports an error. `type` is
  /// in_float, or feature_type() of the device and the engine; for a grid it counts as in_float.
  Product(const Device& device, Engine engine, const ProductShape& shape, const ToeplitzWeights& weights,
          std::size_t slab_bytes, FeatureType type = FeatureType::in_float)
      : m_engine(engine),
        m_feature_type(weights.c.places.is_grid() ? FeatureType::in_float : type),
        m_shape(shape),
        m_weights(weights) {
    require(name(engine) != "unknown", "engine: expected one of nprf::cuda::Engine, got number ",
            static_cast<int>(engine));
    const TokenPlaces& places = weights.c.places;
    require(!places.is_grid() || engine == Engine::direct || engine == Engine::cufft,
            "engine: expected direct or cufft for a grid on a GPU, got ", name(engine));
    m_has_border_part = engine == Engine::cufft && places.outside > 0;
    if constexpr (!std::same_as<S, float>)
      m_streams = device.capability >= 80 && compiled_for(streamed_direct_kernel<S>) >= 80 &&
                  blocks_of_streamed_tiles(device) >= 2;
    const auto& [z, heads, n_q, n_k, r, p, group_of_A, group_of_B] = shape;
    constexpr std::ptrdiff_t most_blocks = 65535;
    require(static_cast<std::ptrdiff_t>(z) * TileShape::column_tiles(p) <= most_blocks,
            "batch and heads: expected batch heads ceil(columns / 64) of at most ", most_blocks,
            ", where columns is d_v or, with gradients, the number of features, got batch heads = ", z, " and ", p,
            " columns");
    switch (engine) {
      case Engine::fused: choose_fft(device, slab_bytes); break;
      case Engine::cufft:
        m_cufft = CufftEngine(places.is_grid() ? places.end : n_q, places.is_grid() ? places.end : n_k, r, p, z,
                              weights.positions, slab_bytes);
        break;
      case Engine::banded:
        m_parts = parts_of_keys(device, tiles(),
                                std::min(n_k, weights.band.last - weights.band.first + 1 + queries_of_tile()), p, z);
        break;
      default: {
        // in one of the two directions, as the weights of gradients are transposed
        const bool causal = weights.c.last_attended <= 0 || weights.c.first_attended >= 0;
        const int blocks = m_streams && has_features_of_storage_type() ? blocks_of_streamed_tiles(device) : 2;
        m_parts = parts_of_keys(device, tiles(), n_k, p, z, causal ? 2 * blocks : blocks);
      }
    }
    if (spectrum_size() == 0) return;
    m_memory = DeviceMemory(take_tables(Scratch()));
    take_tables(Scratch(m_memory.data()));
  }

  const ProductShape& shape() const { return m_shape; }
  const ToeplitzWeights& weights() const { return m_weights; }

  /// Whether features have 16 bits and are stored by token, for tensor cores; and whether they have the storage type.
  bool on_tensor_cores() const { return m_feature_type != FeatureType::in_float; }
  bool has_features_of_storage_type() const {
    return on_tensor_cores() && (m_feature_type == FeatureType::in_half) == std::same_as<S, __half>;
  }

  /// Calls f.operator()<Feature>() for the type of the features.
  template <class F>
  void with_feature_type(F&& f) const {
    if constexpr (std::same_as<S, __half>)
      if (m_feature_type == FeatureType::in_half) return f.template operator()<__half>();
    if constexpr (!std::same_as<S, float>)
      if (m_feature_type == FeatureType::in_bfloat16) return f.template operator()<__nv_bfloat16>();
    f.template operator()<float>();
  }

  /// The length of the FFT; 0 for other engines.
  int length() const { return static_cast<int>(spectrum_size()); }

  /// Scalars per row of the features of n tokens. By channel, rows of Engine::fused are padded to the FFT's N. By
  /// token, rows are padded to a multiple of 16 features.
  int stride(int n) const {
    return on_tensor_cores() ? features()
           : m_shared_memory ? m_shared_memory->length()
           : m_two_pass      ? m_two_pass->length()
                             : n;
  }
  /// Scratch memory for A, and for B.
  std::byte* take_A(Scratch& scratch) const { return take_features(scratch, m_shape.n_q, m_shape.group_of_A); }
  std::byte* take_B(Scratch& scratch) const { return take_features(scratch, m_shape.n_k, m_shape.group_of_B); }

  /// Views of A [z / group_of_A, r, stride(n_q)] and B [z / group_of_B, r, stride(n_k)], which must be zero from n_q
  /// and n_k on, or [.., n_q, stride] and [.., n_k, stride], zero from r on.
  template <class Feature>
  Operand<Feature> operand_A(const Feature* A) const {
    return operand(A, m_shape.n_q, m_shape.group_of_A);
  }
  template <class Feature>
  Operand<Feature> operand_B(const Feature* B) const {
    return operand(B, m_shape.n_k, m_shape.group_of_B);
  }

  /// Must be called after the weights have changed.
  void queue_spectrum(cudaStream_t stream) const {
    if (m_shared_memory) m_shared_memory->queue_spectrum(m_weights.c, m_weights.positions, m_spectrum, stream);
    if (m_two_pass) m_two_pass->queue_spectrum(m_weights.c, m_weights.positions, m_spectrum, stream);
    if (m_engine != Engine::cufft) return;
    const std::scoped_lock lock(*m_mutex);
    m_cufft.queue_spectrum(m_weights.c, m_weights.positions, m_spectrum, m_spectrum_workspace, stream);
  }

  /// Scratch memory of a call, and its result.
  struct Arrays {
    Sums sums;
    float *before, *after;  // of Engine::banded
    SharedMemoryEngine::Arrays shared_memory;
    TwoPassEngine::Arrays two_pass;
    CufftEngine::Arrays cufft;
  };
  /// Allocates the arrays, with room for `extra_parts` additional parts of the sums.
  Arrays take(Scratch& scratch, int extra_parts = 0) const {
    const auto& [z, heads, n_q, n_k, r, p, group_of_A, group_of_B] = m_shape;
    const int parts = engine_parts() + m_has_border_part + extra_parts;
    Arrays arrays{};
    float* N = scratch.take<float>(parts, z, n_q, p);
    arrays.sums = {N, scratch.take<float>(parts, z, n_q), parts, p, static_cast<std::ptrdiff_t>(z) * n_q};
    take_states(scratch, arrays);
    if (m_shared_memory) arrays.shared_memory = m_shared_memory->take(scratch);
    if (m_two_pass) arrays.two_pass = m_two_pass->take(scratch);
    if (m_engine == Engine::cufft) arrays.cufft = m_cufft.take(scratch);
    return arrays;
  }

  /// Allocates the arrays that queue_states() needs.
  Arrays take_states(Scratch& scratch) const {
    Arrays arrays{};
    take_states(scratch, arrays);
    return arrays;
  }

  /// Queues arrays.before and arrays.after alone, if the engine is banded.
  void queue_states(const float* A, const float* B, const Columns<S>& U, const Arrays& arrays,
                    cudaStream_t stream) const {
    if (m_engine != Engine::banded || m_shape.n_q == 0 || m_shape.z == 0) return;
    queue_chunks<S, float>(
        {{operand_A(A), operand_B(B), U, m_weights.c}, arrays.before, arrays.after, m_weights.tail_slope}, m_shape.z,
        stream);
  }

  /// Queues arrays.sums, from features in the layout of operand_A() and operand_B().
  void queue(const float* A, const float* B, const Columns<S>& U, const Arrays& arrays, cudaStream_t stream) const {
    const TileTask<S> task{operand_A(A), operand_B(B), U, m_weights.c};
    const Spectra spectra{m_spectrum, m_weights.positions > 1 ? static_cast<std::ptrdiff_t>(spectrum_size()) : 0};
    const int z = m_shape.z;
    float *N = arrays.sums.N, *D = arrays.sums.D;
    switch (m_engine) {
      case Engine::cufft: {
        const std::scoped_lock lock(*m_mutex);
        m_cufft.queue(task, z, spectra, N, D, arrays.cufft, stream);
        if (m_has_border_part) queue_border(task, arrays.sums, stream);
        break;
      }
      case Engine::fused:
        if (m_shared_memory) m_shared_memory->queue(task, z, spectra, N, D, arrays.shared_memory, stream);
        if (m_two_pass) m_two_pass->queue(task, spectra, N, D, arrays.two_pass, stream);
        break;
      default: queue_tiles(task, arrays, stream);
    }
  }
  template <MmaFactor Feature>
  void queue(const Feature* A, const Feature* B, const Columns<S>& U, const Arrays& arrays, cudaStream_t stream,
             const OperandScales& scales = OperandScales::of_features<Feature>()) const {
    queue_tiles(TileTask<S, Feature>{operand_A(A), operand_B(B), U, m_weights.c, scales}, arrays, stream);
  }

 private:
  void take_states(Scratch& scratch, Arrays& arrays) const {
    if (m_engine != Engine::banded) return;
    const int matrices = ChunkTask<S>::chunks_of(m_shape.n_k) + 1;
    arrays.before = scratch.take<float>(m_shape.z, matrices, features(), m_shape.p + 1);
    arrays.after = scratch.take<float>(m_shape.z, matrices, features(), m_shape.p + 1);
  }

  std::byte* take_features(Scratch& scratch, int n, int group) const {
    const std::size_t row = static_cast<std::size_t>(stride(n)), all = static_cast<std::size_t>(m_shape.z / group);
    return scratch.take<std::byte>(on_tensor_cores() ? sizeof(std::uint16_t) * all * static_cast<std::size_t>(n) * row
                                                     : sizeof(float) * all * static_cast<std::size_t>(m_shape.r) * row);
  }

  Operand<float> operand(const float* features, int n, int group) const {
    return Operand<float>::by_channel(features, m_shape.heads / group, n, m_shape.r, stride(n)).shared_by(group);
  }
  template <MmaFactor Feature>
  Operand<Feature> operand(const Feature* rows, int n, int group) const {
    const DeviceMatrixView<const Feature> view(rows, m_shape.z / m_shape.heads, m_shape.heads / group, n, features());
    return Operand<Feature>(view).shared_by(group);
  }

  template <class Feature>
  void queue_tiles(const TileTask<S, Feature>& task, const Arrays& arrays, cudaStream_t stream) const {
    float *N = arrays.sums.N, *D = arrays.sums.D;
    if (m_engine == Engine::banded)
      queue_banded<S, Feature>(
          {{task, arrays.before, arrays.after, m_weights.tail_slope}, m_weights.band, m_parts, N, D}, m_shape.z,
          stream);
    else
      queue_direct<S, Feature>({task, m_parts, N, D}, m_shape.z, stream, m_streams);
  }

  // the contributions of tokens outside of a grid, as the part of the sums after the engine's
  void queue_border(TileTask<S> task, const Sums& sums, cudaStream_t stream) const {
    task.c.pairs = DeviceWeights::Pairs::of_border;
    queue_direct<S, float>({task, 1, sums.N + m_parts * sums.rows * sums.p, sums.D + m_parts * sums.rows}, m_shape.z,
                           stream);
  }

  int engine_parts() const {
    return m_engine == Engine::banded ? parts_with_tails(m_weights.c, m_weights.tail_slope, m_parts) : m_parts;
  }

  // features per row of A and B, with padding
  int features() const { return on_tensor_cores() ? std::max(1, (m_shape.r + 15) / 16) * 16 : m_shape.r; }
  // how many blocks with streamed tiles share a multiprocessor, where each reserves 1 KiB of shared memory
  static int blocks_of_streamed_tiles(const Device& device) {
    if constexpr (std::same_as<S, float>) {
      return 0;
    } else {
      constexpr std::size_t reserved = 1024;
      const std::size_t fit = (device.shared_bytes + reserved) / (StreamedTile<S>::shared + reserved);
      return std::min(StreamedTile<S>::blocks, static_cast<int>(fit));
    }
  }
  int queries_of_tile() const { return on_tensor_cores() ? TensorTile<__half>::queries : TileShape::tile; }
  int tiles() const { return (m_shape.n_q + queries_of_tile() - 1) / queries_of_tile(); }

  // FFTs in shared memory if it is large enough for n tokens, else FFTs in two passes
  void choose_fft(const Device& device, std::size_t slab_bytes) {
    const auto& [z, heads, n_q, n_k, r, p, group_of_A, group_of_B] = m_shape;
    const int n = std::max(n_q, n_k);
    if (SharedMemoryEngine::variant_for(device, n)) {
      m_shared_memory.emplace(device, n_q, n_k, r, p, z);
      return;
    }
    const TwoPassVariant* variant = TwoPassEngine::variant_for(n);
    require(variant != nullptr, "n_q and n_k: expected at most 2^20 by Engine::fused, got ", n_q, " and ", n_k);
    m_two_pass.emplace(*variant, device, r, p, z, slab_bytes);
  }

  std::size_t spectrum_size() const {
    if (m_engine == Engine::fused) return 2 * static_cast<std::size_t>(stride(m_shape.n_q));
    return m_engine == Engine::cufft ? static_cast<std::size_t>(m_cufft.length()) : 0;
  }

  std::size_t take_tables(Scratch scratch) {
    m_spectrum = scratch.take<float2>(spectrum_size() * static_cast<std::size_t>(m_weights.positions));
    if (m_engine == Engine::cufft) m_spectrum_workspace = m_cufft.take_for_spectrum(scratch);
    return scratch.bytes();
  }

  Engine m_engine;
  FeatureType m_feature_type;
  ProductShape m_shape;
  ToeplitzWeights m_weights;
  int m_parts = 1;
  bool m_has_border_part = false, m_streams = false;
  std::optional<SharedMemoryEngine> m_shared_memory;  // Engine::fused has one of the two
  std::optional<TwoPassEngine> m_two_pass;
  CufftEngine m_cufft;
  DeviceMemory m_memory;
  float2* m_spectrum = nullptr;  // [position, spectrum_size()]
  std::byte* m_spectrum_workspace = nullptr;
  std::unique_ptr<std::mutex> m_mutex = std::make_unique<std::mutex>();  // cuFFT's plans store workspace and stream
};

}  // namespace nprf::cuda
