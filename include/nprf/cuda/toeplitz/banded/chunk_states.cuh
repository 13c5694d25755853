// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <type_traits>

#include "nprf/core/compensated_sum.hpp"
#include "nprf/cuda/toeplitz/direct/mma_tile.cuh"

namespace nprf::cuda {

enum class TailSide { before, after };

constexpr int keys_of_chunk = 128;

/// The anchor of a state (ChunkTask), for n_k keys: the key that the weights of the state are relative to. The state
/// has the keys before chunk k, or the keys of chunk k and after it. If the weights of the tail rise outwards, the
/// anchor is the outermost of these keys, else the one next to the start of chunk k.
__device__ __forceinline__ int tail_anchor(TailSide side, int k, int n_k, double slope) {
  if (side == TailSide::before) return slope > 0 ? 0 : k * keys_of_chunk - 1;
  return slope > 0 ? n_k - 1 : k * keys_of_chunk;
}

/// weights[t] = exp(-|slope| |first + t|) for key t of a chunk, where `first` is the first key of the chunk minus the
/// anchor. With times_distance each weight is also multiplied by |first + t|. All threads of the block take part. Not
/// inlined, since the double exponential needs many registers.
inline __device__ __attribute__((noinline)) void compute_tail_weights(float* weights, int first, double slope,
                                                                      bool times_distance) {
  for (int t = static_cast<int>(threadIdx.x); t < keys_of_chunk; t += static_cast<int>(blockDim.x)) {
    const double distance = fabs(static_cast<double>(first + t)), weight = exp(-fabs(slope) * distance);
    weights[t] = static_cast<float>(times_distance ? distance * weight : weight);
  }
}

/// Multiplies the features (keys,MmaTileShape::channels) of the chunk of keys from j0 on by the weights of the keys. If
/// key_scales (n_k) is not null, each weight is first multiplied by the scale of its key. All weights are then divided
/// by one power of two, so that the largest one is in [1/2, 1): half could not represent the weighted features of a
/// chunk whose weights are all tiny. Returns the power of two. Before the call each thread must have written its part
/// of the features, and thread t weights[t]. All threads of the block must call it, and must synchronise before they
/// read the features.
template <Storage S, class Feature>
__device__ __forceinline__ float weight_features(Feature* features, float* weights, const float* key_scales,
                                                 const ColumnsOf<S>& U, int j0) {
  constexpr int channels = MmaTileShape::channels;
  static_assert(keys_of_chunk == MmaTileShape::threads);
  const int thread = static_cast<int>(threadIdx.x);
  const bool is_present = U.is_present(j0 + thread);
  weights[thread] *= !is_present ? 0.0f : key_scales ? key_scales[j0 + thread] : 1.0f;
  __syncthreads();
  float largest = 0;
#pragma unroll 4
  for (int k = 0; k < keys_of_chunk; k += 4) {
    const float4 four = *reinterpret_cast<const float4*>(weights + k);
    largest = fmaxf(largest, fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w)));
  }
  const auto [unit, inverse] = power_of_two_scale(magnitude(largest));
  for (int e = thread; e < keys_of_chunk * channels; e += MmaTileShape::threads) {
    Feature& feature = features[e / channels * MmaTileShape::stride + e % channels];
    store(&feature, weights[e / channels] * inverse * to_float(feature));
  }
  return unit;
}

/// The states of a chunked product: weighted sums over chunks of keys,
///
///     before[k] (r,p + 1) = sum over the keys j before chunk k            exp(-|slope| |j - anchor|) B_j^T [V 1]_j
///     after[k]  (r,p + 1) = sum over the keys j of chunk k and after it   exp(-|slope| |j - anchor|) B_j^T [V 1]_j
///
/// If the weights c[j - i] change by a factor exp(slope) with each lag further away, they are c[anchor - i] times the
/// weights in these sums. If they fall, the anchor is the key of the sum next to the start of chunk k; if they rise, it
/// is the first or the last key of all. So neither of the two factors exceeds 1 or the largest weight: none overflows,
/// and one underflows only if the weight does. The sum of one chunk alone has the anchor of the first state that
/// contains it; from there falling weights decay by exp(chunk * slope) from state to state. Without a slope all weights
/// in these sums are 1.
///
/// Sums are float; on tensor cores the values and the weighted features are rounded to Feature. O(n_k r p).
template <Storage S, class Feature = float>
struct ChunkTask : TileTask<S, Feature> {
  static constexpr int chunk = keys_of_chunk;

  float *before, *after;  // [z, chunks + 1, r, p + 1]
  TailSlope slope = {};
  // if not null, `before` and `after` are first moments: each weight is multiplied by |j - anchor|. These are then the
  // states without that factor
  const float *unscaled_before = nullptr, *unscaled_after = nullptr;

