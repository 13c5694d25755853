// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/reductions.cuh"
#include "nprf/cuda/feature_map/coordinates.cuh"
#include "nprf/cuda/feature_map/gradient_task.cuh"
#include "nprf/cuda/feature_map/task.cuh"
#include "nprf/cuda/feature_map/token_tile.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"

namespace nprf::cuda {

/// The work of a block: 16 x 16 threads, each with 4 tokens and 4 of every 64 channels. Centred and quadratic features
/// need has_gradient_tile, a second tile of tokens in shared memory.
template <Storage S, int tiles, bool has_gradient_tile>
class FeatureGradients {
 public:
  __device__ __forceinline__ explicit FeatureGradients(const FeatureGradientTask<S>& task)
      : m_task(task),
        m_z(static_cast<int>(blockIdx.y)),
        m_t0(static_cast<int>(blockIdx.x) * tile),
        m_row(static_cast<int>(threadIdx.x) / 16 * 4),
        m_column(static_cast<int>(threadIdx.x) % 16 * 4) {
    const FeatureTask<S>& f = task.features;
    m_phi = f.phi + static_cast<std::ptrdiff_t>(m_z / f.group) * f.r * f.stride + m_t0;
    load_tokens<Shape>(x(), f.x, f.x.of(m_z), m_t0, f.d_padded);
    __syncthreads();
    const NormalisedToken token = normalise<Shape>(f, x(), scratch());
    if (threadIdx.x < tile) factors()[threadIdx.x] = token.factor;
    if constexpr (has_gradient_tile) {
      m_z_tile = coordinates_of<Shape>(f, head(), x(), scratch(), token).z;
    } else {
      __syncthreads();
      add_exact();
    }
  }

  /// Computes dx' of exponential and trigonometric features.
  __device__ __forceinline__ void add_projections() {
    const FeatureTask<S>& f = m_task.features;
    float g_phi = 0;  // this thread's part of g.phi of the token load_token()
    for (int f0 = 0; f0 < f.m; f0 += k_tile) {
      __syncthreads();
#pragma unroll
      for (int turn = 0; turn < loads; ++turn) g_phi += load_factors(f0, load_channel(turn));
#pragma unroll
      for (int tile_of_d = 0; tile_of_d < tiles; ++tile_of_d) {
        if (tile_of_d > 0) __syncthreads();
        load_rows(f.w + head() * f.w_stride, f.m, f0, tile_of_d * tile);
        __syncthreads();
#pragma unroll 4  // all of them would need more registers than there are
        for (int k = 0; k < k_tile; ++k)
          add_outer(m_dx[tile_of_d], s() + k * stride + m_row, w() + k * stride + m_column);
      }
    }
    add_up(g_phi, [](int, float sum) { return sum; });
    const float sign = f.map.sign_of_square;
    for_each_quad([&](int tile_of_d, int k0) {
      const Quad z = quad(has_gradient_tile ? m_z_tile : x(), k0);
      for_each_entry(
          [&](int i, int j) { m_dx[tile_of_d][i][j] += gradient_times(sign * sums()[m_row + i], z.of[i][j]); });
    });
  }

