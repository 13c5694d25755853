// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/model.hpp"
#include "nprf/cuda/position/attention_mask.cuh"

namespace nprf::cuda {

/// Whether features are stored by token: bfloat16, for tensor cores.
template <class Feature>
constexpr bool by_token = std::is_same_v<Feature, __nv_bfloat16>;

/// Computes the features of queries or keys. Tokens are normalised first:
///
///     phi   phi(x') of x' = radius x / |x|, or of x' = scale x
///
/// Features are float by channel, [z, r, stride], zero from n on; or bfloat16 by token, [z, n, stride], zero from r on.
///
/// Queries: exponential features of a row are divided by the largest one, trigonometric ones by exp(|x'|^2 / 2). Keys:
/// all features of one z are divided by exp(shift), or by the largest one. Elu features are not divided. The features
/// of a non-finite query that attends to no key, and of a non-finite key that no query attends to, are zero, so that
/// they affect no row. O(n d m) time; the only scratch memory is max_log_scale.
template <Storage S, class Feature = float>
struct FeatureTask {
  Operand<S> x;             // (n,d)
  const bool* mask;         // [sequence, n]: false is padding, whose features are zero; null: no padding
  const float* w;           // [head, m, d_padded]
  std::ptrdiff_t w_stride;  // between heads; 0: one projection for all heads
  FeatureKind kind;
  int m, d_padded;      // d_padded: d rounded up to a multiple of 4
  float radius, scale;  // radius 0: x' = scale x
  bool queries;
  float shift;         // of keys, if their log-scales are known to be near it
  int* max_log_scale;  // [z]: the largest log-scale (logarithm of a feature) of keys, as ordered(); null: use `shift`
  Feature* phi;
  int stride;  // at least n, or at least r
  AttentionMask attention_mask;