  static __host__ __device__ constexpr int chunks_of(int n) { return (n + chunk - 1) / chunk; }
  __host__ __device__ int chunks() const { return chunks_of(this->B.tokens); }
  __host__ __device__ std::ptrdiff_t matrix() const {
    return static_cast<std::ptrdiff_t>(this->B.channels) * (this->U.V.channels + 1);
  }

  /// The key that the weights of before[k] or after[k] are relative to.
  __device__ __forceinline__ int anchor(TailSide side, int k, double of_slope) const {
    return tail_anchor(side, k, this->B.tokens, of_slope);
  }

  /// Stores the sum of chunk k alone in before[k + 1] or after[k], from which running_sums_kernel computes the states.
  __device__ __forceinline__ void put(TailSide side, int z, int k, int f, int column, float sum) const {
    const int columns = this->U.V.channels + 1;
    if (f >= this->B.channels || column >= columns) return;
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(f) * columns + column;
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(z) * (chunks() + 1) + k;
    (side == TailSide::before ? before + matrix() : after)[first * matrix() + at] = sum;
  }
};

/// The chunk that a block sums, and the sides of the band that it stores the sum for. Without a slope the sums of a
/// chunk are the same for both sides, and one block stores both. With a slope the blocks with blockIdx.x < chunks
/// compute the sums of `before`, and the others those of `after`.
struct ChunkOfBlock {
  int chunk;
  bool has_before, has_after;

  __device__ __forceinline__ ChunkOfBlock(int chunks, bool has_slope)
      : chunk(static_cast<int>(blockIdx.x) % chunks),
        has_before(static_cast<int>(blockIdx.x) < chunks),
        has_after(!has_slope || static_cast<int>(blockIdx.x) >= chunks) {}

  template <class Task>
  __device__ __forceinline__ void put(const Task& task, int z, int f, int column, float sum) const {
    if (has_before) task.put(TailSide::before, z, chunk, f, column, sum);
    if (has_after) task.put(TailSide::after, z, chunk, f, column, sum);
  }

  /// Computes the weights of the chunk's keys. All threads of the block take part, and must synchronise before they
  /// read the weights.
  template <class Task>
  __device__ __forceinline__ void compute_weights(const Task& task, int z, float* weights) const {
    const double slope = task.slope(z % task.B.heads);
    const int anchor =
        has_before ? task.anchor(TailSide::before, chunk + 1, slope) : task.anchor(TailSide::after, chunk, slope);
    compute_tail_weights(weights, chunk * Task::chunk - anchor, slope, task.unscaled_before != nullptr);
  }
};

