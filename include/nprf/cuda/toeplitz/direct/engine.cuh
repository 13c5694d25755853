// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/device/storage.cuh"
#include "nprf/cuda/toeplitz/direct/kernel.cuh"
#include "nprf/cuda/toeplitz/engine.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"

namespace nprf::cuda {

/// The type of features that tiles multiply fastest. For tensor cores the device must have instructions for the type,
/// and the program must be compiled for them.
template <Storage S>
FeatureType feature_type_of_tiles(const Device& device, bool features_fit_half) {
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

/// The number of queries of a tile.
inline int queries_of_tile(FeatureType type) {
  return on_tensor_cores(type) ? TensorTile<__half>::queries : TileShape::tile;
}
inline int tiles_of_queries(int n_q, FeatureType type) {
  return (n_q + queries_of_tile(type) - 1) / queries_of_tile(type);
}

/// Engine::direct: computes, by tiles, all pairs of a query and a key that it attends to.
template <Storage S>
class DirectEngine {
 public:
  static constexpr Engine name = Engine::direct;
  static constexpr bool is_tiled = true, supports_grid = true, has_states = false;

  static CallCost cost(const CostInputs& x) {
    const double z = x.shape.z, pairs = static_cast<double>(x.shape.n_q) * x.shape.n_k;
    const double work = (x.is_causal ? 1 : 2) * z * pairs * (static_cast<double>(x.shape.r) + x.shape.p + 1);
    if (x.on_tensor_cores) return {26e-6, 290e12, work};
    return {22e-6, 12.5e12, work};
  }

  explicit DirectEngine(const EngineInputs& x) : m_z(x.shape.z) {
    const auto& [device, shape, weights, type, slab_bytes] = x;
    if constexpr (!std::same_as<S, float>)
      m_streams =
          device.capability >= 80 && compiled_for(streamed_direct_kernel<S>) >= 80 && streamed_blocks(device) >= 2;
    // whether attention is causal in one of the two directions: products for gradients have transposed weights
    const bool is_causal = weights.c.last_attended <= 0 || weights.c.first_attended >= 0;
    const int blocks = m_streams && has_storage_type<S>(type) ? streamed_blocks(device) : 2;
    m_parts = parts_of_keys(device, tiles_of_queries(shape.n_q, type), shape.n_k, shape.p, m_z,
                            is_causal ? 2 * blocks : blocks);
  }

  struct Arrays {};
  Arrays take(Scratch&) const { return {}; }

  int parts() const { return m_parts; }

  template <class Feature>
  void queue(const TileTask<S, Feature>& task, const Sums& sums, const Arrays&, cudaStream_t stream) const {
    queue_direct<S, Feature>({task, m_parts, sums.N, sums.D}, m_z, stream, m_streams);
  }

 private:
  // how many blocks with streamed tiles run on a multiprocessor at a time; each reserves 1 KiB of shared memory in
  // addition to its own
  static int streamed_blocks(const Device& device) {
    if constexpr (std::same_as<S, float>) {
      return 0;
    } else {
      constexpr std::size_t reserved = 1024;
      const std::size_t fit = (device.shared_bytes + reserved) / (StreamedTile<S>::shared + reserved);
      return std::min(StreamedTile<S>::blocks, static_cast<int>(fit));
    }
  }

  int m_z, m_parts;
  bool m_streams = false;  // whether the device has asynchronous copies, and the program is compiled for them
};

}  // namespace nprf::cuda
