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
  static constexpr int stride = 2 * (tokens + 2);                                        // of pairs of channels
  static constexpr int warps = threads / 32, turns = 2, group = 8, chunk = turns * warps * group;
  static constexpr int blocks = 5;  // of a multiprocessor, that must find registers
  static constexpr int piece = 8;   // features of a token that are stored at once if they are bfloat16

  // two channels of two tokens are 16 bytes
  __host__ __device__ static constexpr int at(int k, int t) { return k / 2 * stride + k % 2 + 2 * t; }

  /// The bytes of some tiles, of reductions, of three scalars a token, and of the features that are stored by token.
  static std::size_t shared(int d_padded, int tiles, bool by_token) {
    return sizeof(float) * static_cast<std::size_t>(at(d_padded, 0) * tiles + (warps + 3) * tokens) +
           (by_token ? sizeof(__nv_bfloat16) * tokens * chunk : 0);
  }
};

/// The features of a tile of tokens. All threads of a block of FeatureTile take part.
template <FeatureKind kind, Storage S, class Feature>
class TileFeatures {
 public:
  /// Loads the tokens and computes their coordinates.
  __device__ __forceinline__ explicit TileFeatures(const FeatureTask<S, Feature>& task)
      : m_task(task),
        m_z(static_cast<int>(blockIdx.y)),
        m_head(m_z % task.x.heads),
        m_t0(static_cast<int>(blockIdx.x) * Shape::tokens),
        m_lane(static_cast<int>(threadIdx.x % 32)),
        m_warp(static_cast<int>(threadIdx.x / 32)),
        m_scratch(x() + task.tiles() * Shape::at(task.d_padded, 0)) {
    const float square = task.x.has_aligned_rows ? load_rows() : load_any_rows();
    m_own = measure<Shape>(task, x(), scratch(), square);
    // else projections are multiplied by the factor
    const bool scales_tokens = !has_projections || m_own.is_extreme || task.centring.values;
    if (scales_tokens) scale_token<Shape>(x(), task.x.channels, m_own.factor);
    const TokenCoordinates at = coordinates_of<Shape>(task, m_head, x(), scratch(), m_own);
    m_coordinates = at.z;
    m_log_factor = at.log_factor;
    if (has_own_token()) scales()[threadIdx.x] = unit * (scales_tokens ? 1.0f : m_own.factor);
  }

  /// Stores all features.
  __device__ __forceinline__ void store_all() {
    const bool divides_by_largest = is_exponential && m_task.queries;
    float z[Shape::turns][2][Shape::group];
    if (has_own_token()) zeros()[threadIdx.x] = own_is_zero();
    if (divides_by_largest) {
      const float largest = largest_projection(z);
      if (has_own_token()) bases()[threadIdx.x] = -largest;
      store_log_factor(m_log_factor + largest / unit);
    } else {
      if (has_own_token()) bases()[threadIdx.x] = own_base();
      store_log_factor(m_log_factor);
    }
    __syncthreads();
    for (int f0 = 0; f0 < count(); f0 += Shape::chunk) {
      if (!divides_by_largest || count() > Shape::chunk) project(f0, z);
      store_chunk<false>(f0, z);
      if constexpr (has_pairs) store_chunk<true>(f0, z);
    }
    if constexpr (by_token<Feature>) store_padding();
  }

  /// The log-scale of this thread's token, which is a key.
  __device__ __forceinline__ float log_scale() {
    if constexpr (!is_exponential) return m_log_factor;
    float z[Shape::turns][2][Shape::group];
    return m_log_factor + largest_projection(z) / unit;
  }

  /// Whether this thread has the data of a token, that of its index in the tile.
  __device__ __forceinline__ bool has_own_token() const { return threadIdx.x < Shape::tokens; }
  __device__ __forceinline__ int own_token() const { return m_t0 + static_cast<int>(threadIdx.x % Shape::tokens); }
  __device__ __forceinline__ bool is_padding() const {
    return own_token() >= n() ||
           (m_task.mask && !m_task.mask[static_cast<std::ptrdiff_t>(m_z / m_task.x.heads) * n() + own_token()]);
  }

