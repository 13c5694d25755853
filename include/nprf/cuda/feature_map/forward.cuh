// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "nprf/cuda/device/call_counters.cuh"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/feature_map/coordinates.cuh"
#include "nprf/cuda/feature_map/projection.cuh"
#include "nprf/cuda/feature_map/task.cuh"

namespace nprf::cuda {

/// The shape of the kernels that compute features of tiles of tokens. A lane has the tokens 2 lane and 2 lane + 1, and
/// a warp 8 projections at a time, in two turns: a block has `chunk` projections of each of its tokens in registers.
struct FeatureTile {
  static constexpr int tokens = 64, groups = 2, threads = tokens * groups, at_once = 4;  // as in FeatureShape
  static constexpr int stride = tokens + 2;                                               // pairs of tokens are aligned
  static constexpr int warps = threads / 32, turns = 2, group = 8, chunk = turns * warps * group;
  static constexpr int piece = 8;  // features of a token that are stored at once if they are bfloat16

  /// The bytes of some tiles, of reductions, of three scalars a token, and of the features that are stored by token.
  static std::size_t shared(int d_padded, int tiles, bool by_token) {
    return sizeof(float) * static_cast<std::size_t>(stride * d_padded * tiles + (warps + 3) * tokens) +
           (by_token ? sizeof(__nv_bfloat16) * tokens * chunk : 0);
  }
};

/// The features of a tile of tokens. All threads of a block of FeatureTile take part.
template <Storage S, class Feature>
class TileFeatures {
 public:
  /// Loads the tokens and computes their coordinates.
  __device__ __forceinline__ explicit TileFeatures(const FeatureTask<S, Feature>& task)
      : m_task(task),
        m_z(static_cast<int>(blockIdx.y)),
        m_head(m_z % task.x.heads),
        m_t0(static_cast<int>(blockIdx.x) * Shape::tokens),
        m_lane(static_cast<int>(threadIdx.x) % 32),
        m_warp(static_cast<int>(threadIdx.x) / 32) {
    if (task.x.has_aligned_rows)
      load_rows();
    else
      load_tile({x(), 1, Shape::stride}, task.x, task.x.of(m_z), {m_t0, Shape::tokens}, {0, task.d_padded});
    __syncthreads();
    m_own = measure<Shape>(task, x(), scratch());
    // projections of plain features are multiplied by the factor instead of the tokens
    const bool is_plain = !task.centring.values && task.kind != FeatureKind::elu && task.kind != FeatureKind::quadratic;
    const bool scales_tokens = m_own.is_extreme || !is_plain;
    if (scales_tokens) scale_token<Shape>(x(), task.x.channels, m_own.factor);
    const TokenCoordinates at = coordinates_of<Shape>(task, m_head, x(), scratch(), m_own);
    m_coordinates = at.z;
    m_log_factor = at.log_factor;
    if (has_own_token()) scales()[threadIdx.x] = scales_tokens ? 1.0f : m_own.factor;
  }

  /// Stores all features.
  __device__ __forceinline__ void store_all() {
    const bool divides_by_largest = m_task.queries && m_task.is_exponential();
    if (has_own_token()) {
      if (!divides_by_largest) bases()[threadIdx.x] = own_base();
      zeros()[threadIdx.x] = own_is_zero();
    }
    float z[Shape::turns][2][Shape::group];
    if (divides_by_largest) {
      const float largest = largest_projection(z);
      if (has_own_token()) bases()[threadIdx.x] = -largest;
      store_log_factor(m_log_factor + largest);
    } else {
      store_log_factor(m_log_factor);
    }
    __syncthreads();
    for (int f0 = 0; f0 < count(); f0 += Shape::chunk) {
      if (!divides_by_largest || count() > Shape::chunk) project(f0, z);
      store_chunk(f0, z);
    }
    if constexpr (by_token<Feature>) store_padding();
  }

  /// The log-scale of this thread's token, which is a key.
  __device__ __forceinline__ float log_scale() {
    if (!m_task.is_exponential()) return m_log_factor;
    float z[Shape::turns][2][Shape::group];
    return m_log_factor + largest_projection(z);
  }