  /// Computes dx' of quadratic features.
  __device__ __forceinline__ void add_quadratic() {
    const QuadraticConstants constants = m_task.features.quadratic.of(head());
    const int t = static_cast<int>(threadIdx.x) % tile, group = static_cast<int>(threadIdx.x) / tile;
    const int d = m_task.features.x.channels, r = m_task.features.r;
    const auto owns = [=](unsigned l) { return static_cast<int>(l) % Shape::groups == group; };
    for (int l = group; l < m_task.features.d_padded; l += Shape::groups) dz()[Shape::at(l, t)] = 0;
    const float factor = m_t0 + t < n() ? phi(0)[t] : 0.0f;
    float g_phi = 0;  // this thread's part of g.phi of the token load_token()
    for (int f0 = 0; f0 < r; f0 += k_tile) {
      __syncthreads();
#pragma unroll
      for (int turn = 0; turn < loads; ++turn) {
        float g[4];
        load_gradients(f0 + load_channel(turn), r, g);
        for (int e = 0; e < 4; ++e) {
          const int k = load_channel(turn) + e;
          g_phi += gradient_times(g[e], phi_of_load(f0 + k, r));
          s()[k * stride + load_token()] = g[e];
        }
      }
      __syncthreads();
      for (int k = 0; k < min(k_tile, r - f0); ++k) {
        const float g_f = s()[k * stride + t];
        if (g_f != 0) constants.template add_gradient<Shape>(f0 + k, factor * g_f, m_z_tile + t, dz() + t, owns);
      }
    }
    add_up(g_phi, [](int, float sum) { return sum; });
    for (int l = group; l < d; l += Shape::groups)
      dz()[Shape::at(l, t)] += gradient_times(sums()[t], constants.curvature[l] * m_z_tile[Shape::at(l, t)]);
    __syncthreads();
    for_each_quad([&](int tile_of_d, int k0) {
      const Quad of_tokens = quad(dz(), k0);
      for_each_entry([&](int i, int j) { m_dx[tile_of_d][i][j] = of_tokens.of[i][j]; });
    });
    if (!m_task.features.centring.values) add_exact();
  }

  /// Turns the gradient of the coordinates into dx', if there is a centring.
  __device__ __forceinline__ void propagate_centring() {
    const FeatureTask<S>& f = m_task.features;
    if (!f.centring.values) return;
    const CentringConstants constants = f.centring.of(head(), f.x.channels, f.d_padded);
    for_each_quad([&](int tile_of_d, int k0) {
      const auto& dx = m_dx[tile_of_d];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        *reinterpret_cast<float4*>(dz() + Shape::at(k0, m_row) + Shape::at(j, 0)) =
            make_float4(dx[0][j], dx[1][j], dx[2][j], dx[3][j]);
      for_each_entry([&](int i, int j) {
        m_dx[tile_of_d][i][j] =
            k0 + j < f.x.channels ? gradient_times(sums()[m_row + i], constants.linear[k0 + j]) : 0.0f;
      });
    });
    add_exact();
#pragma unroll
    for (int tile_of_d = 0; tile_of_d < tiles; ++tile_of_d)
      for (int l0 = 0; l0 < f.x.channels; l0 += k_tile) {
        __syncthreads();
        load_rows(constants.axes, f.x.channels, l0, tile_of_d * tile);
        __syncthreads();
        for (int l = 0; l < min(k_tile, f.x.channels - l0); ++l)
          add_outer(m_dx[tile_of_d], dz() + Shape::at(l0 + l, m_row), w() + l * stride + m_column);
      }
  }

  /// Computes dx' of elu features, which have no exact pairs.
  __device__ __forceinline__ void add_elu() {
    const int d = m_task.features.x.channels;
    for_each_quad([&](int tile_of_d, int k0) {
      auto& dx = m_dx[tile_of_d];
#pragma unroll
      for (int i = 0; i < 4; ++i) load_gradients(m_row + i, k0, d, dx[i]);
      const Quad of_tokens = quad(x(), k0);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* of_channel = phi(k0 + j) + m_row;
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (dx[i][j] != 0 && !(of_tokens.of[i][j] > 0)) dx[i][j] *= of_channel[i];
      }
    });
  }

