// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/reductions.cuh"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/device/value_columns.cuh"
#include "nprf/cuda/position/lag_weights.cuh"
#include "nprf/cuda/position/toeplitz_weights.cuh"
#include "nprf/toeplitz/fft/convolution_error.hpp"

namespace nprf::cuda {

/// Norms of the signals x_f = B_f o u over chunks of keys, where u_j is 1, or the largest |v| of key j; and maxima of
/// |v|, where v are the entries of V.
struct SignalNorms {
  static constexpr int chunk = 256, group = 32, groups = chunk / group;  // keys of each; groups of a chunk

  // [z, chunk, u, norm, r]: for each of the two u the norms max |x|, |x|_1 / max |x| and |x|_2^2 / max |x|^2, where the
  // second u is divided by chunk_max
  float* chunk_norms;
  float* chunk_max;  // [z, chunk]: the largest |v| of each chunk
  float* key_max;    // [z, n_k]: the largest |v| of each key
  float* group_max;  // [z, chunk, groups]: the largest |v| of each group
  int* largest;      // [z]: magnitude of the largest |v|; infinite if B or V is not finite
  int chunks, r, n_k;

  static int chunks_of(int n_k) { return (n_k + chunk - 1) / chunk; }

  static SignalNorms take(Scratch& scratch, int z, int n_k, int r, int* largest) {
    const int chunks = chunks_of(n_k);
    SignalNorms norms{};
    norms.chunk_norms = scratch.take<float>(z, chunks, 6, r);
    norms.chunk_max = scratch.take<float>(z, chunks);
    norms.key_max = scratch.take<float>(z, n_k);
    norms.group_max = scratch.take<float>(z, chunks, groups);
    norms.largest = largest;
    norms.chunks = chunks, norms.r = r, norms.n_k = n_k;
    return norms;
  }

  __device__ __forceinline__ float* norms_of_chunk(int z, int at, bool with_values) const {
    return chunk_norms + ((static_cast<std::ptrdiff_t>(z) * chunks + at) * 2 + with_values) * 3 * r;
  }

  /// The sums from which the norms of x_f follow, over the keys of the chunks first, first + step, ..., added in their
  /// order. If with_values, u_j is the largest |v| of key j, divided by `scale`; else u_j = 1.
  __device__ toeplitz::NormSums of(int z, int f, bool with_values, double scale, int first = 0, int step = 1) const {
    toeplitz::NormSums all;
    for (int k = first; k < chunks; k += step) {
      const float* x = norms_of_chunk(z, k, with_values) + f;
      const double u_max = with_values ? chunk_max[static_cast<std::ptrdiff_t>(z) * chunks + k] / scale : 1,
                   max = u_max * x[0];
      all.add({x[r], x[2 * r], 1}, max);
    }
    return all;
  }