  /// Whether this thread has the data of a token, that of its index in the tile.
  __device__ __forceinline__ bool has_own_token() const { return threadIdx.x < Shape::tokens; }
  __device__ __forceinline__ int own_token() const { return m_t0 + static_cast<int>(threadIdx.x) % Shape::tokens; }
  __device__ __forceinline__ bool is_padding() const {
    return own_token() >= n() || (m_task.mask && !m_task.mask[static_cast<std::ptrdiff_t>(m_z / m_task.x.heads) * n() +
                                                              own_token()]);
  }

 private:
  using Shape = FeatureTile;

  __device__ __forceinline__ float* x() const { return shared_memory<float>(); }  // (d_padded,tokens), or two
  __device__ __forceinline__ float* scratch() const {                              // (warps,tokens)
    return x() + m_task.tiles() * Shape::stride * m_task.d_padded;
  }
  __device__ __forceinline__ float* scales() const { return scratch() + Shape::warps * Shape::tokens; }  // (tokens)
  __device__ __forceinline__ float* bases() const { return scales() + Shape::tokens; }                   // (tokens)
  __device__ __forceinline__ float* zeros() const { return bases() + Shape::tokens; }                    // (tokens)
  // piece c of the features of a chunk that token t has; different places for the tokens of neighbouring lanes
  __device__ __forceinline__ uint4& piece(int t, int c) const {
    constexpr int pieces = Shape::chunk / Shape::piece;
    return reinterpret_cast<uint4*>(zeros() + Shape::tokens)[t * pieces + (c ^ (t / 2 % pieces))];
  }

  __device__ __forceinline__ int n() const { return m_task.x.tokens; }
  // of projections, or of features if there are none
  __device__ __forceinline__ int count() const { return m_task.has_pairs() ? m_task.m : m_task.r(); }
  __device__ __forceinline__ int first_of(int f0, int turn) const {
    return f0 + (turn * Shape::warps + m_warp) * Shape::group;
  }

  // A warp loads 16 channels of some tokens at a time: without bank conflicts, and whole sectors of global memory.
  __device__ __forceinline__ void load_rows() const {
    constexpr int width = 16 / sizeof(S), lanes = 16 / width, rows = 32 / lanes;
    const S* from = m_task.x.of(m_z);
    for (int t = m_warp * rows + m_lane / lanes; t < Shape::tokens; t += Shape::warps * rows) {
      const S* row = from + (m_t0 + t) * m_task.x.token_stride;
      const bool is_inside = m_t0 + t < n();
      for (int k = m_lane % lanes * width; k < m_task.d_padded; k += 16) {
        uint4 all{0, 0, 0, 0};
        if (is_inside) all = *reinterpret_cast<const uint4*>(row + k);
        S values[width];
        std::memcpy(values, &all, sizeof(all));
#pragma unroll
        for (int e = 0; e < width; ++e) x()[(k + e) * Shape::stride + t] = to_float(values[e]);
      }
    }
  }