  // including zero padding
  __host__ __device__ int tokens() const { return by_token<Feature> ? x.tokens : stride; }
  __host__ __device__ int r() const {
    return kind == FeatureKind::elu ? x.channels : kind == FeatureKind::positive ? m : 2 * m;
  }
};

/// Maps floats to ints of the same order.
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

// the reduction by f over the groups of threads that share a token; all threads of the block must call it
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

/// Of a token: x' = factor x, |x'|^2 / 2, and whether x is finite.
struct NormalisedToken {
  float factor, half_square;
  bool finite;
};

/// Normalises the tokens in place. Computing radius / |x| does not overflow or underflow. Returns the data of this
/// thread's token.
template <Storage S, class Feature>
__device__ __forceinline__ NormalisedToken normalise(const FeatureTask<S, Feature>& task, float* x, float* scratch) {
  using Shape = FeatureShape;
  constexpr int stride = Shape::stride;
  const int t = static_cast<int>(threadIdx.x) % Shape::tokens, g = static_cast<int>(threadIdx.x) / Shape::tokens;
  const int d = task.x.channels;
  float divisor = 1, square = 0;
  if (task.radius > 0) {
    float largest = 0;
    for (int k = g; k < d; k += Shape::groups) largest = fmaxf(largest, fabsf(x[k * stride + t]));
    largest = over_groups(scratch, largest, [](float a, float b) { return fmaxf(a, b); });
    if (largest > 0) divisor = largest;
  }
  for (int k = g; k < d; k += Shape::groups) {
    const float part = x[k * stride + t] / divisor;
    square = fmaf(part, part, square);
  }
  square = over_groups(scratch, square, [](float a, float b) { return a + b; });
  float s = task.scale;
  if (task.radius > 0) {
    const float norm = sqrtf(square);
    s = norm == 0 ? 0.0f : fminf(task.radius / norm / divisor, largest_float);
  }
  for (int k = g; k < d; k += Shape::groups) x[k * stride + t] *= s;
  const bool finite = square <= largest_float;
  if (task.radius > 0) return {s, square == 0 ? 0.0f : 0.5f * task.radius * task.radius, finite};
  return {s, 0.5f * square * (s * s), finite};
}

/// z[i] = w_{first + i}.x' of a token, whose channels are Shape::stride apart in memory.
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

/// Calls f(first, count, z) for the projections z[i] = w_{first + i}.x' of this thread's token and group, up to
/// `at_once` at a time. For elu features z is x' itself.
template <Storage S, class Feature, class F>
__device__ __forceinline__ void project(const FeatureTask<S, Feature>& task, const float* x, F&& f) {
  using Shape = FeatureShape;
  constexpr int stride = Shape::stride, at_once = Shape::at_once;
  const int t = static_cast<int>(threadIdx.x) % Shape::tokens, g = static_cast<int>(threadIdx.x) / Shape::tokens;
  const bool is_elu = task.kind == FeatureKind::elu;
  const int all = is_elu ? task.x.channels : task.m;
  const float* w = task.w + static_cast<int>(blockIdx.y) % task.x.heads * task.w_stride;
  for (int first = g * at_once; first < all; first += Shape::groups * at_once) {
    float z[at_once] = {};
    const int count = min(at_once, all - first);
    if (is_elu) {
#pragma unroll
      for (int i = 0; i < at_once; ++i)
        if (i < count) z[i] = x[(first + i) * stride + t];
    } else {
      project(task, w, x + t, first, z);
    }
    f(first, count, z);
  }
}

/// The largest projection of this thread's token and group; for hyperbolic features the largest absolute value.
template <Storage S, class Feature>
__device__ __forceinline__ float largest_projection(const FeatureTask<S, Feature>& task, const float* x) {
  float largest = -largest_float;
  project(task, x, [&](int, int count, const float(&z)[FeatureShape::at_once]) {
#pragma unroll
    for (int i = 0; i < FeatureShape::at_once; ++i)
      if (i < count) largest = fmaxf(largest, task.kind == FeatureKind::hyperbolic ? fabsf(z[i]) : z[i]);
  });
  return largest;
}

/// Stores features i to i + count - 1 of a token, whose first feature is at phi.
template <Storage S, class Feature>
__device__ __forceinline__ void store_features(const FeatureTask<S, Feature>& task, Feature* phi, int i, int count,
                                               const float (&values)[FeatureShape::at_once]) {
  constexpr int at_once = FeatureShape::at_once;
  Feature rounded[at_once];
#pragma unroll
  for (int k = 0; k < at_once; ++k) store(rounded + k, values[k]);
  if constexpr (by_token<Feature>) {
    // rows are aligned to 16 scalars
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

/// Computes the features of a tile of tokens. All threads of the block take part.
template <Storage S, class Feature>
__device__ __forceinline__ void compute_features(const FeatureTask<S, Feature>& task) {
  using Shape = FeatureShape;
  float *x = shared_memory<float>(), *scratch = x + Shape::stride * task.d_padded;
  const int z = static_cast<int>(blockIdx.y), t0 = static_cast<int>(blockIdx.x) * Shape::tokens;
  const int token = t0 + static_cast<int>(threadIdx.x) % Shape::tokens, n = task.x.tokens, m = task.m, r = task.r();
  if (t0 >= task.tokens()) return;
  load_tile({x, 1, Shape::stride}, task.x, task.x.of(z), {t0, Shape::tokens}, {0, task.d_padded});
  __syncthreads();
  const NormalisedToken own_token = normalise(task, x, scratch);
  float half_square = own_token.half_square,
        shift = task.max_log_scale ? from_ordered(task.max_log_scale[z]) : task.shift;
  __syncthreads();
  const bool exponential = task.kind == FeatureKind::positive || task.kind == FeatureKind::hyperbolic;
  if (task.queries && exponential) {
    half_square = 0;
    shift = over_groups(scratch, largest_projection(task, x), [](float a, float b) { return fmaxf(a, b); });
  }
  if (token >= task.tokens()) return;

  const bool has_zero_features =
      token >= n || (task.mask && !task.mask[static_cast<std::ptrdiff_t>(z / task.x.heads) * n + token]) ||
      (!own_token.finite &&
       !(task.queries ? task.attention_mask.attends_any(z, token) : task.attention_mask.is_attended(z, token)));
  Feature* phi = task.phi + (by_token<Feature> ? (static_cast<std::ptrdiff_t>(z) * n + token) * task.stride
                                               : static_cast<std::ptrdiff_t>(z) * r * task.stride + token);
  const float factor = task.queries ? 1.0f : expf(half_square - shift);  // of trigonometric features
  project(task, x, [&](int i, int count, const float(&z_i)[Shape::at_once]) {
    float first[Shape::at_once] = {}, second[Shape::at_once] = {};
#pragma unroll
    for (int k = 0; k < Shape::at_once; ++k) {
      if (has_zero_features) continue;
      switch (task.kind) {
        case FeatureKind::hyperbolic: second[k] = expf(-z_i[k] - half_square - shift); [[fallthrough]];
        case FeatureKind::positive: first[k] = expf(z_i[k] - half_square - shift); break;
        case FeatureKind::trigonometric:
          first[k] = factor * sinf(z_i[k]);
          second[k] = factor * cosf(z_i[k]);
          break;
        case FeatureKind::elu: first[k] = z_i[k] > 0 ? z_i[k] + 1 : expf(z_i[k]);
      }
    }
    store_features(task, phi, i, count, first);
    if (r == 2 * m) store_features(task, phi, m + i, count, second);
  });
  if constexpr (by_token<Feature>)
    if (threadIdx.x < Shape::tokens)
      for (int i = r; i < task.stride; ++i) store(phi + i, 0.0f);
}

/// Computes both tasks. Blocks (tiles of tokens, z, task).
template <Storage S, class Feature>
__global__ void __launch_bounds__(FeatureShape::threads)
    features_kernel(FeatureTask<S, Feature> first, FeatureTask<S, Feature> second) {
  if (blockIdx.z == 0)
    compute_features(first);
  else
    compute_features(second);
}

/// Computes the largest log-scale of the keys; non-finite ones are ignored. Blocks (tiles of tokens, z).
template <Storage S, class Feature>
__global__ void __launch_bounds__(FeatureShape::threads) log_scales_kernel(FeatureTask<S, Feature> task) {
  using Shape = FeatureShape;
  float *x = shared_memory<float>(), *scratch = x + Shape::stride * task.d_padded;
  const int z = static_cast<int>(blockIdx.y), t0 = static_cast<int>(blockIdx.x) * Shape::tokens;
  const int thread = static_cast<int>(threadIdx.x), token = t0 + thread % Shape::tokens, n = task.x.tokens;
  load_tile({x, 1, Shape::stride}, task.x, task.x.of(z), {t0, Shape::tokens}, {0, task.d_padded});
  __syncthreads();
  const float half_square = normalise(task, x, scratch).half_square;
  __syncthreads();
  const bool padding =
      token >= n || (task.mask && !task.mask[static_cast<std::ptrdiff_t>(z / task.x.heads) * n + token]);
  const float log_scale =
      task.kind == FeatureKind::trigonometric ? half_square : largest_projection(task, x) - half_square;
  const bool is_counted = !padding && fabsf(log_scale) < largest_float;
  float* token_log_scales = scratch + Shape::groups * Shape::tokens;
  const float of_token =
      over_groups(scratch, is_counted ? log_scale : -largest_float, [](float a, float b) { return fmaxf(a, b); });
  if (thread < Shape::tokens) token_log_scales[thread] = of_token;
  __syncthreads();
  if (thread > 0) return;
  float all = -largest_float;
  for (int k = 0; k < Shape::tokens; ++k) all = fmaxf(all, token_log_scales[k]);
  if (all > -largest_float) atomicMax(task.max_log_scale + z, ordered(all));
}

/// Queues the largest log-scales of a task, if it needs them.
template <Storage S, class Feature>
void queue_log_scales(const FeatureTask<S, Feature>& task, int z, cudaStream_t stream) {
  if (!task.max_log_scale || task.x.tokens == 0 || z == 0) return;
  check(cudaMemsetAsync(task.max_log_scale, 0x80, sizeof(int) * static_cast<std::size_t>(z), stream),
        "clearing log-scales");
  launch("features: log-scales", log_scales_kernel<S, Feature>,
         dim3{blocks_of<FeatureShape::tokens>(task.x.tokens), static_cast<unsigned>(z), 1},
         dim3{FeatureShape::threads, 1, 1}, FeatureShape::shared(task.d_padded), stream, task);
}

/// Queues the features of two tasks, such as queries and keys. Both must have the same z and d.
template <Storage S, class Feature>
void queue_features(const FeatureTask<S, Feature>& first, const FeatureTask<S, Feature>& second, int z,
                    cudaStream_t stream) {
  queue_log_scales(first, z, stream);
  queue_log_scales(second, z, stream);
  const int tokens = std::max(first.tokens(), second.tokens());
  if (tokens == 0 || z == 0) return;
  launch("features", features_kernel<S, Feature>,
         dim3{blocks_of<FeatureShape::tokens>(tokens), static_cast<unsigned>(z), 2}, dim3{FeatureShape::threads, 1, 1},
         FeatureShape::shared(first.d_padded), stream, first, second);
}

}  // namespace nprf::cuda