  /// The largest |v| of the keys first..end-1, from the maxima of whole chunks, of whole groups and of single keys.
  __device__ float largest_value(int z, int first, int end) const {
    const auto up = [](int x, int step) { return (x + step - 1) / step * step; };
    const int a = min(end, up(first, group)), d = max(a, end / group * group);
    const int b = min(d, up(a, chunk)), c = max(b, d / chunk * chunk);
    const float* of_chunk = chunk_max + static_cast<std::ptrdiff_t>(z) * chunks;
    const float* of_group = group_max + static_cast<std::ptrdiff_t>(z) * chunks * groups;
    const float* of_key = key_max + static_cast<std::ptrdiff_t>(z) * n_k;
    float largest_abs = 0;
    const auto scan = [&](const float* x, int from, int to) {
#pragma unroll 4
      for (int k = from; k < to; ++k) largest_abs = fmaxf(largest_abs, x[k]);
    };
    scan(of_key, first, a);
    scan(of_group, a / group, b / group);
    scan(of_chunk, b / chunk, c / chunk);
    scan(of_group, c / group, d / group);
    scan(of_key, d, end);
    return largest_abs;
  }
};

template <Storage S>
struct SignalTask {
  Operand<float> B;  // (n_k,r)
  Columns<S> U;      // (n_k,p + 1)
  SignalNorms out;
};

// stores the norms of the entries x >= 0 of a warp, in the order of chunk_norms, in to[0], to[step] and to[2 * step]
template <int count>
__device__ __forceinline__ void measure(const float (&x)[count], float* to, int step) {
  float largest_abs = 0, one = 0, square = 0;
#pragma unroll
  for (int e = 0; e < count; ++e) largest_abs = fmaxf(largest_abs, x[e]);
  largest_abs = over_warp(largest_abs, Largest());
#pragma unroll
  for (int e = 0; e < count; ++e) {
    const float relative = largest_abs > 0 ? x[e] / largest_abs : 0.0f;
    one += relative;
    square = fmaf(relative, relative, square);
  }
  one = over_warp(one, Sum());
  square = over_warp(square, Sum());
  if (threadIdx.x % 32 != 0) return;
  to[0] = largest_abs;
  to[step] = one;
  to[2 * step] = square;
}

/// Computes the largest |v| of each key and of each group of keys. blockIdx.x: group, blockIdx.y: z.
template <Storage S>
__global__ void __launch_bounds__(SignalNorms::chunk) value_maxima_kernel(SignalTask<S> task) {
  start_kernel();
  constexpr int group = SignalNorms::group, warps = SignalNorms::chunk / 32, at_once = group / warps;
  int* key_max = shared_memory<int>();  // magnitude of the largest |v| of each key of a group
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int j0 = static_cast<int>(blockIdx.x) * group, z = static_cast<int>(blockIdx.y);
  const SignalNorms& out = task.out;
  const ColumnsOf<S> U = task.U.of(z);

  int largest_abs[at_once] = {};  // of the keys of a warp, whose loads are in flight together
  for (int c = lane; c < U.p; c += 32) {
    typename ColumnsOf<S>::Loaded entries[at_once];
#pragma unroll
    for (int e = 0; e < at_once; ++e) entries[e] = U.load(j0 + warp * at_once + e, c);
#pragma unroll
    for (int e = 0; e < at_once; ++e) largest_abs[e] = max(largest_abs[e], magnitude(U.entry_of(entries[e], c)));
  }
#pragma unroll
  for (int e = 0; e < at_once; ++e) {
    largest_abs[e] = over_warp(largest_abs[e], Largest());
    if (lane == 0) key_max[warp * at_once + e] = largest_abs[e];
  }
  __syncthreads();
  if (warp > 0) return;
  if (j0 + lane < out.n_k)
    out.key_max[static_cast<std::ptrdiff_t>(z) * out.n_k + j0 + lane] = __int_as_float(key_max[lane]);
  const int max_of_group = over_warp(key_max[lane], Largest());
  if (lane == 0)
    out.group_max[static_cast<std::ptrdiff_t>(z) * out.chunks * SignalNorms::groups + blockIdx.x] =
        __int_as_float(max_of_group);
}

/// Computes the norms of the signals over each chunk, from the maxima of its keys and groups. Each warp has one signal.
/// blockIdx.x: chunk, blockIdx.y: tile of signals, blockIdx.z: z.
template <Storage S>
__global__ void __launch_bounds__(SignalNorms::chunk) signal_norms_kernel(SignalTask<S> task) {
  start_kernel();
  constexpr int chunk = SignalNorms::chunk, groups = SignalNorms::groups, warps = chunk / 32, turns = chunk / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int at = static_cast<int>(blockIdx.x), z = static_cast<int>(blockIdx.z), j0 = at * chunk;
  const int f = static_cast<int>(blockIdx.y) * warps + warp;
  const SignalNorms& out = task.out;
  const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(z) * out.chunks + at;
  int largest_abs = 0;  // magnitude, so that a NaN is the largest
#pragma unroll
  for (int k = 0; k < groups; ++k) largest_abs = max(largest_abs, __float_as_int(out.group_max[first * groups + k]));
  const float scale = __int_as_float(largest_abs);
  if (blockIdx.y == 0 && threadIdx.x == 0) {
    out.chunk_max[first] = scale;
    atomicMax(out.largest + z, largest_abs);
  }
  if (f >= out.r) return;
  const float *B = task.B.of(z) + f * task.B.channel_stride,
              *key_max = out.key_max + static_cast<std::ptrdiff_t>(z) * out.n_k;
  float ones[turns], with_values[turns];
#pragma unroll
  for (int e = 0; e < turns; ++e) {
    const int j = j0 + e * 32 + lane;
    ones[e] = j < out.n_k ? fabsf(B[j * task.B.token_stride]) : 0.0f;
    with_values[e] = j < out.n_k ? key_max[j] : 0.0f;
  }
  bool has_nonfinite = false;
#pragma unroll
  for (int e = 0; e < turns; ++e) {
    has_nonfinite |= !(ones[e] <= largest_float);
    with_values[e] = scale > 0 ? ones[e] * (with_values[e] / scale) : 0.0f;
  }
  measure(ones, out.norms_of_chunk(z, at, false) + f, out.r);
  measure(with_values, out.norms_of_chunk(z, at, true) + f, out.r);
  if (has_nonfinite) atomicMax(out.largest + z, infinite_magnitude);
}

template <Storage S>
void queue_signal_norms(const SignalTask<S>& task, int z, cudaStream_t stream) {
  if (z == 0 || task.out.chunks == 0) return;
  constexpr int chunk = SignalNorms::chunk;
  const dim3 block{chunk, 1, 1};
  const auto chunks = static_cast<unsigned>(task.out.chunks), all = static_cast<unsigned>(z);
  launch("maxima of values", value_maxima_kernel<S>, dim3{chunks * SignalNorms::groups, all, 1}, block,
         sizeof(int) * SignalNorms::group, stream, task);
  launch("norms of signals", signal_norms_kernel<S>, dim3{chunks, blocks_of<chunk / 32>(task.out.r), all}, block, 0,
         stream, task);
}

/// The norms of the weights of consecutive lags, and the longest run of consecutive nonzero weights.
struct WeightNorms {
  toeplitz::NormSums sums;
  int size, leading, trailing;  // number of weights, of nonzero ones before the first zero, and after the last zero
  int longest_run, longest_run_first;  // its length, and the index of its first weight

