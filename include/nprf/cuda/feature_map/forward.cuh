// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/feature_map/centring.cuh"
#include "nprf/cuda/feature_map/quadratic.cuh"
#include "nprf/cuda/feature_map/token_tile.cuh"
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
/// or e^(linear.x' + offset) phi(z) of the coordinates z = axes (x' - mean) of a centring (centring.cuh); below, x' is
/// then z. The logarithm of a row's factor is -|x'|^2 / 2 of exponential, |x'|^2 / 2 of trigonometric and
/// log_scale + sum_l curvature_l x'_l^2 / 2 of quadratic features, plus that of the centring.
///
/// Features are float by channel, [z, r, stride], zero from n on; or bfloat16 by token, [z, n, stride], zero from r on.
///
/// Queries: exponential features of a row are divided by the largest one, trigonometric and quadratic ones by the row's
/// factor. Keys: all features of one z are divided by exp(shift), or by the largest one, or the largest factor if they
/// are trigonometric or quadratic. Elu features are not divided. The features
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
  DeviceCentring centring = {};
  DeviceQuadratic quadratic = {};
  float* log_factors = nullptr;  // [z, n] of queries: the logarithm that the features of a row are divided by; null:
                                 // not requested. Without the normalisation of the map by a power of r

  // including zero padding
  __host__ __device__ int tokens() const { return by_token<Feature> ? x.tokens : stride; }
  __host__ __device__ int r() const {
    switch (kind) {
      case FeatureKind::positive: return m;
      case FeatureKind::elu: return x.channels;
      case FeatureKind::quadratic: return quadratic.r;
      default: return 2 * m;
    }
  }
  __host__ __device__ bool is_exponential() const {
    return kind == FeatureKind::positive || kind == FeatureKind::hyperbolic;
  }

  /// Tiles of tokens in shared memory: x', and z if there is a centring.
  __host__ __device__ int tiles() const { return centring.values ? 2 : 1; }
  __host__ __device__ int tile_size() const { return FeatureShape::stride * d_padded; }
  std::size_t shared() const { return FeatureShape::shared(d_padded, tiles()); }
  /// Whether the backward pass needs a tile for the gradient of the coordinates.
  bool has_gradient_tile() const { return centring.values || kind == FeatureKind::quadratic; }
};

/// Maps floats to ints of the same order.
__device__ __forceinline__ int ordered(float x) {
  const int bits = __float_as_int(x);
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}
__device__ __forceinline__ float from_ordered(int x) { return __int_as_float(x < 0 ? x ^ 0x7fffffff : x); }

/// Of a token: x' = factor x, |x'|^2 / 2, and whether x is finite.
struct NormalisedToken {
  float factor, half_square;
  bool finite;
};