  /// Computes dx from dx', and writes it.
  __device__ __forceinline__ void store_all() {
    const float radius = m_task.features.radius;
    float dx_x[4] = {};
    for_each_quad([&](int tile_of_d, int k0) {
      const Quad of_tokens = quad(x(), k0);
      for_each_entry([&](int i, int j) { dx_x[i] += gradient_times(m_dx[tile_of_d][i][j], of_tokens.of[i][j]); });
    });
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      dx_x[i] = over_warp<16>(dx_x[i], Sum());  // over the 16 threads that share a token
      dx_x[i] = radius > 0 ? dx_x[i] / (radius * radius) : 0.0f;
    }
    for_each_quad([&](int tile_of_d, int k0) {
      const Quad of_tokens = quad(x(), k0);
      auto& dx = m_dx[tile_of_d];
      for_each_entry([&](int i, int j) {
        dx[i][j] = gradient_times(dx[i][j] - gradient_times(dx_x[i], of_tokens.of[i][j]), factors()[m_row + i]);
      });
      const int d = m_task.features.x.channels;
      if (m_task.dx_of_z)
        store_quad(m_task.dx_of_z + row(m_row) * d + k0, d, d - k0, dx);
      else
        store_quad(row_of(m_task.dx, m_z, m_t0 + m_row) + k0, m_task.dx.token_stride, d - k0, dx);
    });
  }

 private:
  using Shape = FeatureGradientShape;
  static constexpr int tile = TileShape::tile, k_tile = Shape::k_tile, stride = Shape::stride;

  __device__ __forceinline__ float* s() const { return shared_memory<float>(); }            // (k_tile,tile)
  __device__ __forceinline__ float* w() const { return s() + k_tile * stride; }             // (k_tile,tile)
  __device__ __forceinline__ float* factors() const { return w() + k_tile * stride; }       // (tile)
  __device__ __forceinline__ float* sums() const { return factors() + tile; }               // (tile)
  __device__ __forceinline__ float* scratch() const { return sums() + tile; }               // (groups,tile)
  __device__ __forceinline__ float* x() const { return scratch() + Shape::groups * tile; }  // (d_padded,tile), or two
  // (d_padded,tile): the gradient of the coordinates, of centred and quadratic features
  __device__ __forceinline__ float* dz() const {
    return x() + m_task.features.tiles() * Shape::at(m_task.features.d_padded, 0);
  }

  __device__ __forceinline__ int head() const { return m_z % m_task.features.x.heads; }
  __device__ __forceinline__ int n() const { return m_task.features.x.tokens; }
  // the row of token t of the tile in arrays [z, n, ..]
  __device__ __forceinline__ std::ptrdiff_t row(int t) const {
    return static_cast<std::ptrdiff_t>(m_z) * n() + m_t0 + t;
  }
  // feature f of the tile's tokens
  __device__ __forceinline__ const float* phi(int f) const {
    return m_phi + static_cast<std::ptrdiff_t>(f) * m_task.features.stride;
  }

  // ---- loads of gradients of 4 features of a token: two lanes load 32 bytes, and the 16 tokens of a warp are in
  // different banks of s()

  static constexpr int loads = k_tile * tile / (4 * Shape::threads);
  __device__ __forceinline__ static int load_token() {
    return static_cast<int>(threadIdx.x) / 32 % 4 * 16 + static_cast<int>(threadIdx.x) % 32 / 2;
  }
  // the number of this thread among the four that load from the same token
  __device__ __forceinline__ static int load_share() {
    return static_cast<int>(threadIdx.x) / 128 * 2 + static_cast<int>(threadIdx.x) % 2;
  }
  __device__ __forceinline__ static int load_channel(int turn) { return 4 * (load_share() + Shape::groups * turn); }

  // sets g to the gradients of features f to f + 3 of token t; 0 from feature `end` on
  __device__ __forceinline__ void load_gradients(int t, int f, int end, float (&g)[4]) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) g[e] = 0;
    if (m_t0 + t >= n()) return;
    if (m_task.dphi.sums.p % 4 == 0 && f % 4 == 0 && f + 4 <= end) {
      m_task.dphi.add_numerators(row(t), f, g);
    } else {
#pragma unroll 1
      for (int e = 0; e < min(4, end - f); ++e) {
        const float of_feature = m_task.dphi.numerator(row(t), f + e);
#pragma unroll
        for (int i = 0; i < 4; ++i) g[i] = i == e ? of_feature : g[i];  // an index known at run time would need memory
      }
    }
  }
  __device__ __forceinline__ void load_gradients(int f, int end, float (&g)[4]) const {
    load_gradients(load_token(), f, end, g);
  }
  __device__ __forceinline__ float phi_of_load(int f, int end) const {
    return f < end && m_t0 + load_token() < n() ? phi(f)[load_token()] : 0.0f;
  }

  // stores s_f (FeatureGradientTask) of the projections f from f0 + k to f0 + k + 3, of the token load_token(); returns
  // what their features add to g.phi
  __device__ __forceinline__ float load_factors(int f0, int k) const {
    const FeatureTask<S>& all = m_task.features;
    const int f = f0 + k, m = all.m, t = load_token();
    const bool swapped = all.map.has_swapped_pairs, single = !all.map.has_pairs;
    const bool is_inside = m_t0 + t < n();
    float g_1[4], g_2[4] = {}, g_phi = 0;
    load_gradients(f, m, g_1);
    if (!single) load_gradients(m + f, 2 * m, g_2);
    const float *phi_1 = phi(f) + t, *phi_2 = phi(m + f) + t;
#pragma unroll
    for (int e = 0; e < 4; ++e, phi_1 += all.stride, phi_2 += all.stride) {
      const bool exists = is_inside && f + e < m;
      const float first = exists ? *phi_1 : 0.0f, second = exists && !single ? *phi_2 : 0.0f;
      g_phi += gradient_times(g_1[e], first) + gradient_times(g_2[e], second);
      const float s_f = swapped ? gradient_times(g_1[e], second) - gradient_times(g_2[e], first)
                                : gradient_times(g_1[e], first) - gradient_times(g_2[e], second);
      s()[(k + e) * stride + t] = s_f;
    }
    return g_phi;
  }
  // sums()[t] = of(t, the sum of x over the threads that load token t)
  template <class F>
  __device__ __forceinline__ void add_up(float x, F&& of) const {
    scratch()[load_share() * tile + load_token()] = x;
    __syncthreads();
    if (const int t = static_cast<int>(threadIdx.x); t < tile)
      sums()[t] = of(t, scratch()[t] + scratch()[tile + t] + scratch()[2 * tile + t] + scratch()[3 * tile + t]);
    __syncthreads();
  }

  // w()[k][c] = channel k0 + c of row f0 + k of a matrix (count,d_padded)
  __device__ __forceinline__ void load_rows(const float* from, int count, int f0, int k0) const {
    const int d_padded = m_task.features.d_padded, c = static_cast<int>(threadIdx.x) % 16 * 4;
#pragma unroll
    for (int turn = 0; turn < k_tile * 16 / Shape::threads; ++turn) {
      const int k = (turn * Shape::threads + static_cast<int>(threadIdx.x)) / 16;
      float4 four = make_float4(0, 0, 0, 0);
      if (f0 + k < count && k0 + c < d_padded)
        four = *reinterpret_cast<const float4*>(from + static_cast<std::ptrdiff_t>(f0 + k) * d_padded + k0 + c);
      *reinterpret_cast<float4*>(w() + k * stride + c) = four;
    }
  }

  // ---- this thread's entries: quads of tokens m_row + i and channels k0 + j

  // this thread's entries of a tile (channels,tokens): of[i][j] is channel k0 + j of token m_row + i
  struct Quad {
    float of[4][4];
  };
  __device__ __forceinline__ Quad quad(const float* of_tile, int k0) const {
    Quad all;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 four = *reinterpret_cast<const float4*>(of_tile + Shape::at(k0, m_row) + Shape::at(j, 0));
      all.of[0][j] = four.x, all.of[1][j] = four.y, all.of[2][j] = four.z, all.of[3][j] = four.w;
    }
    return all;
  }
  // calls f(tile_of_d, k0) for each quad m_dx[tile_of_d], which begins at channel k0; channels from d to d_padded are
  // among them
  template <class F>
  __device__ __forceinline__ void for_each_quad(F&& f) const {
#pragma unroll
    for (int tile_of_d = 0; tile_of_d < tiles; ++tile_of_d)
      if (tile_of_d * tile + m_column < m_task.features.d_padded) inlined(f, tile_of_d, tile_of_d * tile + m_column);
  }
  // adds the gradients of x' by exact pairs
  __device__ __forceinline__ void add_exact() {
    const int d = m_task.features.x.channels;
    if (!m_task.exact || (m_task.exact_rows && m_task.exact_rows[m_z] == 0)) return;
    for_each_quad([&](int tile_of_d, int k0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (m_t0 + m_row + i >= n()) continue;
        const float* from = m_task.exact + row(m_row + i) * d + k0;
        float four[4] = {};
        if (d % 4 == 0) {
          const float4 all = *reinterpret_cast<const float4*>(from);
          four[0] = all.x, four[1] = all.y, four[2] = all.z, four[3] = all.w;
        } else {
#pragma unroll
          for (int j = 0; j < 4; ++j)
            if (k0 + j < d) four[j] = from[j];
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) m_dx[tile_of_d][i][j] += four[j];
      }
    });
  }
  // stores four channels of four tokens, of which the first is at `to`; the rows end after `count` channels
  template <class To>
  __device__ __forceinline__ void store_quad(To* to, std::ptrdiff_t row_stride, int count,
                                             const float (&values)[4][4]) const {
    struct alignas(4 * sizeof(To)) Four {
      To of[4];
    };
    if (count >= 4 && row_stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(to) % sizeof(Four) == 0) {
      auto* at = reinterpret_cast<Four*>(to);  // so that the compiler sees how rows are aligned
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (m_t0 + m_row + i < n()) cuda::store_all(at[i * (row_stride / 4)].of, values[i]);
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (m_t0 + m_row + i < n() && j < count) store(to + i * row_stride + j, values[i][j]);
  }

  const FeatureGradientTask<S>& m_task;
  int m_z, m_t0, m_row, m_column;
  const float* m_phi;               // the features of the tile's tokens
  const float* m_z_tile = nullptr;  // (d_padded,tile): the coordinates of the tokens, of centred and quadratic features
  float m_dx[tiles][4][4] = {};
};