  /// The norms of the single weight c. It counts as nonzero in runs if `attended`.
  static __device__ __forceinline__ WeightNorms of(float c, bool attended) {
    const int nonzero = attended ? 1 : 0;
    WeightNorms norms{{}, 1, nonzero, nonzero, nonzero, 0};
    norms.sums.add(static_cast<double>(c));
    return norms;
  }

  /// The norms of the weights of a, followed by those of b.
  static __device__ WeightNorms join(const WeightNorms& a, const WeightNorms& b) {
    WeightNorms c{a.sums, a.size + b.size, a.leading, b.trailing, a.longest_run, a.longest_run_first};
    c.sums.add(b.sums);
    if (a.leading == a.size) c.leading += b.leading;
    if (b.trailing == b.size) c.trailing += a.trailing;
    if (a.trailing + b.leading > c.longest_run)
      c.longest_run = a.trailing + b.leading, c.longest_run_first = a.size - a.trailing;
    if (b.longest_run > c.longest_run)
      c.longest_run = b.longest_run, c.longest_run_first = a.size + b.longest_run_first;
    return c;
  }
};

struct WeightNormsTask {
  DeviceWeights c;
  WeightNorms* norms;    // [head], of the attended lags
  DeviceBias bias = {};  // the biases of the weights c. Near lags that are attended count as nonzero in runs
};

/// Computes the norms. blockIdx.x: head.
template <int threads>
__global__ void __launch_bounds__(threads) weight_norms_kernel(WeightNormsTask task) {
  start_kernel();
  auto* norms = shared_memory<WeightNorms>();
  const int t = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.x), first = task.c.first_lag();
  const int size = max(0, task.c.last_lag() - first + 1), share = (size + threads - 1) / threads;
  WeightNorms of_thread{};
  for (int k = t * share; k < min(size, (t + 1) * share); ++k) {
    const float c = task.c(head, first + k);
    const int at = first + k - task.c.first;
    const bool attended = c != 0 || (task.bias.is_near(at) && task.bias(head, at) > minus_infinity);
    of_thread = WeightNorms::join(of_thread, WeightNorms::of(c, attended));
  }
  norms[t] = of_thread;
  for (int step = 1; step < threads; step *= 2) {
    __syncthreads();
    if (t % (2 * step) == 0) norms[t] = WeightNorms::join(norms[t], norms[t + step]);
  }
  if (t == 0) task.norms[head] = norms[0];
}

inline void queue_weight_norms(const WeightNormsTask& task, int heads, cudaStream_t stream) {
  constexpr int threads = 256;
  launch("norms of weights", weight_norms_kernel<threads>, dim3{static_cast<unsigned>(heads), 1, 1},
         dim3{threads, 1, 1}, threads * sizeof(WeightNorms), stream, task);
}

}  // namespace nprf::cuda
