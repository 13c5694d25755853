// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/launch.cuh"
#include "nprf/cuda/model.hpp"
#include "nprf/cuda/operand.cuh"

namespace nprf::cuda {

/// The features of queries or of keys, normalised on the way:
///
///     phi [z, r, stride]   phi(x') of x' = radius x / |x|, or of x' = scale x
///
/// queries: the largest feature of each row is 1, or its own factor is left out. keys: all of one z are divided by
/// exp(shift), or by the largest of them. O(n d m) time, no scratch memory but tops.
template <Storage S>
struct FeatureTask {
  Operand<S> x;             // (n,d)
  const bool* mask;         // [sequence, n], or null: false is padding, whose features are zero
  const float* w;           // [head, m, d_padded]
  std::ptrdiff_t w_stride;  // from head to head: 0 for one projection for all
  FeatureKind kind;
  int m, d_padded;      // d_padded: d in fours
  float radius, scale;  // radius 0: scale instead
  bool queries;
  float shift;  // of keys, if their exponents are known to be near it
  int* tops;    // [z]: the largest exponent, as ordered(); null: `shift` is used
  float* phi;
  int stride;  // n at least: zeros from n on
};

/// An int for each float, in the same order.
__device__ __forceinline__ int ordered(float x) {
  const int bits = __float_as_int(x);
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}
__device__ __forceinline__ float from_ordered(int x) { return __int_as_float(x < 0 ? x ^ 0x7fffffff : x); }

struct FeatureShape {
  static constexpr int tokens = 64, groups = 4, threads = tokens * groups, at_once = 4;
  static constexpr int stride = tokens + 1;