/// Normalises the tokens in place. Computing radius / |x| does not overflow or underflow. Returns the data of this
/// thread's token.
template <class Shape = FeatureShape, Storage S, class Feature>
__device__ __forceinline__ NormalisedToken normalise(const FeatureTask<S, Feature>& task, float* x, float* scratch) {
  constexpr int stride = Shape::stride;
  const int t = static_cast<int>(threadIdx.x) % Shape::tokens, g = static_cast<int>(threadIdx.x) / Shape::tokens;
  const int d = task.x.channels;
  float divisor = 1, square = 0;
  if (task.radius > 0) {
    float largest = 0;
    for (int k = g; k < d; k += Shape::groups) largest = fmaxf(largest, fabsf(x[k * stride + t]));
    largest = over_groups<Shape>(scratch, largest, [](float a, float b) { return fmaxf(a, b); });
    if (largest > 0) divisor = largest;
  }
  for (int k = g; k < d; k += Shape::groups) {
    const float part = x[k * stride + t] / divisor;
    square = fmaf(part, part, square);
  }
  square = over_groups<Shape>(scratch, square, [](float a, float b) { return a + b; });
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

/// The coordinates of the tokens that their features are functions of, and the logarithm of the factor of this thread's
/// token.
struct TokenCoordinates {
  const float* z;  // (d_padded,tokens)
  float log_factor;
};

/// Of the normalised tile x' of a head, which the tile of z follows if there is a centring. All threads of the block
/// must call it; they are synchronised at the end.
template <class Shape = FeatureShape, Storage S, class Feature>
__device__ __forceinline__ TokenCoordinates coordinates_of(const FeatureTask<S, Feature>& task, int head, float* x,
                                                           float* scratch, const NormalisedToken& token) {
  const int t = static_cast<int>(threadIdx.x) % Shape::tokens, g = static_cast<int>(threadIdx.x) / Shape::tokens;
  const int d = task.x.channels;
  const float* z = x;
  float of_centring = 0, half_square = token.half_square;
  __syncthreads();
  if (task.centring.values) {
    float* centred = x + Shape::stride * task.d_padded;
    of_centring = centre<Shape>(task.centring.of(head, d, task.d_padded), d, task.d_padded, x, centred, scratch);
    __syncthreads();
    float square = 0;
    for (int k = g; k < d; k += Shape::groups) {
      const float z_k = centred[k * Shape::stride + t];
      square = fmaf(z_k, z_k, square);
    }
    half_square = 0.5f * over_groups<Shape>(scratch, square, [](float a, float b) { return a + b; });
    z = centred;
  }
  float log_factor = task.kind == FeatureKind::trigonometric ? half_square : -half_square;
  if (task.kind == FeatureKind::quadratic)
    log_factor = task.quadratic.of(head).template log_factor<Shape>(d, z, scratch);
  __syncthreads();
  return {z, log_factor + of_centring};
}

/// z[i] = w_{first + i}.x' of a token, whose channels are Shape::stride apart in memory.
template <class Shape = FeatureShape, Storage S, class Feature>
__device__ __forceinline__ void project(const FeatureTask<S, Feature>& task, const float* w, const float* x, int first,
                                        float (&z)[Shape::at_once]) {
  multiply_rows<Shape>(w, task.m, task.d_padded, x, nullptr, first, z);
}

/// Calls f(first, count, z) for the projections z[i] = w_{first + i}.x' of this thread's token and group, up to
/// `at_once` at a time. For elu features z is x' itself.
template <class Shape = FeatureShape, Storage S, class Feature, class F>
__device__ __forceinline__ void project(const FeatureTask<S, Feature>& task, const float* x, F&& f) {
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
      project<Shape>(task, w, x + t, first, z);
    }
    f(first, count, z);
  }
}

/// The largest projection of this thread's token and group; for hyperbolic features the largest absolute value.
template <class Shape = FeatureShape, Storage S, class Feature>
__device__ __forceinline__ float largest_projection(const FeatureTask<S, Feature>& task, const float* x) {
  float largest = -largest_float;
  project<Shape>(task, x, [&](int, int count, const float(&z)[Shape::at_once]) {
#pragma unroll
    for (int i = 0; i < Shape::at_once; ++i)
      if (i < count) largest = fmaxf(largest, task.kind == FeatureKind::hyperbolic ? fabsf(z[i]) : z[i]);
  });
  return largest;
}

