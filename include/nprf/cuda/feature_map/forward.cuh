// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/scales.cuh"
#include "nprf/cuda/device/storage.cuh"
#include "nprf/cuda/feature_map/projected_tile.cuh"
#include "nprf/cuda/feature_map/projection.cuh"
#include "nprf/cuda/feature_map/task.cuh"
#include "nprf/cuda/feature_map/tensor_forward.cuh"

namespace nprf::cuda {

/// The features of a tile of tokens.
template <FeatureKind kind, Storage S, class Feature>
class TileFeatures : public ProjectedTile<kind, S, Feature> {
 public:
  using Base = ProjectedTile<kind, S, Feature>;

  // not an inherited constructor, which clang does not inline
  __device__ __forceinline__ explicit TileFeatures(const FeatureTask<S, Feature>& task) : Base(task) {}

  /// Stores all features. Queries whose features are divided by the largest one are projected once if all projections
  /// are one chunk, and twice otherwise.
  __device__ __forceinline__ void store_all() {
    const bool divides_by_largest = is_exponential<kind> && m_task.queries;
    float z[Shape::turns][2][Shape::group];
    if (has_own_token()) zeros()[threadIdx.x] = m_tokens.is_zero(own_token(), m_own.finite);
    if (divides_by_largest) {
      const float largest = largest_projection(z);
      if (has_own_token()) bases()[threadIdx.x] = -largest;
      store_factors(m_log_factor + largest / exponent_unit<kind>);
    } else {
      if (has_own_token()) bases()[threadIdx.x] = m_tokens.base(m_log_factor, m_own.finite);
      store_factors(m_log_factor);
    }
    __syncthreads();
    for (int f0 = 0; f0 < count(); f0 += Shape::chunk) {
      if (!divides_by_largest || count() > Shape::chunk) project(f0, z);
      store_chunk<false>(f0, z);
      if constexpr (has_pairs<kind>) store_chunk<true>(f0, z);
    }
    if constexpr (by_token<Feature>) store_padding();
  }

 private:
  using Base::has_own_token, Base::own_token, Base::count, Base::first_of, Base::n, Base::stored_matrix, Base::scales,
      Base::project, Base::largest_projection, Base::m_task, Base::m_tokens, Base::m_t0, Base::m_lane, Base::m_own,
      Base::m_log_factor;
  using Shape = FeatureTile;
  static constexpr int pieces = Shape::chunk / Shape::piece;  // of the features of a token

  __device__ __forceinline__ float* bases() const { return scales() + Shape::tokens; }  // (tokens)
  __device__ __forceinline__ float* zeros() const { return bases() + Shape::tokens; }   // (tokens)
  // Where piece c of token t's features of a chunk is. If t is even, piece c of token t + 1 is `pieces` places further.
  // Pieces of neighbouring pairs of tokens are in different banks.
  __device__ __forceinline__ uint4* piece(int t, int c) const {
    return reinterpret_cast<uint4*>(zeros() + Shape::tokens) + t * pieces + (c ^ (t / 2 % pieces));
  }

  // for this thread's token
  __device__ __forceinline__ void store_factors(float log_factor) const {
    if (has_own_token()) m_tokens.store_factors(own_token(), log_factor, m_own.factor);
  }