 private:
  using Shape = FeatureTile;
  static constexpr bool has_pairs = kind == FeatureKind::hyperbolic || kind == FeatureKind::trigonometric;
  static constexpr bool is_exponential = kind == FeatureKind::positive || kind == FeatureKind::hyperbolic;
  static constexpr bool has_projections = has_pairs || is_exponential;
  static constexpr float unit = is_exponential ? log2_e : 1.0f;  // of scales and bases
  static constexpr int pieces = Shape::chunk / Shape::piece;     // of a token

  __device__ __forceinline__ float* x() const { return shared_memory<float>(); }  // (d_padded,tokens), or two
  __device__ __forceinline__ float* scratch() const { return m_scratch; }         // (warps,tokens)
  __device__ __forceinline__ float* scales() const { return scratch() + Shape::warps * Shape::tokens; }  // (tokens)
  __device__ __forceinline__ float* bases() const { return scales() + Shape::tokens; }                   // (tokens)
  __device__ __forceinline__ float* zeros() const { return bases() + Shape::tokens; }                    // (tokens)
  // Piece c of the features of a chunk that token t has; that of token t + 1 follows `pieces` later if t is even.
  // Pieces of neighbouring pairs of tokens are in other banks.
  __device__ __forceinline__ uint4* piece(int t, int c) const {
    return reinterpret_cast<uint4*>(zeros() + Shape::tokens) + t * pieces + (c ^ (t / 2 % pieces));
  }

  __device__ __forceinline__ int n() const { return m_task.x.tokens; }
  // of projections, or of features if there are none
  __device__ __forceinline__ int count() const {
    return has_projections ? m_task.m : kind == FeatureKind::elu ? m_task.x.channels : m_task.quadratic.r;
  }
  __device__ __forceinline__ int first_of(int f0, int turn) const {
    return f0 + (turn * Shape::warps + m_warp) * Shape::group;
  }

  // Loads the tokens, and returns |x|^2 of this thread's token. A warp loads 16 channels of some tokens at a time:
  // without bank conflicts, and whole sectors of global memory. Beyond the end it loads copies of the last token.
  __device__ __forceinline__ float load_rows() const {
    constexpr int width = 16 / sizeof(S), lanes = 16 / width, rows = 32 / lanes;
    const S* from = m_task.x.of(m_z) + m_lane % lanes * width;
#pragma unroll
    for (int t0 = 0; t0 < Shape::tokens; t0 += Shape::warps * rows) {
      const int t = t0 + m_warp * rows + m_lane / lanes;
      const S* row = from + min(m_t0 + t, n() - 1) * m_task.x.token_stride;
      float* to = x() + Shape::at(m_lane % lanes * width, t);
      float square = 0;
      for (int k = m_lane % lanes * width; k < m_task.d_padded; k += 16, row += 16, to += Shape::at(16, 0)) {
        const uint4 all = *reinterpret_cast<const uint4*>(row);
        S values[width];
        std::memcpy(values, &all, sizeof(all));
#pragma unroll
        for (int e = 0; e < width; e += 2) {
          const float2 two = make_float2(to_float(values[e]), to_float(values[e + 1]));
          square = fmaf(two.y, two.y, fmaf(two.x, two.x, square));
          *reinterpret_cast<float2*>(to + Shape::at(e, 0)) = two;
        }
      }
      for (int step = 1; step < lanes; step *= 2) square += __shfl_xor_sync(~0u, square, step);
      if (m_lane % lanes == 0) scratch()[t] = square;
    }
    __syncthreads();
    return scratch()[static_cast<int>(threadIdx.x % Shape::tokens)];
  }
  __device__ __forceinline__ float load_any_rows() const {
    const S* from = m_task.x.of(m_z);
    const int d_padded = m_task.d_padded;
    for (int e = static_cast<int>(threadIdx.x); e < Shape::tokens * d_padded; e += Shape::threads) {
      const int t = e / d_padded, k = e % d_padded;
      const bool is_inside = m_t0 + t < n() && k < m_task.x.channels;
      x()[Shape::at(k, t)] = is_inside ? to_float(from[(m_t0 + t) * m_task.x.token_stride + k]) : 0.0f;
    }
    __syncthreads();
    return square_of<Shape>(x(), m_task.x.channels, scratch());
  }