  // z[turn][token] = the projections from first_of(f0, turn) on; beyond the last one they are copies of it
  __device__ __forceinline__ void project(int f0, float (&z)[Shape::turns][2][Shape::group]) const {
#pragma unroll
    for (int turn = 0; turn < Shape::turns; ++turn) {
      const int first = first_of(f0, turn);
      if (first >= count()) continue;
      if (m_task.kind == FeatureKind::elu || m_task.kind == FeatureKind::quadratic)
        evaluate(first, z[turn]);
      else
        multiply(first, z[turn]);
    }
  }
  __device__ __forceinline__ void multiply(int first, float (&z)[2][Shape::group]) const {
    const int d_padded = m_task.d_padded;
    const float* w = m_task.w_groups + m_head * m_task.w_groups_stride + static_cast<std::ptrdiff_t>(first) * d_padded;
    const float* x = m_coordinates + 2 * m_lane;
#pragma unroll
    for (int i = 0; i < Shape::group; ++i) z[0][i] = z[1][i] = 0;
    for (int k0 = 0; k0 < d_padded; k0 += 4, w += 4 * Shape::group, x += 4 * Shape::stride) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float2 both = *reinterpret_cast<const float2*>(x + k * Shape::stride);
        float w_k[Shape::group];
        *reinterpret_cast<float4*>(w_k) = *reinterpret_cast<const float4*>(w + k * Shape::group);
        *reinterpret_cast<float4*>(w_k + 4) = *reinterpret_cast<const float4*>(w + k * Shape::group + 4);
#pragma unroll
        for (int i = 0; i < Shape::group; ++i) {
          z[0][i] = fmaf(both.x, w_k[i], z[0][i]);
          z[1][i] = fmaf(both.y, w_k[i], z[1][i]);
        }
      }
    }
  }
  // coordinates, of elu features, or quadratic features
  __device__ __forceinline__ void evaluate(int first, float (&z)[2][Shape::group]) const {
    const float* own = m_coordinates + 2 * m_lane;
#pragma unroll
    for (int i = 0; i < Shape::group; ++i) {
      const int f = min(first + i, count() - 1);
#pragma unroll
      for (int t = 0; t < 2; ++t)
        z[t][i] = m_task.kind == FeatureKind::elu ? own[f * Shape::stride + t]
                                                  : m_task.quadratic.of(m_head).template feature<Shape>(f, own + t);
    }
  }

  // The largest projection of this thread's token; for hyperbolic features the largest absolute value. z is that of the
  // last chunk.
  __device__ __forceinline__ float largest_projection(float (&z)[Shape::turns][2][Shape::group]) const {
    float largest[2] = {-largest_float, -largest_float};
    for (int f0 = 0; f0 < count(); f0 += Shape::chunk) {
      project(f0, z);
#pragma unroll
      for (int turn = 0; turn < Shape::turns; ++turn) {
        if (first_of(f0, turn) >= count()) continue;
#pragma unroll
        for (int t = 0; t < 2; ++t)
#pragma unroll
          for (int i = 0; i < Shape::group; ++i)
            largest[t] =
                fmaxf(largest[t], m_task.kind == FeatureKind::hyperbolic ? fabsf(z[turn][t][i]) : z[turn][t][i]);
      }
    }
    *reinterpret_cast<float2*>(scratch() + m_warp * Shape::tokens + 2 * m_lane) = make_float2(largest[0], largest[1]);
    __syncthreads();
    const int t = static_cast<int>(threadIdx.x) % Shape::tokens;
    float all = scratch()[t];
    for (int warp = 1; warp < Shape::warps; ++warp) all = fmaxf(all, scratch()[warp * Shape::tokens + t]);
    return all * scales()[t];
  }

  // of feature_of(), for this thread's token
  __device__ __forceinline__ float own_base() const {
    const float shift = m_task.max_log_scale ? from_ordered(m_task.max_log_scale[m_z]) : m_task.shift;
    if (m_task.is_exponential()) return m_log_factor - shift;
    if (m_task.kind == FeatureKind::quadratic && !m_own.finite) return not_a_number;
    return m_task.queries ? 1.0f : expf(m_log_factor - shift);
  }
  // 1 or 0: whether the features of this thread's token are zero
  __device__ __forceinline__ float own_is_zero() const {
    if (is_padding()) return 1;
    const AttentionMask& mask = m_task.attention_mask;
    if (m_own.finite) return 0;
    return (m_task.queries ? mask.attends_any(m_z, own_token()) : mask.is_attended(m_z, own_token())) ? 0 : 1;
  }
  __device__ __forceinline__ void store_log_factor(float x) const {
    if (m_task.log_factors && has_own_token() && own_token() < n())
      m_task.log_factors[static_cast<std::ptrdiff_t>(m_z) * n() + own_token()] = x;
  }

  __device__ __forceinline__ void store_chunk(int f0, const float (&z)[Shape::turns][2][Shape::group]) const {
    switch (m_task.kind) {
      case FeatureKind::positive: return store_side<FeatureKind::positive, false>(f0, z);
      case FeatureKind::elu: return store_side<FeatureKind::elu, false>(f0, z);
      case FeatureKind::quadratic: return store_side<FeatureKind::quadratic, false>(f0, z);
      case FeatureKind::hyperbolic:
        store_side<FeatureKind::hyperbolic, false>(f0, z);
        return store_side<FeatureKind::hyperbolic, true>(f0, z);
      case FeatureKind::trigonometric:
        store_side<FeatureKind::trigonometric, false>(f0, z);
        return store_side<FeatureKind::trigonometric, true>(f0, z);
    }
  }
  // stores the first or the second features of the projections of a chunk
  template <FeatureKind kind, bool second>
  __device__ __forceinline__ void store_side(int f0, const float (&z)[Shape::turns][2][Shape::group]) const {
    const int m0 = second ? m_task.m : 0;
    const float2 scale = *reinterpret_cast<const float2*>(scales() + 2 * m_lane),
                 base = *reinterpret_cast<const float2*>(bases() + 2 * m_lane),
                 zero = *reinterpret_cast<const float2*>(zeros() + 2 * m_lane);
#pragma unroll
    for (int turn = 0; turn < Shape::turns; ++turn) {
      const int first = first_of(f0, turn);
      if (first >= count()) continue;
      float phi[2][Shape::group];
#pragma unroll
      for (int i = 0; i < Shape::group; ++i) {
        phi[0][i] = zero.x != 0 ? 0.0f : feature_of<kind, second>(z[turn][0][i], scale.x, base.x);
        phi[1][i] = zero.y != 0 ? 0.0f : feature_of<kind, second>(z[turn][1][i], scale.y, base.y);
      }
      store_group(first, m0, phi);
    }
    if constexpr (by_token<Feature>) store_pieces(f0, m0);
  }

  // stores features m0 + first .. of this lane's tokens; those by token in shared memory first
  __device__ __forceinline__ void store_group(int first, int m0, float (&phi)[2][Shape::group]) const {
    const int all = min(Shape::group, count() - first);
    if constexpr (by_token<Feature>) {
      if (!has_pieces()) {
        for (int t = 0; t < 2; ++t)
#pragma unroll
          for (int i = 0; i < Shape::group; ++i)
            if (i < all && m_t0 + 2 * m_lane + t < n()) store(row(2 * m_lane + t) + m0 + first + i, phi[t][i]);
        return;
      }
#pragma unroll
      for (int t = 0; t < 2; ++t) {
#pragma unroll
        for (int i = 0; i < Shape::group; ++i)
          if (i >= all) phi[t][i] = 0;
        store_all_of(&piece(2 * m_lane + t, first % Shape::chunk / Shape::piece), phi[t]);
      }
    } else {
      const std::ptrdiff_t stride = m_task.stride;
      const int token = m_t0 + 2 * m_lane;
      float* to = m_task.phi + (static_cast<std::ptrdiff_t>(m_z) * m_task.r() + m0 + first) * stride + token;
#pragma unroll
      for (int i = 0; i < Shape::group; ++i, to += stride) {
        if (i >= all) break;
        if (m_task.stride % 2 == 0) {
          if (token < m_task.stride) *reinterpret_cast<float2*>(to) = make_float2(phi[0][i], phi[1][i]);
        } else {
          if (token < m_task.stride) to[0] = phi[0][i];
          if (token + 1 < m_task.stride) to[1] = phi[1][i];
        }
      }
    }
  }

  // ---- features by token

  // whether groups of 8 features start at multiples of 8
  __device__ __forceinline__ bool has_pieces() const { return !m_task.has_pairs() || m_task.m % Shape::piece == 0; }
  __device__ __forceinline__ Feature* row(int t) const {
    return m_task.phi + (static_cast<std::ptrdiff_t>(m_z) * n() + m_t0 + t) * m_task.stride;
  }
  __device__ __forceinline__ static void store_all_of(uint4* to, const float (&phi)[Shape::group]) {
    cuda::store_all(reinterpret_cast<__nv_bfloat16*>(to), phi);
  }
  // stores features m0 + f of the projections f of a chunk, from shared memory
  __device__ __forceinline__ void store_pieces(int f0, int m0) const {
    if (!has_pieces()) return;
    constexpr int pieces = Shape::chunk / Shape::piece;
    __syncthreads();
    const int c = static_cast<int>(threadIdx.x) % pieces, f = f0 + c * Shape::piece;
    Feature* to = row(0) + m0 + f;
    for (int t = static_cast<int>(threadIdx.x) / pieces; t < Shape::tokens; t += Shape::threads / pieces)
      if (f < count() && m_t0 + t < n())
        *reinterpret_cast<uint4*>(to + static_cast<std::ptrdiff_t>(t) * m_task.stride) = piece(t, c);
    __syncthreads();  // before the next pieces
  }
  // stores zeros from the last feature on
  __device__ __forceinline__ void store_padding() const {
    const int first = has_pieces() ? (m_task.r() + Shape::piece - 1) / Shape::piece * Shape::piece : m_task.r();
    if (!has_own_token() || own_token() >= n()) return;
    for (int f = first; f < m_task.stride; ++f) store(row(static_cast<int>(threadIdx.x)) + f, 0.0f);
  }

  const FeatureTask<S, Feature>& m_task;
  int m_z, m_head, m_t0, m_lane, m_warp;
  NormalisedToken m_own;  // of this thread's token
  float m_log_factor;     // likewise
  const float* m_coordinates;
};