/// For heads of at most 64 * tiles channels. blockIdx.x: tile of tokens, blockIdx.y: z.
template <Storage S, int tiles, bool has_gradient_tile>
__global__ void __launch_bounds__(FeatureGradientShape::threads, FeatureGradientShape::blocks(tiles))
    feature_gradients_kernel(FeatureGradientTask<S> task) {
  start_kernel();
  FeatureGradients<S, tiles, has_gradient_tile> gradients(task);
  if (task.features.map.has_projections)
    gradients.add_projections();
  else if constexpr (has_gradient_tile)
    gradients.add_quadratic();
  else
    gradients.add_elu();
  if constexpr (has_gradient_tile) gradients.propagate_centring();
  gradients.store_all();
}

/// The kernel for heads of d channels.
template <Storage S, bool has_gradient_tile>
auto feature_gradients_for(int d) -> void (*)(FeatureGradientTask<S>) {
  return d <= 64    ? feature_gradients_kernel<S, 1, has_gradient_tile>
         : d <= 128 ? feature_gradients_kernel<S, 2, has_gradient_tile>
                    : feature_gradients_kernel<S, 4, has_gradient_tile>;
}

template <Storage S>
void queue_feature_gradients(const FeatureGradientTask<S>& task, cudaStream_t stream) {
  const int n = task.features.x.tokens;
  if (n == 0 || task.z == 0) return;
  const int d = task.features.x.channels;
  launch("gradients: features",
         task.features.has_gradient_tile() ? feature_gradients_for<S, true>(d) : feature_gradients_for<S, false>(d),
         dim3{blocks_of<FeatureGradientShape::tokens>(n), static_cast<unsigned>(task.z), 1},
         dim3{FeatureGradientShape::threads, 1, 1},
         FeatureGradientShape::shared(task.features.d_padded, task.features.tiles(), task.features.has_gradient_tile()),
         stream, task);
}

}  // namespace nprf::cuda