  // z[turn][token] = the projections from first_of(f0, turn) on; beyond the last one they are copies of it
  __device__ __forceinline__ void project(int f0, float (&z)[Shape::turns][2][Shape::group]) const {
#pragma unroll
    for (int turn = 0; turn < Shape::turns; ++turn) {
      const int first = first_of(f0, turn);
      if (first >= count()) continue;
      if constexpr (has_projections)
        multiply(first, z[turn]);
      else
        evaluate(first, z[turn]);
    }
  }
  __device__ __forceinline__ void multiply(int first, float (&z)[2][Shape::group]) const {
    const int d_padded = m_task.d_padded;
    const float* w = m_task.w_groups + m_head * m_task.w_groups_stride + static_cast<std::ptrdiff_t>(first) * d_padded;
    const float* x = m_coordinates + Shape::at(0, 2 * m_lane);
#pragma unroll
    for (int i = 0; i < Shape::group; ++i) z[0][i] = z[1][i] = 0;
    int k = 0;
    for (; k + 16 <= d_padded; k += 16, w += 16 * Shape::group, x += Shape::at(16, 0)) add_products<16>(w, x, z);
    for (; k < d_padded; k += 4, w += 4 * Shape::group, x += Shape::at(4, 0)) add_products<4>(w, x, z);
  }
  template <int channels>
  __device__ __forceinline__ static void add_products(const float* w, const float* x, float (&z)[2][Shape::group]) {
#pragma unroll
    for (int k = 0; k < channels; k += 2) {
      const float4 all = *reinterpret_cast<const float4*>(x + Shape::at(k, 0));
      add_products(w + k * Shape::group, make_float2(all.x, all.z), z);
      add_products(w + (k + 1) * Shape::group, make_float2(all.y, all.w), z);
    }
  }
  __device__ __forceinline__ static void add_products(const float* w, float2 x, float (&z)[2][Shape::group]) {
    float rows[Shape::group];
    *reinterpret_cast<float4*>(rows) = *reinterpret_cast<const float4*>(w);
    *reinterpret_cast<float4*>(rows + 4) = *reinterpret_cast<const float4*>(w + 4);
#pragma unroll
    for (int i = 0; i < Shape::group; ++i) {
      z[0][i] = fmaf(x.x, rows[i], z[0][i]);
      z[1][i] = fmaf(x.y, rows[i], z[1][i]);
    }
  }
  // coordinates, of elu features, or quadratic features
  __device__ __forceinline__ void evaluate(int first, float (&z)[2][Shape::group]) const {
#pragma unroll
    for (int i = 0; i < Shape::group; ++i) {
      const int f = min(first + i, count() - 1);
#pragma unroll
      for (int t = 0; t < 2; ++t)
        if constexpr (kind == FeatureKind::elu)
          z[t][i] = m_coordinates[Shape::at(f, 2 * m_lane + t)];
        else
          z[t][i] =
              m_task.quadratic.of(m_head).template feature<Shape>(f, m_coordinates + Shape::at(0, 2 * m_lane + t));
    }
  }