/// Stores features i to i + count - 1 of a token, whose first feature is at phi.
template <class Shape = FeatureShape, Storage S, class Feature>
__device__ __forceinline__ void store_features(const FeatureTask<S, Feature>& task, Feature* phi, int i, int count,
                                               const float (&values)[Shape::at_once]) {
  constexpr int at_once = Shape::at_once;
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

/// Stores the features of a token whose first feature is at phi, from its coordinates z (d_padded,tokens), as
/// exp(log_factor - shift) times those of z. If `is_zero`, they are zero.
template <class Shape = FeatureShape, Storage S, class Feature>
__device__ __forceinline__ void store_projected(const FeatureTask<S, Feature>& task, Feature* phi, const float* z,
                                                float log_factor, float shift, bool is_zero) {
  const int m = task.m;
  const float factor = task.queries ? 1.0f : expf(log_factor - shift);  // of trigonometric features
  project<Shape>(task, z, [&](int i, int count, const float(&z_i)[Shape::at_once]) {
    float first[Shape::at_once] = {}, second[Shape::at_once] = {};
#pragma unroll
    for (int k = 0; k < Shape::at_once; ++k) {
      if (is_zero) continue;
      switch (task.kind) {
        case FeatureKind::hyperbolic: second[k] = expf(-z_i[k] + log_factor - shift); [[fallthrough]];
        case FeatureKind::positive: first[k] = expf(z_i[k] + log_factor - shift); break;
        case FeatureKind::trigonometric:
          first[k] = factor * sinf(z_i[k]);
          second[k] = factor * cosf(z_i[k]);
          break;
        case FeatureKind::elu: first[k] = z_i[k] > 0 ? z_i[k] + 1 : expf(z_i[k]); break;
        case FeatureKind::quadratic: break;
      }
    }
    store_features<Shape>(task, phi, i, count, first);
    if (task.r() == 2 * m) store_features<Shape>(task, phi, m + i, count, second);
  });
}

/// The same for quadratic features, with a factor of the row.
template <class Shape = FeatureShape, Storage S, class Feature>
__device__ __forceinline__ void store_quadratic(const FeatureTask<S, Feature>& task, int head, Feature* phi,
                                                const float* z, float factor, bool is_zero) {
  const int t = static_cast<int>(threadIdx.x) % Shape::tokens, g = static_cast<int>(threadIdx.x) / Shape::tokens;
  const QuadraticConstants constants = task.quadratic.of(head);
  for (int i = g * Shape::at_once; i < task.r(); i += Shape::groups * Shape::at_once) {
    float values[Shape::at_once] = {};
    const int count = min(Shape::at_once, task.r() - i);
    for (int k = 0; k < count && !is_zero; ++k) values[k] = factor * constants.template feature<Shape>(i + k, z + t);
    store_features<Shape>(task, phi, i, count, values);
  }
}

/// Computes the features of a tile of tokens. All threads of the block take part.
template <Storage S, class Feature>
__device__ __forceinline__ void compute_features(const FeatureTask<S, Feature>& task) {
  using Shape = FeatureShape;
  float *x = shared_memory<float>(), *scratch = x + task.tiles() * task.tile_size();
  const int z = static_cast<int>(blockIdx.y), t0 = static_cast<int>(blockIdx.x) * Shape::tokens;
  const int token = t0 + static_cast<int>(threadIdx.x) % Shape::tokens, n = task.x.tokens, r = task.r();
  if (t0 >= task.tokens()) return;
  load_tile({x, 1, Shape::stride}, task.x, task.x.of(z), {t0, Shape::tokens}, {0, task.d_padded});
  __syncthreads();
  const NormalisedToken own_token = normalise(task, x, scratch);
  const TokenCoordinates at = coordinates_of(task, z % task.x.heads, x, scratch, own_token);
  float log_factor = at.log_factor, shift = task.max_log_scale ? from_ordered(task.max_log_scale[z]) : task.shift;
  if (task.queries && task.is_exponential()) {
    log_factor = 0;
    shift = over_groups(scratch, largest_projection(task, at.z), [](float a, float b) { return fmaxf(a, b); });
  }
  if (token >= task.tokens()) return;
  if (task.log_factors && token < n && threadIdx.x < Shape::tokens)
    task.log_factors[static_cast<std::ptrdiff_t>(z) * n + token] =
        task.is_exponential() ? at.log_factor + shift : at.log_factor;

  const bool has_zero_features =
      token >= n || (task.mask && !task.mask[static_cast<std::ptrdiff_t>(z / task.x.heads) * n + token]) ||
      (!own_token.finite &&
       !(task.queries ? task.attention_mask.attends_any(z, token) : task.attention_mask.is_attended(z, token)));
  Feature* phi = task.phi + (by_token<Feature> ? (static_cast<std::ptrdiff_t>(z) * n + token) * task.stride
                                               : static_cast<std::ptrdiff_t>(z) * r * task.stride + token);
  if (task.kind == FeatureKind::quadratic) {
    const float factor = !own_token.finite ? 0.0f / 0.0f : task.queries ? 1.0f : expf(log_factor - shift);
    store_quadratic(task, z % task.x.heads, phi, at.z, factor, has_zero_features);
  } else {
    store_projected(task, phi, at.z, log_factor, shift, has_zero_features);
  }
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
  float *x = shared_memory<float>(), *scratch = x + task.tiles() * task.tile_size();
  const int z = static_cast<int>(blockIdx.y), t0 = static_cast<int>(blockIdx.x) * Shape::tokens;
  const int thread = static_cast<int>(threadIdx.x), token = t0 + thread % Shape::tokens, n = task.x.tokens;
  load_tile({x, 1, Shape::stride}, task.x, task.x.of(z), {t0, Shape::tokens}, {0, task.d_padded});
  __syncthreads();
  const TokenCoordinates at = coordinates_of(task, z % task.x.heads, x, scratch, normalise(task, x, scratch));
  const bool padding =
      token >= n || (task.mask && !task.mask[static_cast<std::ptrdiff_t>(z / task.x.heads) * n + token]);
  const float log_scale = task.is_exponential() ? largest_projection(task, at.z) + at.log_factor : at.log_factor;
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
         dim3{FeatureShape::threads, 1, 1}, task.shared(), stream, task);
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
         first.shared(), stream, first, second);
}

}  // namespace nprf::cuda
