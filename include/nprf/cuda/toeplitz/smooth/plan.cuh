// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "nprf/core/index.hpp"
#include "nprf/core/lags.hpp"
#include "nprf/core/plain_pack.hpp"
#include "nprf/cuda/device/host_memory.hpp"
#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/position/toeplitz_weights.cuh"
#include "nprf/toeplitz/smooth/chunk_blocks.hpp"
#include "nprf/toeplitz/smooth/plan.hpp"
#include "nprf/toeplitz/smooth/polynomials.hpp"

namespace nprf::cuda {

/// The chunks of tokens of Engine::smooth (toeplitz/smooth/plan.hpp), and its polynomials, of which a GPU always uses
/// the same number: six represent weights up to a deviation of about 1e-5.
struct SmoothChunks {
  static constexpr int size = static_cast<int>(toeplitz::smooth_chunk), terms = 6, pairs = terms * terms;

  /// The number of chunks of n tokens at a level.
  static __host__ __device__ int count(int n, int level) { return ((n + size - 1) / size + (1 << level) - 1) >> level; }
  /// The number of chunks at all levels below `level`, or up to `level` more.
  static __host__ __device__ int below(int n, int level) {
    const int twice = 2 * count(n, 0);
    return twice - (twice >> level) + level;
  }
  /// The number of levels that toeplitz::SmoothPlan has at most.
  static int levels(int n_q, int n_k) {
    int levels = 1;
    while (count(std::max(n_q, n_k), levels - 1) > 2) ++levels;
    return levels;
  }
};

/// A block of C that is summed by moments: toeplitz::Coupling.
struct alignas(16) SmoothCoupling {
  float K[SmoothChunks::pairs];
  int offset;  // the chunk of keys - the chunk of queries
};

/// The plans of all positions, on the device.
struct SmoothBlocks {
  float* polynomials;         // [slot of a chunk, term]
  float *W, *Wt;              // [level, half, terms, terms]: toeplitz::SmoothLevel
  SmoothCoupling* couplings;  // [position, most_couplings]: lists by level, and by whether the chunk of queries is odd
  int* list_ends;             // [position, level, 2]: where these lists end
  int2* runs;       // [position, most_runs]: first and last tile of keys - first chunk of the tile of queries, of those
                    // tiles that are not summed by moments
  int* run_counts;  // [position]
  int positions, levels, most_couplings, most_runs;

  /// The runs of tiles of a head.
  struct Runs {
    const int2* all;
    int count;
  };
  __device__ __forceinline__ Runs runs_of(int head) const {
    const int position = positions > 1 ? head : 0;
    return {runs + static_cast<std::ptrdiff_t>(position) * most_runs, run_counts[position]};
  }
  /// The couplings of a chunk of queries of a level.
  struct Couplings {
    const SmoothCoupling *first, *last;
    __device__ __forceinline__ const SmoothCoupling* begin() const { return first; }
    __device__ __forceinline__ const SmoothCoupling* end() const { return last; }
  };
  __device__ __forceinline__ Couplings of(int head, int level, int chunk) const {
    const int position = positions > 1 ? head : 0, list = 2 * level + chunk % 2;
    const int* ends = list_ends + position * 2 * levels + list;
    const SmoothCoupling* all = couplings + static_cast<std::ptrdiff_t>(position) * most_couplings;
    return {all + (list == 0 ? 0 : ends[-1]), all + ends[0]};
  }
};

/// The weights of all lags, [position, lag], copied to the host. Waits for the stream. Throws BackendError if CUDA
/// reports an error.
inline std::vector<float> weights_on_host(const ToeplitzWeights& weights, cudaStream_t stream) {
  const DeviceWeights& c = weights.c;
  const std::size_t size = static_cast<std::size_t>(c.size);
  std::vector<float> all(static_cast<std::size_t>(weights.positions) * size);
  const float* from = c.step < 0 && c.size > 0 ? c.values - (c.size - 1) : c.values;
  for (int k = 0; k < weights.positions && c.size > 0; ++k)
    check(cudaMemcpyAsync(all.data() + static_cast<std::size_t>(k) * size, from + k * c.stride, size * sizeof(float),
                          cudaMemcpyDeviceToHost, stream),
          "copying weights to the host");
  check(cudaStreamSynchronize(stream), "copying weights to the host");
  for (auto row = all.begin(); c.step < 0 && row != all.end(); row += c.size) std::reverse(row, row + c.size);
  return all;
}

/// A view of the weights of one position in what weights_on_host() returns.
inline LagWeightsView<float> lag_weights(const ToeplitzWeights& weights, const std::vector<float>& all, int position) {
  return {weights.c.first,
          all.data() + position * static_cast<std::ptrdiff_t>(weights.c.size),
          weights.c.size,
          {},
          weights.max_deviation};
}

/// Plans on the host how the blocks of C are computed, and copies the plans to the device.
class SmoothPlanner {
 public:
  /// Tiles have `chunks_of_tile` chunks of queries, 1 or 2, and one of keys.
  SmoothPlanner(const ToeplitzWeights& weights, int n_q, int n_k, int chunks_of_tile)
      : m_weights(weights), m_n_q(n_q), m_n_k(n_k), m_chunks_of_tile(chunks_of_tile) {
    Scratch count;
    take(count);
    m_memory = DeviceMemory(count.bytes());
  }

  SmoothBlocks blocks() const {
    Scratch scratch(m_memory.data());
    return take(scratch);
  }