/// Computes the sum of each chunk. The blocks of the first tile of columns also have the column of ones. blockIdx.x:
/// chunk and side (ChunkOfBlock), blockIdx.y: tile of features and tile of columns, blockIdx.z: z.
template <Storage S>
__global__ void __launch_bounds__(TileShape::threads) chunks_kernel(ChunkTask<S> task) {
  start_kernel();
  constexpr int tile = TileShape::tile, stride = TileShape::stride;
  // b (keys,features), u (keys,columns), weights (chunk), ones (keys)
  float *b = shared_memory<float>(), *u = b + tile * stride, *weights = u + tile * stride, *ones = weights + task.chunk;
  const int p = task.U.V.channels, column_tiles = TileShape::column_tiles(p), z = static_cast<int>(blockIdx.z);
  const bool has_slope = !task.slope.is_zero();
  const ChunkOfBlock of_block(task.chunks(), has_slope);
  const int f0 = static_cast<int>(blockIdx.y) / column_tiles * tile,
            p0 = static_cast<int>(blockIdx.y) % column_tiles * tile;
  const int row = static_cast<int>(threadIdx.x) / 16 * 4, column = static_cast<int>(threadIdx.x) % 16 * 4;
  const bool has_ones = p0 + column == 0;
  const float* B = task.B.of(z);
  const ColumnsOf<S> U = task.U.of(z);
  float sum[4][4] = {}, sum_of_ones[4] = {};
  if (has_slope) of_block.compute_weights(task, z, weights);
  for (int t0 = 0; t0 < task.chunk; t0 += tile) {
    const int j0 = of_block.chunk * task.chunk + t0;
    __syncthreads();
    load_tile<tile, tile, TileShape::threads>({b, stride, 1}, task.B, B, j0, f0);
    load_columns_at_once<tile, tile, TileShape::threads>(u, stride, U, j0, p0);
    if (threadIdx.x < tile) ones[threadIdx.x] = U(j0 + static_cast<int>(threadIdx.x), p);
    __syncthreads();
    if (has_slope) {
      for (int e = static_cast<int>(threadIdx.x); e < tile * tile; e += TileShape::threads)
        b[e / tile * stride + e % tile] *= weights[t0 + e / tile];
      __syncthreads();
    }
    for (int k = 0; k < tile; ++k) {
      add_outer(sum, b + k * stride + row, u + k * stride + column);
      if (has_ones)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum_of_ones[i] = fmaf(b[k * stride + row + i], ones[k], sum_of_ones[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (p0 + column + j < p) of_block.put(task, z, f0 + row + i, p0 + column + j, sum[i][j]);
    if (has_ones) of_block.put(task, z, f0 + row + i, p, sum_of_ones[i]);
  }
}

/// chunks_kernel on tensor cores, with the same blockIdx. Each of 4 warps has 16 of the 64 columns of a tile; the first
/// warp of the first tile also has the column of ones. Like the features, the sums are multiplied by feature_scale
/// (scales.cuh).
template <Storage S, class Feature, MmaShape shape>
__global__ void __launch_bounds__(MmaTileShape::threads) tensor_chunks_kernel(ChunkTask<S, Feature> task) {
  start_kernel();
  if constexpr (has_mma<Feature>) {
    using F = Fragments<Feature, shape>;
    constexpr int keys = task.chunk, tile = MmaTileShape::channels, stride = MmaTileShape::stride;
    Feature *b = shared_memory<Feature>(), *u = b + keys * stride;  // (keys,features) (keys,columns)
    float* weights = reinterpret_cast<float*>(u + keys * stride);   // (keys)
    const int p = task.U.V.channels, column_tiles = TileShape::column_tiles(p), z = static_cast<int>(blockIdx.z);
    const ChunkOfBlock of_block(task.chunks(), !task.slope.is_zero());
    const int chunk = of_block.chunk;
    const int f0 = static_cast<int>(blockIdx.y) / column_tiles * tile,
              p0 = static_cast<int>(blockIdx.y) % column_tiles * tile;
    const int depth = min(tile, task.B.channels - f0), column = static_cast<int>(threadIdx.x) / 32 * 16;
    const bool has_ones = p0 + column == 0;
    const ColumnsOf<S> U = task.U.of(z);
    RowLoader<Feature, keys> features, values;
    features.fetch(task.B, task.B.of(z), chunk * keys, f0);
    if (has_aligned_rows(U)) {
      values.fetch(U, chunk * keys, p0);
      values.template put<S>(u);
    } else {
      load_columns(u, stride, U, chunk * keys, keys, p0, tile);
    }
    features.put(b);
    float unit = 1;
    const float* key_scales =
        task.scales.keys ? task.scales.keys + static_cast<std::ptrdiff_t>(z) * task.B.tokens : nullptr;
    if (!task.slope.is_zero()) of_block.compute_weights(task, z, weights);
    if (task.slope.is_zero() && key_scales) weights[threadIdx.x] = 1;
    if (!task.slope.is_zero() || key_scales) unit = weight_features(b, weights, key_scales, U, chunk * keys);
    __syncthreads();
    typename F::Sum sum[tile / 16] = {};
    typename F::RowSum ones[tile / 16] = {};
    for (int k = 0; k < keys; k += 16) {
      const typename F::Right value = F::load_right(u + k * stride + column, stride);
#pragma unroll
      for (int f = 0; f < tile; f += 16) {
        if (f < depth) {
          const typename F::LeftTransposed feature = F::load_left_transposed(b + k * stride + f, stride);
          F::multiply_add(sum[f / 16], feature, value);
          if (has_ones) F::multiply_add(ones[f / 16], feature, F::right_ones());
        }
      }
    }
#pragma unroll
    for (int f = 0; f < tile; f += 16)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = f0 + f + F::row() + h * F::row_step;
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int k = p0 + column + F::column() + n * F::column_step + e;
            if (k < p) of_block.put(task, z, row, k, unit * sum[f / 16].x[n][2 * h + e]);
          }
        if (has_ones && F::column() == 0) of_block.put(task, z, row, p, unit * ones[f / 16].of(h));
      }
  }
}

/// exp(chunk * slope) if the weights of the tail fall outwards; 1 without a slope, or if they rise.
__device__ __forceinline__ Decay<float> chunk_decay(int chunk, double slope) {
  if (slope >= 0) return {1, 0};
  return decay_of<float>(chunk * slope);
}

/// The number of threads of a block of running_sums_kernel. Each thread waits for loads most of the time, and one
/// matrix has few entries, so that small blocks, on more multiprocessors, are faster.
constexpr int running_sums_threads = 32;

/// Computes the states s_k from the sums x_k of chunks, forward for `before` and backward for `after`, by
/// Kahan-compensated summation (Kahan 1965): s_k = exp(chunk * slope) s_{k-1} + x_k. If `unscaled_before` is not null,
/// it computes first moments s'_k from those of chunks, x'_k. Their factors |j - anchor| grow by `chunk` from chunk to
/// chunk: s'_k = exp(chunk * slope) (s'_{k-1} + chunk * s_{k-1}) + x'_k. blockIdx.x and threadIdx.x: entry of a matrix,
/// blockIdx.y: 0 for `before`, 1 for `after`, blockIdx.z: z.
template <Storage S, class Feature>
__global__ void __launch_bounds__(running_sums_threads, 1) running_sums_kernel(ChunkTask<S, Feature> task) {
  start_kernel();
  const std::ptrdiff_t entry = static_cast<std::ptrdiff_t>(blockIdx.x) * blockDim.x + threadIdx.x, step = task.matrix();
  if (entry >= step) return;
  const bool forward = blockIdx.y == 0;
  const int chunks = task.chunks();
  const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(blockIdx.z) * (chunks + 1) * step + entry;
  float* sums = (forward ? task.before : task.after) + first;
  const double slope = task.slope(static_cast<int>(blockIdx.z) % task.B.heads);
  const Decay<float> decay = chunk_decay(task.chunk, slope);
  const float* unscaled = forward ? task.unscaled_before : task.unscaled_after;
  const float more = slope > 0 ? 0.0f : static_cast<float>(task.chunk) * (decay.whole + decay.part);
  float sum = 0, compensation = 0;
  sums[(forward ? 0 : chunks) * step] = 0;
  const auto place = [&](int k) { return (forward ? k + 1 : chunks - 1 - k) * step; };
  // loads a batch of chunks at once, since a load would otherwise wait for the store before it
  constexpr int batch = 32;
  for (int k0 = 0; k0 < chunks; k0 += batch) {
    float of_chunk[batch];
#pragma unroll
    for (int k = 0; k < batch; ++k) of_chunk[k] = k0 + k < chunks ? sums[place(k0 + k)] : 0.0f;
    if (unscaled && more > 0) {
#pragma unroll
      for (int k = 0; k < batch; ++k)
        if (k0 + k < chunks) of_chunk[k] = fmaf(more, unscaled[first + place(k0 + k - 1)], of_chunk[k]);
    }
#pragma unroll
    for (int k = 0; k < batch; ++k) {
      // without a slope: sum + (of_chunk + compensation)
      const float all = decay.whole == 0 ? 0.0f : compensation, kept = decay.whole == 0 ? 0.0f : sum;
      const float small = decay.part == 0 ? 0.0f : decay.part * (sum + compensation);
      sum = fast_two_sum(kept, of_chunk[k] + small + all, compensation);
      if (k0 + k < chunks) sums[place(k0 + k)] = sum;
    }
  }
}

/// Queues the computation of `before` and `after` for `z` matrices. `shape` is the instruction that multiplies 16-bit
/// features.
template <Storage S, class Feature, MmaShape shape = MmaShape::native>
void queue_chunks(const ChunkTask<S, Feature>& task, int z, cudaStream_t stream) {
  const int r = task.B.channels, p = task.U.V.channels;
  const unsigned all = static_cast<unsigned>(z), sides = task.slope.is_zero() ? 1 : 2,
                 blocks = sides * static_cast<unsigned>(task.chunks());
  constexpr std::size_t weights = sizeof(float) * keys_of_chunk;
  const auto tiles = static_cast<unsigned>(TileShape::tiles(r) * TileShape::column_tiles(p));
  if (blocks > 0) {
    if constexpr (std::is_same_v<Feature, float>)
      launch("chunks", chunks_kernel<S>, dim3{blocks, tiles, all}, dim3{TileShape::threads, 1, 1},
             sizeof(float) * TileShape::tile * (2 * TileShape::stride + 1) + weights, stream, task);
    else
      launch("chunks", tensor_chunks_kernel<S, Feature, shape>, dim3{blocks, tiles, all},
             dim3{MmaTileShape::threads, 1, 1}, MmaTileShape::bytes(2 * task.chunk) + weights, stream, task);
  }
  constexpr int threads = running_sums_threads;
  launch("running sums", running_sums_kernel<S, Feature>, dim3{blocks_of<threads>(task.matrix()), 2, all},
         dim3{threads, 1, 1}, 0, stream, task);
}

}  // namespace nprf::cuda