  static std::size_t shared(int d_padded) {
    return sizeof(float) * static_cast<std::size_t>(stride * d_padded + (groups + 1) * tokens);
  }
};

// sum over the groups that share a token; all threads of the block come here
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

/// x' = s x in place, with s = radius / |x| free of overflow and underflow in |x|^2; |x'|^2 / 2 of the thread's token.
template <Storage S>
__device__ __forceinline__ float normalise(const FeatureTask<S>& task, float* x, float* scratch) {
  using Shape = FeatureShape;
  constexpr int stride = Shape::stride;
  const int t = static_cast<int>(threadIdx.x) % Shape::tokens, g = static_cast<int>(threadIdx.x) / Shape::tokens;
  const int d = task.x.channels;
  float unit = 1, square = 0;
  if (task.radius > 0) {
    float largest = 0;
    for (int k = g; k < d; k += Shape::groups) largest = fmaxf(largest, fabsf(x[k * stride + t]));
    largest = over_groups(scratch, largest, [](float a, float b) { return fmaxf(a, b); });
    if (largest > 0) unit = largest;
  }
  for (int k = g; k < d; k += Shape::groups) {
    const float part = x[k * stride + t] / unit;
    square = fmaf(part, part, square);
  }
  square = over_groups(scratch, square, [](float a, float b) { return a + b; });
  float s = task.scale;
  if (task.radius > 0) {
    const float norm = sqrtf(square);
    s = norm == 0 ? 0.0f : fminf(task.radius / norm / unit, largest_float);
  }
  for (int k = g; k < d; k += Shape::groups) x[k * stride + t] *= s;
  if (task.radius > 0) return square == 0 ? 0.0f : 0.5f * task.radius * task.radius;
  return 0.5f * square * (s * s);
}

/// sum[f] = w_{f0 + f}.x' of a token, whose channels are Shape::stride apart.
template <Storage S>
__device__ __forceinline__ void project(const FeatureTask<S>& task, const float* w, const float* x, int f0,
                                        float (&sum)[FeatureShape::at_once]) {
  for (int k = 0; k < task.d_padded; k += 4) {
    float part[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) part[e] = x[(k + e) * FeatureShape::stride];
#pragma unroll
    for (int f = 0; f < FeatureShape::at_once; ++f) {
      if (f0 + f >= task.m) break;
      const float4 row = *reinterpret_cast<const float4*>(w + static_cast<std::ptrdiff_t>(f0 + f) * task.d_padded + k);
      sum[f] = fmaf(part[0], row.x, fmaf(part[1], row.y, fmaf(part[2], row.z, fmaf(part[3], row.w, sum[f]))));
    }
  }
}

/// Blocks (tiles of tokens, z). With tops_only, no more than the largest exponents of keys.
template <Storage S, bool tops_only>
__global__ void __launch_bounds__(FeatureShape::threads) features_kernel(FeatureTask<S> task) {
  using Shape = FeatureShape;
  constexpr int tokens = Shape::tokens, stride = Shape::stride, at_once = Shape::at_once;
  float *x = shared_memory<float>(), *scratch = x + stride * task.d_padded;
  const int z = static_cast<int>(blockIdx.y), t0 = static_cast<int>(blockIdx.x) * tokens, head = z % task.x.heads;
  const int t = static_cast<int>(threadIdx.x) % tokens, g = static_cast<int>(threadIdx.x) / tokens;
  const int d = task.x.channels, n = task.x.tokens;
  load_tile(x, 1, stride, task.x, task.x.of(z), t0, tokens, 0, task.d_padded);

  __syncthreads();
  const float half = normalise(task, x, scratch);
  __syncthreads();

  const auto larger = [](float a, float b) { return fmaxf(a, b); };
  const bool padding =
      task.mask && t0 + t < n && !task.mask[static_cast<std::ptrdiff_t>(z / task.x.heads) * n + t0 + t];
  const bool inside = t0 + t < n;
  const int m = task.m, r = task.kind == FeatureKind::elu ? d : task.kind == FeatureKind::positive ? m : 2 * m;
  float* phi = task.phi + static_cast<std::ptrdiff_t>(z) * r * task.stride + t0 + t;
  const auto put = [&](int f, float value) {
    phi[static_cast<std::ptrdiff_t>(f) * task.stride] = padding ? 0.0f : value;
  };
  if (!tops_only && !inside && t0 + t < task.stride)
    for (int f = g; f < r; f += Shape::groups) put(f, 0.0f);
  const bool exponential = task.kind == FeatureKind::positive || task.kind == FeatureKind::hyperbolic;
  constexpr float nothing = -largest_float;
  const float shift = task.tops && !tops_only && !task.queries ? from_ordered(task.tops[z]) : task.shift;

  if (task.kind == FeatureKind::elu) {
    if (!tops_only && inside)
      for (int k = g; k < d; k += Shape::groups) {
        const float value = x[k * stride + t];
        put(k, value > 0 ? value + 1 : expf(value));
      }
    return;
  }

  const float* w = task.w + head * task.w_stride;
  float top = nothing;
  for (int f0 = g * at_once; f0 < m; f0 += Shape::groups * at_once) {
    float sum[at_once] = {};
    project(task, w, x + t, f0, sum);
    for (int f = 0; f < at_once && f0 + f < m; ++f) {
      const float z_f = sum[f];
      if (exponential) top = fmaxf(top, task.kind == FeatureKind::hyperbolic ? fabsf(z_f) : z_f);
      if (tops_only || !inside) continue;
      if (task.kind == FeatureKind::trigonometric) {
        const float factor = task.queries ? 1.0f : expf(half - shift);
        put(f0 + f, factor * sinf(z_f));
        put(m + f0 + f, factor * cosf(z_f));
      } else if (task.queries) {
        put(f0 + f, z_f);
      } else {
        put(f0 + f, expf(z_f - half - shift));
        if (task.kind == FeatureKind::hyperbolic) put(m + f0 + f, expf(-z_f - half - shift));
      }
    }
  }
  if (tops_only) {
    // of keys: the largest exponent, of those that are numbers
    const float exponent = task.kind == FeatureKind::trigonometric ? half : top - half;
    const bool counts = inside && !padding && fabsf(exponent) < largest_float;
    float* tops = scratch + Shape::groups * tokens;
    const float of_token = over_groups(scratch, counts ? exponent : nothing, larger);
    if (g == 0) tops[t] = of_token;
    __syncthreads();
    if (threadIdx.x == 0) {
      float all = nothing;
      for (int k = 0; k < tokens; ++k) all = fmaxf(all, tops[k]);
      if (all > nothing) atomicMax(task.tops + z, ordered(all));
    }
    return;
  }
  if (!task.queries || !exponential) return;
  // of queries: each row by its own largest
  top = over_groups(scratch, top, larger);
  if (!inside) return;
  for (int f0 = g * at_once; f0 < m; f0 += Shape::groups * at_once)
    for (int f = f0; f < f0 + at_once && f < m; ++f) {
      const float z_f = phi[static_cast<std::ptrdiff_t>(f) * task.stride];
      put(f, expf(z_f - top));
      if (task.kind == FeatureKind::hyperbolic) put(m + f, expf(-z_f - top));
    }
}

/// What queue_features needs once on a device, for heads of d_padded channels.
template <Storage S>
void allow_features(int d_padded) {
  allow_shared(features_kernel<S, false>, FeatureShape::shared(d_padded));
  allow_shared(features_kernel<S, true>, FeatureShape::shared(d_padded));
}

/// Queues the features of a task; where `tops` is not null it is set first.
template <Storage S>
void queue_features(const FeatureTask<S>& task, int z, cudaStream_t stream) {
  if (task.stride == 0 || z == 0) return;
  const dim3 grid{static_cast<unsigned>((task.stride + FeatureShape::tokens - 1) / FeatureShape::tokens),
                  static_cast<unsigned>(z), 1};
  const dim3 block{FeatureShape::threads, 1, 1};
  const std::size_t shared = FeatureShape::shared(task.d_padded);
  if (task.tops) {
    check(cudaMemsetAsync(task.tops, 0x80, sizeof(int) * static_cast<std::size_t>(z), stream), "clearing tops");
    launch("features: tops", features_kernel<S, true>, grid, block, shared, stream, task);
  }
  launch("features", features_kernel<S, false>, grid, block, shared, stream, task);
}

}  // namespace nprf::cuda
