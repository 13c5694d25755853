// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstring>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/reductions.cuh"
#include "nprf/cuda/device/strided_operand.cuh"

namespace nprf::cuda {

/// One token, which all threads of a block share. Other shapes of tiles of tokens in shared memory have the same
/// members: `groups` threads share a token and compute `at_once` features each at a time; channel k of token t is at
/// index at(k, t).
struct OneTokenShape {
  static constexpr int tokens = 1, groups = 256, threads = groups, at_once = 1;
  static constexpr int stride = 1, warps = threads / 32;

  __host__ __device__ static constexpr int at(int k, int) { return k; }
};

/// tile[Shape::at(k, t)] = channel k < d_padded of token t0 + t of x, the matrix at `data`, zero from channel d on.
/// Beyond the last token the tile has copies of it. All threads of the block take part. Where rows are aligned, so that
/// d is d_padded, a warp loads 32 channels of some tokens at a time.
template <class Shape, class S>
__device__ __forceinline__ void load_tokens(float* tile, const Operand<S>& x, const S* data, int t0, int d_padded) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto row = [&](int t) { return data + min(t0 + t, x.tokens - 1) * x.token_stride; };
  if (!x.has_aligned_rows) {
    for (int e = thread; e < Shape::tokens * d_padded; e += Shape::threads) {
      const int t = e / d_padded, k = e % d_padded;
      tile[Shape::at(k, t)] = k < x.channels ? to_float(row(t)[k * x.channel_stride]) : 0.0f;
    }
    return;
  }
  constexpr int width = 16 / sizeof(S), lanes = 32 / width, step = Shape::threads / lanes;
  const int k0 = thread % lanes * width;
  for (int t = thread / lanes; t < Shape::tokens; t += step)
    for (int k = k0; k < x.channels; k += 32) {
      const uint4 all = __ldg(reinterpret_cast<const uint4*>(row(t) + k));
      S values[width];
      std::memcpy(values, &all, sizeof(all));
#pragma unroll
      for (int e = 0; e < width; ++e) tile[Shape::at(k, t) + Shape::at(e, 0)] = to_float(values[e]);
    }
}

/// Reduces x by f over the threads that share a token, and returns the result to each of them. All threads of the block
/// must call it. The scratch memory has a float for each thread, or for each warp if there is one token.
template <class Shape, class F>
__device__ __forceinline__ float over_groups(float* scratch, float x, F&& f) {
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (Shape::tokens == 1) {
    x = over_warp(x, f);
    __syncthreads();
    if (thread % 32 == 0) scratch[thread / 32] = x;
    __syncthreads();
    float all = scratch[0];
    for (int k = 1; k < Shape::warps; ++k) all = f(all, scratch[k]);
    return all;
  } else {
    const int t = thread % Shape::tokens, g = thread / Shape::tokens;
    __syncthreads();
    scratch[g * Shape::tokens + t] = x;
    __syncthreads();
    float all = scratch[t];
    for (int k = 1; k < Shape::groups; ++k) all = f(all, scratch[k * Shape::tokens + t]);
    return all;
  }
}

/// Adds w_{first + i}.(x - mean) to z[i], for the rows first + i of w (count,d_padded) that exist. x is where a token
/// of a tile begins. A null mean is zero.
template <class Shape>
__device__ __forceinline__ void multiply_rows(const float* w, int count, int d_padded, const float* x,
                                              const float* mean, int first, float (&z)[Shape::at_once]) {
  for (int k = 0; k < d_padded; k += 4) {
    float part[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) part[e] = x[Shape::at(k + e, 0)] - (mean ? mean[k + e] : 0.0f);
#pragma unroll
    for (int i = 0; i < Shape::at_once; ++i) {
      if (first + i >= count) break;
      const float4 row = *reinterpret_cast<const float4*>(w + static_cast<std::ptrdiff_t>(first + i) * d_padded + k);
      z[i] = fmaf(part[0], row.x, fmaf(part[1], row.y, fmaf(part[2], row.z, fmaf(part[3], row.w, z[i]))));
    }
  }
}

/// y[i] = w_i.(x - mean) for all rows of w (count,d_padded) and one token x. A null mean is zero. All threads of a
/// block of OneTokenShape must call it, and synchronise before they read y. Eight lanes share a row.
__device__ __forceinline__ void multiply_rows(const float* w, int count, int d_padded, const float* x,
                                              const float* mean, float* y) {
  constexpr int lanes = 8, rows = OneTokenShape::threads / lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes, row = static_cast<int>(threadIdx.x) / lanes;
  for (int first = 0; first < count; first += rows) {
    const float* w_i = w + static_cast<std::ptrdiff_t>(min(first + row, count - 1)) * d_padded;
    float sum = 0;
#pragma unroll 2
    for (int k = 4 * lane; k < d_padded; k += 4 * lanes) {
      const float4 some = *reinterpret_cast<const float4*>(w_i + k);
      const auto part = [&](int e) { return x[k + e] - (mean ? mean[k + e] : 0.0f); };
      sum = fmaf(part(0), some.x, fmaf(part(1), some.y, fmaf(part(2), some.z, fmaf(part(3), some.w, sum))));
    }
    sum = over_warp<lanes>(sum, Sum());
    if (lane == 0 && first + row < count) y[first + row] = sum;
  }
}

}  // namespace nprf::cuda
