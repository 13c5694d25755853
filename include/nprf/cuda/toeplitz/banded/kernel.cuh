// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <type_traits>

#include "nprf/cuda/toeplitz/banded/chunk_states.cuh"
#include "nprf/cuda/toeplitz/direct/mma_tile.cuh"

namespace nprf::cuda {

/// The chunks of n_k keys, relative to a band of lags.
struct BandChunks {
  static constexpr int chunk = ChunkTask<float>::chunk;

  int n_k;
  Band band;

  __host__ __device__ int count() const { return ChunkTask<float>::chunks_of(n_k); }

  /// before(first): how many leading chunks lie entirely before the band of every query from `first` on. after(first,
  /// last): the first chunk from which on all keys lie after the band of every query first..last.
  __host__ __device__ int before(int first) const { return clamped_chunk(count(), first + band.first, 0); }
  __host__ __device__ int after(int first, int last) const {
    const int end = clamped_chunk(count(), last + band.last + 1, chunk - 1), begin = before(first);
    return end > begin ? end : begin;
  }

  /// The key that the weights of the state before or after chunk k are relative to.
  __device__ __forceinline__ int anchor(TailSide side, int k, double slope) const {
    return tail_anchor(side, k, n_k, slope);
  }

 private:
  // (key + more) / chunk, clamped to 0..most
  static __host__ __device__ int clamped_chunk(int most, int key, int more) {
    const int k = ((key > 0 ? key : 0) + more) / chunk;
    return k < most ? k : most;
  }
};

/// Whether the tail on this side of the band has lags that are attended to.
__host__ __device__ inline bool has_tail(const DeviceWeights& c, TailSide side) {
  return side == TailSide::before ? c.first_attended <= c.first : c.last_attended >= c.first + c.size - 1;
}

/// The number of parts of a banded product whose band is divided into `parts` parts: one more if the weights of the
/// tails have a slope, and both tails have lags that are attended to.
__host__ __device__ inline int parts_with_tails(const DeviceWeights& c, const TailSlope& slope, int parts) {
  return parts + (!slope.is_zero() && has_tail(c, TailSide::before) && has_tail(c, TailSide::after));
}

/// Computes Y = ((A B^T) o C) [V 1] for weights with tails: log c is linear in the lag before a band of lags and after
/// it. The weights of a tail are constant (T5 buckets, clipped tables, no position), or exponential (ALiBi). The keys
/// outside of the band contribute through two states S of whole chunks of keys (ChunkTask), matrices (r,p + 1) that are
/// relative to the keys anchor_before and anchor_after:
///
///     y_i += c[anchor_before - i] A_i S_before + c[anchor_after - i] A_i S_after
///
/// Y is a sum over parts. Each part has some keys of the band, and the first part also has the states. With a slope the
/// rows of A_i S are multiplied by c after the product, so that S_after has a part of its own, the last one, if both
/// tails exist. Rounding errors are those of the tiles (Tile, TensorTile). O((n_q + n_k) r p + n_q R (r + p)) for a
/// band of R lags.
template <Storage S, class Feature = float>
struct BandedTask : ChunkTask<S, Feature> {
  Band band;
  int parts;     // that the band is divided into
  float *N, *D;  // [part, z, n_q, p] [part, z, n_q], for all_parts() parts

  /// The number of parts; one more than `parts` with a slope and two tails.
  __host__ __device__ int all_parts() const { return parts_with_tails(this->c, this->slope, parts); }

  /// What the product of query i with the state before or after chunk k is multiplied by: factor(i) = c[anchor - i].
  struct TailFactor {
    const DeviceWeights& c;
    int head, anchor;

