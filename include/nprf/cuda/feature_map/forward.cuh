// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/model.hpp"
#include "nprf/cuda/position/visibility.cuh"

namespace nprf::cuda {

/// Whether features lie token by token: bfloat16, for tensor cores.
template <class Feature>
constexpr bool by_token = std::is_same_v<Feature, __nv_bfloat16>;

/// The features of queries or of keys, normalised on the way:
///
///     phi   phi(x') of x' = radius x / |x|, or of x' = scale x
///
/// float by channel, [z, r, stride], zeros from n on; bfloat16 by token, [z, n, stride], zeros from r on.
///
/// queries: the largest feature of each row is 1, or its own factor is left out. keys: all of one z are divided by
/// exp(shift), or by the largest of them. A query that holds what is no number and sees no key, or a key that no query
/// sees, has zeros as padding has, so that it touches nothing. O(n d m) time, no scratch memory but tops.
template <Storage S, class Feature = float>
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
  Feature* phi;
  int stride;  // n at least, or r
  Visibility seen;

  // with zeros
  __host__ __device__ int tokens() const { return by_token<Feature> ? x.tokens : stride; }
  __host__ __device__ int r() const {
    return kind == FeatureKind::elu ? x.channels : kind == FeatureKind::positive ? m : 2 * m;
  }
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

/// Of a token: x' = factor x, |x'|^2 / 2, and whether all of it are numbers.
struct Normalised {
  float factor, half;
  bool finite;
};

/// x' in place, with radius / |x| free of overflow and underflow in |x|^2; what the thread's token has.
template <Storage S, class Feature>
__device__ __forceinline__ Normalised normalise(const FeatureTask<S, Feature>& task, float* x, float* scratch) {
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
  const bool finite = square <= largest_float;
  if (task.radius > 0) return {s, square == 0 ? 0.0f : 0.5f * task.radius * task.radius, finite};
  return {s, 0.5f * square * (s * s), finite};
}

/// z[i] = w_{first + i}.x' of a token, whose channels are Shape::stride apart.
template <Storage S, class Feature>
__device__ __forceinline__ void project(const FeatureTask<S, Feature>& task, const float* w, const float* x, int first,
                                        float (&z)[FeatureShape::at_once]) {
  for (int k = 0; k < task.d_padded; k += 4) {
    float part[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) part[e] = x[(k + e) * FeatureShape::stride];
#pragma unroll
    for (int i = 0; i < FeatureShape::at_once; ++i) {
      if (first + i >= task.m) break;
      const float4 row =
          *reinterpret_cast<const float4*>(w + static_cast<std::ptrdiff_t>(first + i) * task.d_padded + k);
      z[i] = fmaf(part[0], row.x, fmaf(part[1], row.y, fmaf(part[2], row.z, fmaf(part[3], row.w, z[i]))));
    }
  }
}

/// f(i, count, z) for the projections z_i = w_i.x' of the thread's token and group, `at_once` of them at a time, or for
/// x' itself where features have no projection.
template <Storage S, class Feature, class F>
__device__ __forceinline__ void project(const FeatureTask<S, Feature>& task, const float* x, F&& f) {
  using Shape = FeatureShape;
  constexpr int stride = Shape::stride, at_once = Shape::at_once;
  const int t = static_cast<int>(threadIdx.x) % Shape::tokens, g = static_cast<int>(threadIdx.x) / Shape::tokens;
  const bool plain = task.kind == FeatureKind::elu;
  const int all = plain ? task.x.channels : task.m;
  const float* w = task.w + static_cast<int>(blockIdx.y) % task.x.heads * task.w_stride;
  for (int first = g * at_once; first < all; first += Shape::groups * at_once) {
    float z[at_once] = {};
    const int count = min(at_once, all - first);
    if (plain) {
#pragma unroll
      for (int i = 0; i < at_once; ++i)
        if (i < count) z[i] = x[(first + i) * stride + t];
    } else {
      project(task, w, x + t, first, z);
    }
    f(first, count, z);
  }
}

/// The largest projection of the thread's token and group, or the largest of their absolute values.
template <Storage S, class Feature>
__device__ __forceinline__ float largest_projection(const FeatureTask<S, Feature>& task, const float* x) {
  float top = -largest_float;
  project(task, x, [&](int, int count, const float(&z)[FeatureShape::at_once]) {
#pragma unroll
    for (int i = 0; i < FeatureShape::at_once; ++i)
      if (i < count) top = fmaxf(top, task.kind == FeatureKind::hyperbolic ? fabsf(z[i]) : z[i]);
  });
  return top;
}

/// Puts features i to i + count - 1 of a token, whose own begin at phi.
template <Storage S, class Feature>
__device__ __forceinline__ void put_features(const FeatureTask<S, Feature>& task, Feature* phi, int i, int count,
                                             const float (&values)[FeatureShape::at_once]) {
  constexpr int at_once = FeatureShape::at_once;
  Feature rounded[at_once];
#pragma unroll
  for (int k = 0; k < at_once; ++k) store(rounded + k, values[k]);
  if constexpr (by_token<Feature>) {
    // rows begin at multiples of 16 scalars
    if (count == at_once && i % at_once == 0) {
      uint2 four;
      std::memcpy(&four, rounded, sizeof(four));
      *reinterpret_cast<uint2*>(phi + i) = four;
      return;
    }
  }
#pragma unroll
  for (int k = 0; k < at_once; ++k)
    if (k < count) phi[(i + k) * (by_token<Feature> ? 1 : static_cast<std::ptrdiff_t>(task.stride))] = rounded[k];
}

/// The features of a tile of tokens, by all threads of a block.
template <Storage S, class Feature>
__device__ __forceinline__ void compute_features(const FeatureTask<S, Feature>& task) {
  using Shape = FeatureShape;
  float *x = shared_memory<float>(), *scratch = x + Shape::stride * task.d_padded;
  const int z = static_cast<int>(blockIdx.y), t0 = static_cast<int>(blockIdx.x) * Shape::tokens;
  const int token = t0 + static_cast<int>(threadIdx.x) % Shape::tokens, n = task.x.tokens, m = task.m, r = task.r();
  if (t0 >= task.tokens()) return;
  load_tile(x, 1, Shape::stride, task.x, task.x.of(z), t0, Shape::tokens, 0, task.d_padded);
  __syncthreads();
  const Normalised own = normalise(task, x, scratch);
  float half = own.half, shift = task.tops ? from_ordered(task.tops[z]) : task.shift;
  __syncthreads();
  const bool exponential = task.kind == FeatureKind::positive || task.kind == FeatureKind::hyperbolic;
  if (task.queries && exponential) {
    half = 0;
    shift = over_groups(scratch, largest_projection(task, x), [](float a, float b) { return fmaxf(a, b); });
  }
  if (token >= task.tokens()) return;

  const bool padding =
      token >= n || (task.mask && !task.mask[static_cast<std::ptrdiff_t>(z / task.x.heads) * n + token]) ||
      (!own.finite && !(task.queries ? task.seen.attends_any(z, token) : task.seen.is_attended(z, token)));
  Feature* phi = task.phi + (by_token<Feature> ? (static_cast<std::ptrdiff_t>(z) * n + token) * task.stride
                                               : static_cast<std::ptrdiff_t>(z) * r * task.stride + token);
  const float factor = task.queries ? 1.0f : expf(half - shift);  // of trigonometric ones
  project(task, x, [&](int i, int count, const float(&z_i)[Shape::at_once]) {
    float first[Shape::at_once] = {}, second[Shape::at_once] = {};
#pragma unroll
    for (int k = 0; k < Shape::at_once; ++k) {
      if (padding) continue;
      switch (task.kind) {
        case FeatureKind::hyperbolic: second[k] = expf(-z_i[k] - half - shift); [[fallthrough]];
        case FeatureKind::positive: first[k] = expf(z_i[k] - half - shift); break;
        case FeatureKind::trigonometric:
          first[k] = factor * sinf(z_i[k]);
          second[k] = factor * cosf(z_i[k]);
          break;
        case FeatureKind::elu: first[k] = z_i[k] > 0 ? z_i[k] + 1 : expf(z_i[k]);
      }
    }
    put_features(task, phi, i, count, first);
    if (r == 2 * m) put_features(task, phi, m + i, count, second);
  });
  if constexpr (by_token<Feature>)
    if (threadIdx.x < Shape::tokens)
      for (int i = r; i < task.stride; ++i) store(phi + i, 0.0f);
}

/// Blocks (tiles of tokens, z, one task or the other).
template <Storage S, class Feature>
__global__ void __launch_bounds__(FeatureShape::threads)
    features_kernel(FeatureTask<S, Feature> first, FeatureTask<S, Feature> second) {
  if (blockIdx.z == 0)
    compute_features(first);
  else
    compute_features(second);
}

/// The largest exponents of keys, of those that are numbers. Blocks (tiles of tokens, z).
template <Storage S, class Feature>
__global__ void __launch_bounds__(FeatureShape::threads) tops_kernel(FeatureTask<S, Feature> task) {
  using Shape = FeatureShape;
  float *x = shared_memory<float>(), *scratch = x + Shape::stride * task.d_padded;
  const int z = static_cast<int>(blockIdx.y), t0 = static_cast<int>(blockIdx.x) * Shape::tokens;
  const int thread = static_cast<int>(threadIdx.x), token = t0 + thread % Shape::tokens, n = task.x.tokens;
  load_tile(x, 1, Shape::stride, task.x, task.x.of(z), t0, Shape::tokens, 0, task.d_padded);
  __syncthreads();
  const float half = normalise(task, x, scratch).half;
  __syncthreads();
  const bool padding =
      token >= n || (task.mask && !task.mask[static_cast<std::ptrdiff_t>(z / task.x.heads) * n + token]);
  const float exponent = task.kind == FeatureKind::trigonometric ? half : largest_projection(task, x) - half;
  const bool counts = !padding && fabsf(exponent) < largest_float;
  float* tops = scratch + Shape::groups * Shape::tokens;
  const float of_token =
      over_groups(scratch, counts ? exponent : -largest_float, [](float a, float b) { return fmaxf(a, b); });
  if (thread < Shape::tokens) tops[thread] = of_token;
  __syncthreads();
  if (thread > 0) return;
  float all = -largest_float;
  for (int k = 0; k < Shape::tokens; ++k) all = fmaxf(all, tops[k]);
  if (all > -largest_float) atomicMax(task.tops + z, ordered(all));
}

/// Queues the largest exponents of a task, if it asks for them.
template <Storage S, class Feature>
void queue_tops(const FeatureTask<S, Feature>& task, int z, cudaStream_t stream) {
  if (!task.tops || task.x.tokens == 0 || z == 0) return;
  check(cudaMemsetAsync(task.tops, 0x80, sizeof(int) * static_cast<std::size_t>(z), stream), "clearing tops");
  launch("features: tops", tops_kernel<S, Feature>,
         dim3{blocks_of<FeatureShape::tokens>(task.x.tokens), static_cast<unsigned>(z), 1},
         dim3{FeatureShape::threads, 1, 1}, FeatureShape::shared(task.d_padded), stream, task);
}

/// Queues the features of two tasks, queries' and keys' say, of as many z and channels.
template <Storage S, class Feature>
void queue_features(const FeatureTask<S, Feature>& first, const FeatureTask<S, Feature>& second, int z,
                    cudaStream_t stream) {
  queue_tops(first, z, stream);
  queue_tops(second, z, stream);
  const int tokens = std::max(first.tokens(), second.tokens());
  if (tokens == 0 || z == 0) return;
  launch("features", features_kernel<S, Feature>,
         dim3{blocks_of<FeatureShape::tokens>(tokens), static_cast<unsigned>(z), 2}, dim3{FeatureShape::threads, 1, 1},
         FeatureShape::shared(first.d_padded), stream, first, second);
}

}  // namespace nprf::cuda