  // stores features f of the projections f of a chunk, or if `second` is true their features m + f
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
        phi[0][i] = feature_scale<Feature> * feature_of<kind, second>(z[turn][0][i], scale.x, base.x);
        phi[1][i] = feature_scale<Feature> * feature_of<kind, second>(z[turn][1][i], scale.y, base.y);
      }
      if (zero.x + zero.y != 0) clear(phi, zero);
      if constexpr (by_token<Feature>)
        store_by_token(first, m0, phi);
      else
        store_by_channel(first, m0, phi);
    }
    if constexpr (by_token<Feature>) store_pieces(f0, m0);
  }

  // sets the features of a token to zero if its entry of `zero` is not 0
  __device__ __forceinline__ static void clear(float (&phi)[2][Shape::group], float2 zero) {
#pragma unroll
    for (int i = 0; i < Shape::group; ++i) {
      if (zero.x != 0) phi[0][i] = 0;
      if (zero.y != 0) phi[1][i] = 0;
    }
  }
  // stores the features of this lane's tokens from m0 + first on, by channel
  __device__ __forceinline__ void store_by_channel(int first, int m0, const float (&phi)[2][Shape::group]) const {
    const int stride = m_task.stride, token = m_t0 + 2 * m_lane, all = token < stride ? count() - first : 0;
    float* to = m_task.phi + (static_cast<std::ptrdiff_t>(stored_matrix()) * m_task.r + m0 + first) * stride + token;
#pragma unroll
    for (int i = 0; i < Shape::group; ++i, to += stride) {
      if (i < all && stride % 2 == 0) *reinterpret_cast<float2*>(to) = make_float2(phi[0][i], phi[1][i]);
      if (i < all && stride % 2 == 1) to[0] = phi[0][i];
      if (i < all && stride % 2 == 1 && token + 1 < stride) to[1] = phi[1][i];
    }
  }

  // ---- features by token

  // whether groups of 8 features start at multiples of 8
  __device__ __forceinline__ bool are_aligned() const { return !has_pairs<kind> || m_task.m % Shape::piece == 0; }
  __device__ __forceinline__ Feature* row(int t) const {
    return m_task.phi + (static_cast<std::ptrdiff_t>(stored_matrix()) * n() + m_t0 + t) * m_task.stride;
  }
  // stores the features of this lane's tokens from m0 + first on: if they are aligned, in shared memory for
  // store_pieces(), and otherwise in phi
  __device__ __forceinline__ void store_by_token(int first, int m0, float (&phi)[2][Shape::group]) const {
    const int all = min(Shape::group, count() - first);
    if (are_aligned()) {
      if (all < Shape::group) clear_from(all, phi);
      uint4* to = piece(2 * m_lane, first % Shape::chunk / Shape::piece);
      cuda::store_all(reinterpret_cast<Feature*>(to), phi[0]);
      cuda::store_all(reinterpret_cast<Feature*>(to + pieces), phi[1]);
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
  // stores features m0 + f of the projections f of a chunk; they are read from shared memory
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
  // stores the zeros after the last feature, or after its piece if there are pieces
  __device__ __forceinline__ void store_padding() const {
    const int first = are_aligned() ? (m_task.r + Shape::piece - 1) / Shape::piece * Shape::piece : m_task.r;
    if (!has_own_token() || own_token() >= n()) return;
    for (int f = first; f < m_task.stride; ++f) store(row(static_cast<int>(threadIdx.x)) + f, 0.0f);
  }
};

/// Computes both tasks. blockIdx.x: tile of tokens, blockIdx.y: matrix of features, blockIdx.z: task. With
/// z = gridDim.y a task has z / group matrices; blocks beyond these do nothing.
template <FeatureKind kind, Storage S, class Feature>
__global__ void __launch_bounds__(FeatureTile::threads, FeatureTile::blocks)
    features_kernel(FeatureTask<S, Feature> first, FeatureTask<S, Feature> second) {
  start_kernel();
  const int t0 = static_cast<int>(blockIdx.x) * FeatureTile::tokens, z = static_cast<int>(gridDim.y),
            stored_matrix = static_cast<int>(blockIdx.y);
  // parameters that are chosen by an address would be copied to local memory
  if (blockIdx.z == 0) {
    if (t0 < first.tokens() && stored_matrix * first.group < z) TileFeatures<kind, S, Feature>(first).store_all();
  } else {
    if (t0 < second.tokens() && stored_matrix * second.group < z) TileFeatures<kind, S, Feature>(second).store_all();
  }
}

/// Computes the largest log-scale of each matrix of keys; non-finite ones are ignored. blockIdx.x: tile of tokens,
/// blockIdx.y: matrix of features.
template <FeatureKind kind, Storage S, class Feature>
__global__ void __launch_bounds__(FeatureTile::threads) log_scales_kernel(FeatureTask<S, Feature> task) {
  start_kernel();
  ProjectedTile<kind, S, Feature>(task).store_log_scale();
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

/// Whether to queue kernels that compute projections in float. While kernels are only loaded (KernelLoading), it is
/// always true: rows of later calls may not be aligned for tensor cores.
inline bool queues_in_float(bool uses_tensor_cores) { return KernelLoading::is_active() || !uses_tensor_cores; }

/// Queues the computation of a task's largest log-scales, if it needs them. `z` is the number of heads of all
/// sequences.
template <Storage S, class Feature>
void queue_log_scales(const FeatureTask<S, Feature>& task, int z, cudaStream_t stream) {
  if (!task.max_log_scale || task.x.tokens == 0 || z == 0) return;
  const unsigned matrices = static_cast<unsigned>(z / task.group);
  queue_fill("clearing log-scales", task.max_log_scale, 0x80, sizeof(int) * matrices, stream);
  const bool uses_tensor_cores = task.uses_tensor_cores();
  with_kind(task.kind, [&]<FeatureKind kind>() {
    if constexpr (traits_of(kind).estimates_exp)
      if (queues_in_float(uses_tensor_cores))
        launch("features: log-scales", log_scales_kernel<kind, S, Feature>,
               dim3{blocks_of<FeatureTile::tokens>(task.x.tokens), matrices, 1}, dim3{FeatureTile::threads, 1, 1},
               FeatureTile::shared(task.d_padded, task.tiles(), by_token<Feature>), stream, task);
    if constexpr (has_tensor_features<kind, S, Feature>)
      if (uses_tensor_cores)
        launch("features: log-scales", tensor_log_scales_kernel<kind, S, Feature>,
               dim3{blocks_of<TensorFeatureShape::tokens>(task.x.tokens), matrices, 1},
               dim3{TensorFeatureShape::threads, 1, 1}, 0, stream, task);
  });
}

/// Queues the computation of the features of two tasks, such as queries and keys. `z` is the number of heads of all
/// sequences. Both tasks must have the same d and kind.
template <Storage S, class Feature>
void queue_features(const FeatureTask<S, Feature>& first, const FeatureTask<S, Feature>& second, int z,
                    cudaStream_t stream) {
  queue_log_scales(first, z, stream);
  queue_log_scales(second, z, stream);
  const int tokens = std::max(first.tokens(), second.tokens());
  if (tokens == 0 || z == 0) return;
  const bool use_tensor_cores = first.uses_tensor_cores() && second.uses_tensor_cores();
  with_kind(first.kind, [&]<FeatureKind kind>() {
    if (queues_in_float(use_tensor_cores))
      launch("features", features_kernel<kind, S, Feature>,
             dim3{blocks_of<FeatureTile::tokens>(tokens), static_cast<unsigned>(z), 2},
             dim3{FeatureTile::threads, 1, 1}, FeatureTile::shared(first.d_padded, first.tiles(), by_token<Feature>),
             stream, first, second);
    if constexpr (has_tensor_features<kind, S, Feature>)
      if (use_tensor_cores)
        launch("features", tensor_features_kernel<kind, S, Feature>,
               dim3{blocks_of<TensorFeatureShape::tokens>(tokens), static_cast<unsigned>(z), 2},
               dim3{TensorFeatureShape::threads, 1, 1}, 0, stream, first, second);
  });
}

}  // namespace nprf::cuda