    __device__ __forceinline__ float operator()(int i) const { return c(head, anchor - i); }
  };
  __device__ __forceinline__ TailFactor tail_factor(TailSide side, int head, int k) const {
    return {this->c, head, this->anchor(side, k, this->slope(head))};
  }
};

/// Sets the rows i0 to last_row of y, which must be zero, to the contributions of a tail: of the keys before chunk k,
/// or of the keys of chunk k and after it.
template <class Y, class Task>
__device__ __forceinline__ void add_tail(Y& y, const Task& task, TailSide side, int z, int k, int i0, int last_row) {
  const auto factor = task.tail_factor(side, z % task.A.heads, k);
  const bool has_keys = side == TailSide::before ? k > 0 : k < task.chunks();
  // factors are monotone in i
  if (!has_keys || (factor(i0) == 0 && factor(last_row) == 0)) return;
  const std::ptrdiff_t columns = task.U.V.channels + 1;
  const float* state = (side == TailSide::before ? task.before : task.after) +
                       (static_cast<std::ptrdiff_t>(z) * (task.chunks() + 1) + k) * task.matrix();
  y.add_product([&](int f, int column) { return state[f * columns + column]; });
  y.scale_rows(factor);
}

/// The tile for a band. A band has few keys, so that one block of 16 rows for each warp is faster. In half, where rows
/// have scales, the warps would need too many registers for this.
template <Storage S, class Feature, MmaShape shape>
using BandTileOf = TileOf<S, Feature, shape, std::is_same_v<Feature, __half> ? 2 : 1>;

/// Computes a tile of one part of Y. blockIdx.x: tile of queries, blockIdx.y: part, blockIdx.z: z and tile of columns.
template <Storage S, class Feature, MmaShape shape>
__global__ void __launch_bounds__((BandTileOf<S, Feature, shape>::threads), (BandTileOf<S, Feature, shape>::blocks))
    banded_kernel(BandedTask<S, Feature> task) {
  start_kernel();
  using Y = BandTileOf<S, Feature, shape>;
  if constexpr (Y::compiled) {
    constexpr int tiles_of_chunk = task.chunk / Y::keys;
    const int n_q = task.A.tokens, p = task.U.V.channels, part = static_cast<int>(blockIdx.y);
    const int column_tiles = TileShape::column_tiles(p), all = static_cast<int>(gridDim.z) / column_tiles;
    const int z = static_cast<int>(blockIdx.z) / column_tiles, p0 = static_cast<int>(blockIdx.z) % column_tiles;
    const int i0 = static_cast<int>(blockIdx.x) * Y::queries;
    const BandChunks keys{task.B.tokens, task.band};
    const int last_row = min(i0 + Y::queries, n_q) - 1;
    const int chunks = task.chunks(), before = keys.before(i0), after = keys.after(i0, last_row);
    const int first = before * tiles_of_chunk;
    const int count =
        part >= task.parts ? 0 : max(0, min(after * tiles_of_chunk, TileShape::tiles(task.B.tokens)) - first);

    Y y(task, z, i0, p0 * Y::columns);
    if (!task.slope.is_zero()) {
      const bool is_before = part == 0 && has_tail(task.c, TailSide::before);
      if (part == 0 || part == task.parts)
        add_tail(y, task, is_before ? TailSide::before : TailSide::after, z, is_before ? before : after, i0, last_row);
    } else if (part == 0) {
      const int head = z % task.A.heads;
      const float c_before = task.c(head, max(task.c.first, task.band.first - 1));
      const float c_after = task.c(head, min(task.c.first + task.c.size - 1, task.band.last + 1));
      const std::ptrdiff_t matrices = static_cast<std::ptrdiff_t>(z) * (chunks + 1), columns = p + 1;
      const float *left = task.before + (matrices + before) * task.matrix(),
                  *right = task.after + (matrices + after) * task.matrix();
      y.add_product([&](int f, int column) {
        const std::ptrdiff_t at = f * columns + column;
        return (c_before == 0 ? 0.0f : c_before * left[at]) + (c_after == 0 ? 0.0f : c_after * right[at]);
      });
    }
    y.add_keys(first + count * part / task.parts, first + count * (part + 1) / task.parts);
    const std::ptrdiff_t rows = (static_cast<std::ptrdiff_t>(part) * all + z) * n_q;
    y.store(task.N + rows * p, task.D + rows);
  }
}

/// Queues the products of `z` matrices. `shape` is the instruction that multiplies 16-bit features.
template <Storage S, class Feature, MmaShape shape = MmaShape::native>
void queue_banded(const BandedTask<S, Feature>& task, int z, cudaStream_t stream) {
  using Y = BandTileOf<S, Feature, shape>;
  if (task.A.tokens == 0 || z == 0) return;
  queue_chunks<S, Feature, shape>(task, z, stream);
  const dim3 grid{blocks_of<Y::queries>(task.A.tokens), static_cast<unsigned>(task.all_parts()),
                  static_cast<unsigned>(z * TileShape::column_tiles(task.U.V.channels))};
  launch("banded", banded_kernel<S, Feature, shape>, grid, dim3{Y::threads, 1, 1}, Y::shared, stream, task);
}

}  // namespace nprf::cuda