  // The largest projection of this thread's token, times its scale; for hyperbolic features the largest absolute value.
  // z is that of the last chunk.
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
            largest[t] = fmaxf(largest[t], kind == FeatureKind::hyperbolic ? fabsf(z[turn][t][i]) : z[turn][t][i]);
      }
    }
    *reinterpret_cast<float2*>(scratch() + m_warp * Shape::tokens + 2 * m_lane) = make_float2(largest[0], largest[1]);
    __syncthreads();
    const int t = static_cast<int>(threadIdx.x % Shape::tokens);
    float all = scratch()[t];
    for (int warp = 1; warp < Shape::warps; ++warp) all = fmaxf(all, scratch()[warp * Shape::tokens + t]);
    return all * scales()[t];
  }

  // of feature_of(), for this thread's token
  __device__ __forceinline__ float own_base() const {
    const float shift = m_task.max_log_scale ? from_ordered(m_task.max_log_scale[m_z]) : m_task.shift;
    if constexpr (is_exponential) return unit * (m_log_factor - shift);
    if (kind == FeatureKind::quadratic && !m_own.finite) return not_a_number;
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

  // stores the first or the second features of the projections of a chunk
  template <bool second>
  __device__ __forceinline__ void store_chunk(int f0, const float (&z)[Shape::turns][2][Shape::group]) const {
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
        phi[0][i] = feature_of<kind, second>(z[turn][0][i], scale.x, base.x);
        phi[1][i] = feature_of<kind, second>(z[turn][1][i], scale.y, base.y);
      }
      if (zero.x + zero.y != 0) clear(phi, zero);
      if constexpr (by_token<Feature>)
        store_by_token(first, m0, phi);
      else
        store_by_channel(first, m0, phi);
    }
    if constexpr (by_token<Feature>) store_pieces(f0, m0);
  }

  // clears the features of tokens that are zero
  __device__ __forceinline__ static void clear(float (&phi)[2][Shape::group], float2 zero) {
#pragma unroll
    for (int i = 0; i < Shape::group; ++i) {
      if (zero.x != 0) phi[0][i] = 0;
      if (zero.y != 0) phi[1][i] = 0;
    }
  }
  // stores features m0 + first .. of this lane's tokens, by channel
  __device__ __forceinline__ void store_by_channel(int first, int m0, const float (&phi)[2][Shape::group]) const {
    const int stride = m_task.stride, token = m_t0 + 2 * m_lane, all = token < stride ? count() - first : 0;
    float* to = m_task.phi + (static_cast<std::ptrdiff_t>(m_z) * m_task.r() + m0 + first) * stride + token;
#pragma unroll
    for (int i = 0; i < Shape::group; ++i, to += stride) {
      if (i < all && stride % 2 == 0) *reinterpret_cast<float2*>(to) = make_float2(phi[0][i], phi[1][i]);
      if (i < all && stride % 2 == 1) to[0] = phi[0][i];
      if (i < all && stride % 2 == 1 && token + 1 < stride) to[1] = phi[1][i];
    }
  }

  // ---- features by token

  // whether groups of 8 features start at multiples of 8
  __device__ __forceinline__ bool are_aligned() const { return !has_pairs || m_task.m % Shape::piece == 0; }
  __device__ __forceinline__ Feature* row(int t) const {
    return m_task.phi + (static_cast<std::ptrdiff_t>(m_z) * n() + m_t0 + t) * m_task.stride;
  }
  // stores features m0 + first .. of this lane's tokens: in shared memory, for store_pieces(), if they are aligned
  __device__ __forceinline__ void store_by_token(int first, int m0, float (&phi)[2][Shape::group]) const {
    const int all = min(Shape::group, count() - first);
    if (are_aligned()) {
      if (all < Shape::group) clear_from(all, phi);
      uint4* to = piece(2 * m_lane, first % Shape::chunk / Shape::piece);
      cuda::store_all(reinterpret_cast<__nv_bfloat16*>(to), phi[0]);
      cuda::store_all(reinterpret_cast<__nv_bfloat16*>(to + pieces), phi[1]);
      return;
    }
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int i = 0; i < Shape::group; ++i)
        if (i < all && m_t0 + 2 * m_lane + t < n()) store(row(2 * m_lane + t) + m0 + first + i, phi[t][i]);
  }
  __device__ __forceinline__ static void clear_from(int first, float (&phi)[2][Shape::group]) {
#pragma unroll
    for (int i = 0; i < Shape::group; ++i)
      if (i >= first) phi[0][i] = phi[1][i] = 0;
  }
  // stores features m0 + f of the projections f of a chunk, from shared memory
  __device__ __forceinline__ void store_pieces(int f0, int m0) const {
    if (!are_aligned()) return;
    constexpr int step = Shape::threads / pieces;  // so that the places of pieces repeat
    static_assert(step % (2 * pieces) == 0);
    __syncthreads();
    const int c = static_cast<int>(threadIdx.x % pieces), t = static_cast<int>(threadIdx.x / pieces),
              f = f0 + c * Shape::piece;
    Feature* to = row(t) + m0 + f;
    const std::ptrdiff_t stride = static_cast<std::ptrdiff_t>(step) * m_task.stride;
    const uint4* from = piece(t, c);
    const int count_of_rows = f < count() ? n() - m_t0 - t : 0;
#pragma unroll
    for (int k = 0; k < Shape::tokens; k += step, to += stride)
      if (k < count_of_rows) *reinterpret_cast<uint4*>(to) = from[k * pieces];
    __syncthreads();  // before the next pieces
  }
  // stores zeros from the last feature on
  __device__ __forceinline__ void store_padding() const {
    const int first = are_aligned() ? (m_task.r() + Shape::piece - 1) / Shape::piece * Shape::piece : m_task.r();
    if (!has_own_token() || own_token() >= n()) return;
    for (int f = first; f < m_task.stride; ++f) store(row(static_cast<int>(threadIdx.x)) + f, 0.0f);
  }

  const FeatureTask<S, Feature>& m_task;
  int m_z, m_head, m_t0, m_lane, m_warp;
  float* m_scratch;
  NormalisedToken m_own;  // of this thread's token
  float m_log_factor;     // likewise
  const float* m_coordinates;
};

