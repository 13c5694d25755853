// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/device/value_columns.cuh"

namespace nprf::cuda {

/// Norms of one signal x: |x|_1, the square of |x|_2, |x|_max.
struct Norms {
  double one, square, max;
};

/// The norms of the signals x_f = B_f o u of chunks of keys, where u is 1, or the largest |V_j.| of each key; and what
/// the values measure.
struct SignalNorms {
  static constexpr int chunk = 256, group = 32;  // keys

  float* parts;   // [z, chunk, u, norm, r]: max, and the other two relative to it; sizes relative to their largest
  float* tops;    // [z, chunk]: the largest |v|
  float* sizes;   // [z, n_k]: of each key
  float* groups;  // [z, chunks, chunk / group]: of each group of keys
  int* largest;   // [z]: of all, as a magnitude; an infinite one where B or V has something that is no number
  int chunks, r, n_k;

  static int chunks_of(int n_k) { return (n_k + chunk - 1) / chunk; }

  static SignalNorms take(Scratch& scratch, int z, int n_k, int r, int* largest) {
    const int chunks = chunks_of(n_k);
    SignalNorms norms{};
    norms.parts = scratch.take<float>(z, chunks, 6, r);
    norms.tops = scratch.take<float>(z, chunks);
    norms.sizes = scratch.take<float>(z, n_k);
    norms.groups = scratch.take<float>(z, chunks, chunk / group);
    norms.largest = largest;
    norms.chunks = chunks, norms.r = r, norms.n_k = n_k;
    return norms;
  }

  __device__ __forceinline__ float* part(int z, int at, bool sized) const {
    return parts + ((static_cast<std::ptrdiff_t>(z) * chunks + at) * 2 + sized) * 3 * r;
  }

  /// Of feature f over all keys, added up in their order; sizes relative to `unit`.
  __device__ Norms of(int z, int f, bool sized, double unit) const {
    Norms all{0, 0, 0};
    for (int k = 0; k < chunks; ++k) {
      const float* x = part(z, k, sized) + f;
      const double top = sized ? tops[static_cast<std::ptrdiff_t>(z) * chunks + k] / unit : 1, max = top * x[0];
      all.max = fmax(all.max, max);
      all.one += max * x[r];
      all.square += max * max * x[2 * r];
    }
    return all;
  }

  /// The largest |v| of the keys first..end-1: of whole chunks, of whole groups beside them, and of the keys at both
  /// ends.
  __device__ float largest_of(int z, int first, int end) const {
    const auto up = [](int x, int step) { return (x + step - 1) / step * step; };
    const int a = min(end, up(first, group)), d = max(a, end / group * group);
    const int b = min(d, up(a, chunk)), c = max(b, d / chunk * chunk);
    const float* of_chunk = tops + static_cast<std::ptrdiff_t>(z) * chunks;
    const float* of_group = groups + static_cast<std::ptrdiff_t>(z) * chunks * (chunk / group);
    const float* of_key = sizes + static_cast<std::ptrdiff_t>(z) * n_k;
    float top = 0;
    const auto scan = [&](const float* x, int from, int to) {
#pragma unroll 4
      for (int k = from; k < to; ++k) top = fmaxf(top, x[k]);
    };
    scan(of_key, first, a);
    scan(of_group, a / group, b / group);
    scan(of_chunk, b / chunk, c / chunk);
    scan(of_group, c / group, d / group);
    scan(of_key, d, end);
    return top;
  }
};

template <Storage S>
struct SignalTask {
  Operand<float> B;  // (n_k,r)
  Columns<S> U;      // (n_k,p + 1)
  SignalNorms out;
};

// the norms of a warp's x, into to[0], to[step] and to[2 step]
template <int count>
__device__ __forceinline__ void measure(const float (&x)[count], float* to, int step) {
  float top = 0, one = 0, square = 0;
#pragma unroll
  for (int e = 0; e < count; ++e) top = fmaxf(top, x[e]);
  top = over_warp(top, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
  for (int e = 0; e < count; ++e) {
    const float part = top > 0 ? x[e] / top : 0.0f;
    one += part;
    square = fmaf(part, part, square);
  }
  const auto sum = [](float a, float b) { return a + b; };
  one = over_warp(one, sum);
  square = over_warp(square, sum);
  if (threadIdx.x % 32 != 0) return;
  to[0] = top;
  to[step] = one;
  to[2 * step] = square;
}

/// Blocks (chunks, z).
template <Storage S>
__global__ void __launch_bounds__(SignalNorms::chunk) signal_norms_kernel(SignalTask<S> task) {
  constexpr int chunk = SignalNorms::chunk, group = SignalNorms::group, warps = chunk / 32;
  int *size = shared_memory<int>(), *tops = size + chunk;  // magnitudes: (chunk) (warps)
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int at = static_cast<int>(blockIdx.x), z = static_cast<int>(blockIdx.y), j0 = at * chunk;
  const SignalNorms& out = task.out;
  const ColumnsOf<S> U = task.U.of(z);
  const auto larger = [](int a, int b) { return max(a, b); };

  // a warp has a group of keys, one after another
  static_assert(group == 32 && chunk == warps * group);
  for (int t = warp * group; t < (warp + 1) * group; ++t) {
    int top = 0;
    for (int c = lane; c < U.p; c += 32) top = max(top, magnitude(U(j0 + t, c)));
    top = over_warp(top, larger);
    if (lane == 0) size[t] = top;
  }
  __syncwarp();
  const int own = size[warp * group + lane], top_of_group = over_warp(own, larger);
  const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(z) * out.chunks + at;
  if (lane == 0) {
    tops[warp] = top_of_group;
    out.groups[first * warps + warp] = __int_as_float(top_of_group);
  }
  if (j0 + warp * group + lane < out.n_k)
    out.sizes[static_cast<std::ptrdiff_t>(z) * out.n_k + j0 + warp * group + lane] = __int_as_float(own);
  __syncthreads();
  int top = 0;
  for (int k = 0; k < warps; ++k) top = max(top, tops[k]);
  if (threadIdx.x == 0) {
    out.tops[first] = __int_as_float(top);
    atomicMax(out.largest + z, top);
  }

  const float scale = __int_as_float(top);
  const float* B = task.B.of(z);
  bool wild = false;
  for (int f = warp; f < out.r; f += warps) {
    float ones[warps], sized[warps];
#pragma unroll
    for (int e = 0; e < warps; ++e) {
      const int t = e * 32 + lane, j = j0 + t;
      ones[e] = j < out.n_k ? fabsf(B[f * task.B.channel_stride + j * task.B.token_stride]) : 0.0f;
      sized[e] = top > 0 ? ones[e] * (__int_as_float(size[t]) / scale) : 0.0f;
      wild |= !(ones[e] <= largest_float);
    }
    measure(ones, out.part(z, at, false) + f, out.r);
    measure(sized, out.part(z, at, true) + f, out.r);
  }
  if (wild) atomicMax(out.largest + z, infinite_magnitude);
}

template <Storage S>
void queue_signal_norms(const SignalTask<S>& task, int z, cudaStream_t stream) {
  if (z == 0 || task.out.chunks == 0) return;
  constexpr int chunk = SignalNorms::chunk;
  launch("norms of signals", signal_norms_kernel<S>,
         dim3{static_cast<unsigned>(task.out.chunks), static_cast<unsigned>(z), 1}, dim3{chunk, 1, 1},
         sizeof(int) * (chunk + chunk / 32), stream, task);
}

}  // namespace nprf::cuda
