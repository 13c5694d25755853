// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/launch.cuh"

namespace nprf::cuda {

/// A tile of tokens (channels,tokens) in shared memory: `groups` threads share a token, and channels are `stride`
/// scalars apart. Each thread computes `at_once` features at a time.
struct FeatureShape {
  static constexpr int tokens = 64, groups = 4, threads = tokens * groups, at_once = 4;
  static constexpr int stride = tokens + 1;

  /// The bytes of some tiles and of the scratch memory of reductions.
  static std::size_t shared(int d_padded, int tiles = 1) {
    return sizeof(float) * static_cast<std::size_t>(stride * d_padded * tiles + (groups + 1) * tokens);
  }
};

/// The reduction by f over the groups of threads that share a token; all threads of the block must call it.
template <class F>
__device__ __forceinline__ float over_groups(float* scratch, float x, F&& f) {
  const int t = static_cast<int>(threadIdx.x) % FeatureShape::tokens,
            g = static_cast<int>(threadIdx.x) / FeatureShape::tokens;
  __syncthreads();
  scratch[g * FeatureShape::tokens + t] = x;
  __syncthreads();
  float all = scratch[t];
  for (int k = 1; k < FeatureShape::groups; ++k) all = f(all, scratch[k * FeatureShape::tokens + t]);
  return all;
}

/// z[i] = w_{first + i}.(x - mean) for the rows w (count,d_padded) from `first` on, of a token whose channels are
/// FeatureShape::stride apart. A null mean is zero.
__device__ __forceinline__ void multiply_rows(const float* w, int count, int d_padded, const float* x,
                                              const float* mean, int first, float (&z)[FeatureShape::at_once]) {
  for (int k = 0; k < d_padded; k += 4) {
    float part[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) part[e] = x[(k + e) * FeatureShape::stride] - (mean ? mean[k + e] : 0.0f);
#pragma unroll
    for (int i = 0; i < FeatureShape::at_once; ++i) {
      if (first + i >= count) break;
      const float4 row = *reinterpret_cast<const float4*>(w + static_cast<std::ptrdiff_t>(first + i) * d_padded + k);
      z[i] = fmaf(part[0], row.x, fmaf(part[1], row.y, fmaf(part[2], row.z, fmaf(part[3], row.w, z[i]))));
    }
  }
}

}  // namespace nprf::cuda
