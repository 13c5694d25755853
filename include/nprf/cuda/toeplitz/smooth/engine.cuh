// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <vector>

#include "nprf/core/lags.hpp"
#include "nprf/core/plain_pack.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/device/storage.cuh"
#include "nprf/cuda/toeplitz/direct/engine.cuh"
#include "nprf/cuda/toeplitz/engine.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"
#include "nprf/cuda/toeplitz/smooth/kernel.cuh"
#include "nprf/cuda/toeplitz/smooth/plan.cuh"
#include "nprf/toeplitz/smooth/block_pairs.hpp"

namespace nprf::cuda {

/// Engine::smooth: products of polynomials where the weights are smooth, and tiles elsewhere. A weight changes by at
/// most ToeplitzWeights::max_deviation, relative to it. Moments are in float, and so relative to each row.
template <Storage S>
class SmoothEngine {
 public:
  static constexpr Engine name = Engine::smooth;
  static constexpr bool is_tiled = true, supports_grid = false, has_states = false;

  /// No GPU has run this engine, so that the cost is an estimate: from the rates of other engines' tiles, two thirds of
  /// the bandwidth of an H200's memory, and the time of each of a chain of launches; half of the work is added to it,
  /// as nothing was tuned. Infinite for few tokens, and for weights that may not change. Reads the weights from the
  /// device.
  static CallCost cost(const CostInputs& x) {
    constexpr double rate = 12.5e12, tensor_rate = 85e12, bandwidth = 3e12, launch = 3e-6, untuned = 1.5;
    constexpr double terms = SmoothChunks::terms, halves = 1.5;
    const int n_q = x.shape.n_q, n_k = x.shape.n_k;
    CallCost cost{26e-6, rate, std::numeric_limits<double>::infinity()};
    if (x.weights.max_deviation <= 0 || std::max(n_q, n_k) < 8 * SmoothChunks::size || std::min(n_q, n_k) == 0)
      return cost;
    const double r = x.shape.r, columns = static_cast<double>(x.shape.p) + 1, tokens = static_cast<double>(n_q) + n_k,
                 chunks = tokens / SmoothChunks::size;
    auto [pairs, offsets] = tiles_and_offsets(x);
    // two chunks of queries have the tiles of both
    if (x.on_tensor_cores) pairs += static_cast<double>(SmoothChunks::size) * n_q;
    const double in_tiles = 2 * pairs * (r + columns) / (x.on_tensor_cores ? tensor_rate : rate),
                 of_moments = 2 * terms * r * columns * (tokens + terms * chunks * (halves + offsets)) / rate,
                 of_memory = sizeof(float) * terms * r * columns * chunks * (3 + offsets) / bandwidth;
    cost.work = untuned * x.shape.z * (in_tiles + of_moments + of_memory) * rate;
    const int slabs = (x.shape.z + at_once(x.shape, x.shape.r) - 1) / at_once(x.shape, x.shape.r);
    cost.start += launch * 2 * SmoothChunks::levels(n_q, n_k) * slabs;
    return cost;
  }

  explicit SmoothEngine(const EngineInputs& x)
      : m_shape(x.shape),
        m_features(x.shape.features(x.type)),
        m_plan(x.weights, x.shape.n_q, x.shape.n_k, queries_of_tile(x.type) / SmoothChunks::size) {}

  struct Arrays {
    float *moments, *sums;  // as in SmoothTask
  };
  Arrays take(Scratch& scratch) const {
    const std::size_t all = static_cast<std::size_t>(at_once(m_shape, m_features));
    float* moments = scratch.take<float>(all, moments_of(m_shape, m_features));
    return {moments, scratch.take<float>(all, sums_of(m_shape, m_features))};
  }

  int parts() const { return 2; }

  void queue_weights(cudaStream_t stream) const { m_plan.queue(stream); }

  template <class Feature>
  void queue(const TileTask<S, Feature>& task, const Sums& sums, const Arrays& arrays, cudaStream_t stream) const {
    queue_smooth<S, Feature>({task, m_plan.blocks(), arrays.moments, arrays.sums, sums.N, sums.D, 0}, m_shape.z,
                             at_once(m_shape, m_features), stream);
  }

 private:
  // The number of pairs in tiles, and of blocks that a chunk of one level is coupled with; averages over positions.
  struct Average {
    double rough = 0, offsets = 0;
  };
  static Average tiles_and_offsets(const CostInputs& x) {
    constexpr double most_offsets = 12;
    const int n_q = x.shape.n_q, n_k = x.shape.n_k, positions = x.weights.positions;
    const double diagonal = pairs_in({1 - SmoothChunks::size, SmoothChunks::size - 1}, n_q, n_k) / 2;
    const std::vector<float> weights = weights_on_host(x.weights, nullptr);
    Average average;
    for (int k = 0; k < positions; ++k) {
      const LagWeightsView<float> c = lag_weights(x.weights, weights, k);
      average.rough += diagonal / positions;
      for (const int sign : {1, -1}) {
        const auto pairs = toeplitz::sampled_blocks<float, PlainPack<float>>(c, n_q, n_k, sign);
        const auto* end = pairs.smooth + SmoothChunks::terms + 1;
        const double smooth = std::accumulate(pairs.smooth, end, 0.0),
                     rough = std::accumulate(end, pairs.smooth + toeplitz::most_terms + 1, pairs.rough);
        average.rough += rough / positions;
        if (smooth > 0) average.offsets += std::min(1.5 * (1 + rough / diagonal), most_offsets) / positions;
      }
    }
    return average;
  }

  // the sizes of SmoothTask::moments and of its sums for one matrix, for features with padding
  static std::size_t moments_of(const ProductShape& shape, int features) {
    return of_chunks(SmoothChunks::below(shape.n_k, SmoothChunks::levels(shape.n_q, shape.n_k)), shape, features);
  }
  static std::size_t sums_of(const ProductShape& shape, int features) {
    const int all = SmoothChunks::below(shape.n_q, SmoothChunks::levels(shape.n_q, shape.n_k));
    return of_chunks(all - SmoothChunks::below(shape.n_q, 1), shape, features);
  }
  static std::size_t of_chunks(int chunks, const ProductShape& shape, int features) {
    return static_cast<std::size_t>(chunks) * SmoothChunks::terms * static_cast<std::size_t>(features) *
           static_cast<std::size_t>(shape.p + 1);
  }
  // how many matrices have their moments in memory at a time: some, so that they take less of it
  static int at_once(const ProductShape& shape, int features) {
    constexpr std::size_t most = std::size_t{64} << 20;  // scalars
    const std::size_t each = moments_of(shape, features) + sums_of(shape, features);
    return static_cast<int>(std::clamp<std::size_t>(most / std::max<std::size_t>(each, 1), 1,
                                                    static_cast<std::size_t>(std::max(shape.z, 1))));
  }

  ProductShape m_shape;
  int m_features;
  SmoothPlanner m_plan;
};

}  // namespace nprf::cuda