/// Computes both tasks. Blocks (tiles of tokens, z, task).
template <Storage S, class Feature>
__global__ void __launch_bounds__(FeatureTile::threads)
    features_kernel(FeatureTask<S, Feature> first, FeatureTask<S, Feature> second) {
  const FeatureTask<S, Feature>& task = blockIdx.z == 0 ? first : second;
  if (static_cast<int>(blockIdx.x) * FeatureTile::tokens >= task.tokens()) return;
  TileFeatures<S, Feature>(task).store_all();
}

/// Computes the largest log-scale of the keys; non-finite ones are ignored. Blocks (tiles of tokens, z).
template <Storage S, class Feature>
__global__ void __launch_bounds__(FeatureTile::threads) log_scales_kernel(FeatureTask<S, Feature> task) {
  TileFeatures<S, Feature> tile(task);
  const float log_scale = tile.log_scale();
  const bool is_counted = tile.has_own_token() && !tile.is_padding() && fabsf(log_scale) < largest_float;
  const float largest =
      over_warp(is_counted ? log_scale : -largest_float, [](float a, float b) { return fmaxf(a, b); });
  if (threadIdx.x % 32 == 0 && largest > -largest_float)
    atomicMax(task.max_log_scale + static_cast<int>(blockIdx.y), ordered(largest));
}

/// Queues the largest log-scales of a task, if it needs them.
template <Storage S, class Feature>
void queue_log_scales(const FeatureTask<S, Feature>& task, int z, cudaStream_t stream) {
  if (!task.max_log_scale || task.x.tokens == 0 || z == 0) return;
  check(cudaMemsetAsync(task.max_log_scale, 0x80, sizeof(int) * static_cast<std::size_t>(z), stream),
        "clearing log-scales");
  launch("features: log-scales", log_scales_kernel<S, Feature>,
         dim3{blocks_of<FeatureTile::tokens>(task.x.tokens), static_cast<unsigned>(z), 1},
         dim3{FeatureTile::threads, 1, 1}, FeatureTile::shared(task.d_padded, task.tiles(), by_token<Feature>), stream, task);
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
         dim3{blocks_of<FeatureTile::tokens>(tokens), static_cast<unsigned>(z), 2}, dim3{FeatureTile::threads, 1, 1},
         FeatureTile::shared(first.d_padded, first.tiles(), by_token<Feature>), stream, first, second);
}

}  // namespace nprf::cuda