  /// Must be called after the weights may have changed. Waits for the stream.
  void queue(cudaStream_t stream) const {
    std::vector<float> weights = weights_on_host(m_weights, stream);
    if (m_is_planned && weights == m_planned) return;
    m_is_planned = false;
    const SmoothBlocks to = blocks();
    const auto copy = [&]<class T>(T* array, const std::vector<T>& values) {
      if (!values.empty())
        check(cudaMemcpyAsync(array, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, stream),
              "copying a plan to the device");
    };
    constexpr int terms = SmoothChunks::terms;
    std::vector<float> polynomials(SmoothChunks::size * terms), halves[2];
    for (int s = 0; s < SmoothChunks::size; ++s)
      for (int q = 0; q < terms; ++q)
        polynomials[static_cast<std::size_t>(s * terms + q)] =
            toeplitz::ChunkBasis<float>::get().by_slot[s * toeplitz::most_terms + q];
    for (int l = 0; l < to.levels; ++l) {
      const toeplitz::Halves of_level(toeplitz::smooth_chunk << l, terms);
      for (const int half : {0, 1}) append(of_level.W[half], halves[0]), append(of_level.Wt[half], halves[1]);
    }
    copy(to.polynomials, polynomials), copy(to.W, halves[0]), copy(to.Wt, halves[1]);
    for (int k = 0; k < to.positions; ++k) {
      const Lists lists = lists_of(lag_weights(m_weights, weights, k), to.levels);
      copy(to.couplings + static_cast<std::ptrdiff_t>(k) * to.most_couplings, lists.couplings);
      copy(to.list_ends + k * 2 * to.levels, lists.ends);
      copy(to.runs + static_cast<std::ptrdiff_t>(k) * to.most_runs, lists.runs);
      copy(to.run_counts + k, std::vector<int>{static_cast<int>(lists.runs.size())});
      check(cudaStreamSynchronize(stream), "copying a plan to the device");
    }
    m_planned = std::move(weights), m_is_planned = true;
  }

 private:
  using Plan = toeplitz::SmoothPlan<float, PlainPack<float>>;

  // the entries of a matrix of `terms` rows and columns
  static void append(const auto* matrix, std::vector<float>& to) {
    for (int p = 0; p < SmoothChunks::terms; ++p)
      for (int q = 0; q < SmoothChunks::terms; ++q)
        to.push_back(static_cast<float>(matrix[p * toeplitz::most_terms + q]));
  }

  SmoothBlocks take(Scratch& scratch) const {
    SmoothBlocks x{};
    x.positions = m_weights.positions, x.levels = SmoothChunks::levels(m_n_q, m_n_k);
    for (int l = 0; l < x.levels; ++l)
      x.most_couplings += 2 * (SmoothChunks::count(m_n_q, l) + SmoothChunks::count(m_n_k, l));
    x.most_runs = SmoothChunks::count(m_n_q, 0) + SmoothChunks::count(m_n_k, 0);
    x.polynomials = scratch.take<float>(SmoothChunks::size, SmoothChunks::terms);
    x.W = scratch.take<float>(x.levels, 2, SmoothChunks::pairs);
    x.Wt = scratch.take<float>(x.levels, 2, SmoothChunks::pairs);
    x.couplings = scratch.take<SmoothCoupling>(x.positions, x.most_couplings);
    x.list_ends = scratch.take<int>(x.positions, x.levels, 2);
    x.runs = scratch.take<int2>(x.positions, x.most_runs);
    x.run_counts = scratch.take<int>(x.positions);
    return x;
  }

  // those of SmoothBlocks for one position
  struct Lists {
    std::vector<SmoothCoupling> couplings;
    std::vector<int> ends;
    std::vector<int2> runs;
  };
  Lists lists_of(const LagWeightsView<float>& c, int levels) const {
    Lists lists;
    lists.ends.assign(2 * static_cast<std::size_t>(levels), 0);
    if (m_n_q == 0 || m_n_k == 0) return lists;
    HostMemory memory;
    const Plan plan(c, m_n_q, m_n_k, SmoothChunks::terms, memory);
    const auto& lowest = plan.level(0);
    // whether the tile at key chunk - first chunk of queries = offset is needed: for a block that is not smooth
    const auto is_tile = [&](Index offset) {
      bool is_needed = false;
      for (Index D = -offset; D < m_chunks_of_tile - offset; ++D)
        is_needed |=
            D >= lowest.first && D < lowest.first + lowest.count && lowest.kind(D) == toeplitz::BlockKind::rough;
      return is_needed;
    };
    for (int l = 0; l < levels; ++l)
      for (const int parity : {0, 1}) {
        if (l <= plan.top())
          for (const toeplitz::Coupling<float>& each : plan.level(l).side(toeplitz::Axis::queries).coupled[parity])
            if (l > 0 || !is_tile(each.offset + parity % m_chunks_of_tile)) {
              std::vector<float> K;
              append(each.K, K);
              SmoothCoupling& to = lists.couplings.emplace_back();
              std::copy(K.begin(), K.end(), to.K);
              to.offset = static_cast<int>(each.offset);
            }
        lists.ends[static_cast<std::size_t>(2 * l + parity)] = static_cast<int>(lists.couplings.size());
      }
    for (Index offset = 1 - lowest.first - lowest.count; offset < m_chunks_of_tile - lowest.first; ++offset) {
      if (!is_tile(offset)) continue;
      const int at = static_cast<int>(offset);
      if (lists.runs.empty() || lists.runs.back().y < at - 1) lists.runs.push_back({at, at});
      lists.runs.back().y = at;
    }
    return lists;
  }

  ToeplitzWeights m_weights;
  int m_n_q, m_n_k, m_chunks_of_tile;
  DeviceMemory m_memory;
  mutable std::vector<float> m_planned;  // the weights of the plans on the device
  mutable bool m_is_planned = false;
};

}  // namespace nprf::cuda