/// Computes both tasks. Blocks (tiles of tokens, z, task).
template <FeatureKind kind, Storage S, class Feature>
__global__ void __launch_bounds__(FeatureTile::threads, FeatureTile::blocks)
    features_kernel(FeatureTask<S, Feature> first, FeatureTask<S, Feature> second) {
  const int t0 = static_cast<int>(blockIdx.x) * FeatureTile::tokens;
  // parameters that are chosen by an address would be copied to local memory
  if (blockIdx.z == 0) {
    if (t0 < first.tokens()) TileFeatures<kind, S, Feature>(first).store_all();
  } else {
    if (t0 < second.tokens()) TileFeatures<kind, S, Feature>(second).store_all();
  }
}

/// Computes the largest log-scale of the keys; non-finite ones are ignored. Blocks (tiles of tokens, z).
template <FeatureKind kind, Storage S, class Feature>
__global__ void __launch_bounds__(FeatureTile::threads) log_scales_kernel(FeatureTask<S, Feature> task) {
  TileFeatures<kind, S, Feature> tile(task);
  const float log_scale = tile.log_scale();
  const bool is_counted = tile.has_own_token() && !tile.is_padding() && fabsf(log_scale) < largest_float;
  const float largest =
      over_warp(is_counted ? log_scale : -largest_float, [](float a, float b) { return fmaxf(a, b); });
  if (threadIdx.x % 32 == 0 && largest > -largest_float)
    atomicMax(task.max_log_scale + static_cast<int>(blockIdx.y), ordered(largest));
}

/// Calls f.operator()<kind>().
template <class F>
void with_kind(FeatureKind kind, F&& f) {
  switch (kind) {
    case FeatureKind::positive: return f.template operator()<FeatureKind::positive>();
    case FeatureKind::hyperbolic: return f.template operator()<FeatureKind::hyperbolic>();
    case FeatureKind::trigonometric: return f.template operator()<FeatureKind::trigonometric>();
    case FeatureKind::elu: return f.template operator()<FeatureKind::elu>();
    case FeatureKind::quadratic: return f.template operator()<FeatureKind::quadratic>();
  }
}

/// Queues the largest log-scales of a task, if it needs them.
template <Storage S, class Feature>
void queue_log_scales(const FeatureTask<S, Feature>& task, int z, cudaStream_t stream) {
  if (!task.max_log_scale || task.x.tokens == 0 || z == 0) return;
  queue_fill("clearing log-scales", task.max_log_scale, 0x80, sizeof(int) * static_cast<std::size_t>(z), stream);
  with_kind(task.kind, [&]<FeatureKind kind>() {
    if constexpr (kind != FeatureKind::elu)
      launch("features: log-scales", log_scales_kernel<kind, S, Feature>,
             dim3{blocks_of<FeatureTile::tokens>(task.x.tokens), static_cast<unsigned>(z), 1},
             dim3{FeatureTile::threads, 1, 1}, FeatureTile::shared(task.d_padded, task.tiles(), by_token<Feature>),
             stream, task);
  });
}

/// Queues the features of two tasks, such as queries and keys. Both must have the same z, d and kind.
template <Storage S, class Feature>
void queue_features(const FeatureTask<S, Feature>& first, const FeatureTask<S, Feature>& second, int z,
                    cudaStream_t stream) {
  queue_log_scales(first, z, stream);
  queue_log_scales(second, z, stream);
  const int tokens = std::max(first.tokens(), second.tokens());
  if (tokens == 0 || z == 0) return;
  with_kind(first.kind, [&]<FeatureKind kind>() {
    launch("features", features_kernel<kind, S, Feature>,
           dim3{blocks_of<FeatureTile::tokens>(tokens), static_cast<unsigned>(z), 2}, dim3{FeatureTile::threads, 1, 1},
           FeatureTile::shared(first.d_padded, first.tiles(), by_token<Feature>), stream, first, second);
  });
}

}  // namespace nprf::cuda
