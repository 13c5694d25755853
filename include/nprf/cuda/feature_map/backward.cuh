// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/feature_map/forward.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"

namespace nprf::cuda {

/// Terms of rows in the log domain (attention/recompute_log_domain_backward.cuh), which are added to s and to g.phi of
/// exponential features.
struct LogDomainTerms {
  const int* counts = nullptr;   // [z]: number of such rows; null: none
  const float* de = nullptr;     // [z, m, n]: added to s; valid if there are such rows
  const float* g_phi = nullptr;  // [z, n]: added to g.phi; null: nothing

  __device__ __forceinline__ bool any_in(int z) const { return counts && counts[z] > 0; }
};

/// dL/dx of queries or keys, from g = dL/dphi. With the normalised token x':
///
///     positive, hyperbolic   dx' = sum_f s_f w_f - (g.phi) x'   s_f = g_f phi_f - g_{m+f} phi_{m+f}
///     trigonometric          dx' = sum_f s_f w_f + (g.phi) x'   s_f = g_f phi_{m+f} - g_{m+f} phi_f
///     elu                    dx' = g where x' > 0, else g phi
///     quadratic              dx' = phi_0 sum_f g_f dphi_f/dx' + (g.phi) curvature o x'
///
/// where quadratic phi_f and their derivatives are those without the row's factor, which phi_0 is. With a centring x'
/// and dx' are those of the coordinates z, and dx' = axes^T dz + (g.phi) linear (feature_map/centred.hpp). dx = factor
/// dx'. If tokens are normalised to one norm, the component of dx' along x' is removed first. The scale that the
/// features are divided by is treated as a constant, since y does not depend on it. If g is zero, dx is zero even for a
/// non-finite token. O(n d m).
template <Storage S>
struct FeatureGradientTask {
  FeatureTask<S> features;  // as in the forward pass; phi is read
  CheckedSums dphi;         // [.., n, r]
  LogDomainTerms log_domain;
  int z;
  DeviceMatrixView<S> dx;
  const float* exact = nullptr;  // [z, n, d]: added to dx', the gradients of exact pairs (attention/exact); null: none
  float* dx_of_z = nullptr;      // [z, n, d]: gets dx in place of `dx`, whose matrices a group of z shares; null: none
};

/// gradient * factor; 0 if the gradient is 0, even if the factor is not finite.
__device__ __forceinline__ float gradient_times(float gradient, float factor) {
  return gradient == 0 ? 0.0f : gradient * factor;
}

struct FeatureGradientShape {
  static constexpr int tokens = FeatureShape::tokens, k_tile = 32, stride = TileShape::stride;
  static_assert(tokens == TileShape::tile && FeatureShape::threads == TileShape::threads);

  /// Blocks of a multiprocessor at least, which limits registers: one for 256 channels, whose sums spill otherwise.
  static constexpr int blocks(int tiles) { return tiles == 4 ? 1 : 2; }

  /// `tiles` of FeatureTask; centred and quadratic features need one more for the gradient of the coordinates.
  static std::size_t shared(int d_padded, int tiles, bool has_gradient_tile) {
    return FeatureShape::shared(d_padded, tiles + has_gradient_tile) +
           sizeof(float) * (3 * k_tile * stride + 2 * tokens);
  }
};

/// The work of a block: 16 x 16 threads, each with 4 tokens and 4 of every 64 channels. Centred and quadratic features
/// need the functions of has_gradient_tile.
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
    load_tokens({x(), 1, Shape::stride}, f.x, f.x.of(m_z), m_t0, tile, f.d_padded);
    __syncthreads();
    const NormalisedToken token = normalise(f, x(), scratch());
    if (threadIdx.x < tile) factors()[threadIdx.x] = token.factor;
    if constexpr (has_gradient_tile) {
      m_z_tile = coordinates_of(f, head(), x(), scratch(), token).z;
    } else {
      __syncthreads();
      if (task.exact) for_each_entry([&](float& dx, int i, int k) { dx = exact(i, k); });
    }
  }

  /// Computes dx' of exponential and trigonometric features.
  __device__ __forceinline__ void add_projections() {
    const FeatureTask<S>& f = m_task.features;
    const bool trigonometric = f.kind == FeatureKind::trigonometric, single = f.kind == FeatureKind::positive;
    float g_phi = 0;  // g.phi of token threadIdx.x % tile
    for (int f0 = 0; f0 < f.m; f0 += k_tile) {
      __syncthreads();
      load_gradients(g(), f0);
      if (!single) load_gradients(g() + k_tile * stride, f.m + f0);
      __syncthreads();
      for (int e = static_cast<int>(threadIdx.x); e < k_tile * tile; e += TileShape::threads) {
        const int k = e / tile, t = e % tile;
        const float g_1 = g()[k * stride + t], phi_1 = phi(f0 + k, t);
        const float g_2 = single ? 0.0f : g()[(k_tile + k) * stride + t], phi_2 = single ? 0.0f : phi(f.m + f0 + k, t);
        g_phi += gradient_times(g_1, phi_1) + gradient_times(g_2, phi_2);
        g()[k * stride + t] = trigonometric ? gradient_times(g_1, phi_2) - gradient_times(g_2, phi_1)
                                            : gradient_times(g_1, phi_1) - gradient_times(g_2, phi_2);
      }
      if (m_task.log_domain.any_in(m_z)) add_log_domain_terms(f0);
#pragma unroll
      for (int tile_of_d = 0; tile_of_d < tiles; ++tile_of_d) {
        __syncthreads();
        load_weights(f0, tile_of_d * tile);
        __syncthreads();
        for (int k = 0; k < k_tile; ++k)
          add_outer(m_dx[tile_of_d], g() + k * stride + m_row, w() + k * stride + m_column);
      }
    }
    g_phi = over_groups(scratch(), g_phi, [](float a, float b) { return a + b; });
    if (threadIdx.x < tile) sums()[threadIdx.x] = g_phi + log_domain_g_phi(static_cast<int>(threadIdx.x));
    __syncthreads();
    const float sign = trigonometric ? 1.0f : -1.0f;
    for_each_entry([&](float& dx, int i, int k) { dx += gradient_times(sign * sums()[m_row + i], coordinate(i, k)); });
  }

  /// Computes dx' of quadratic features.
  __device__ __forceinline__ void add_quadratic() {
    const QuadraticConstants constants = m_task.features.quadratic.of(head());
    const int t = static_cast<int>(threadIdx.x) % tile, group = static_cast<int>(threadIdx.x) / tile;
    const int d = m_task.features.x.channels;
    const auto owns = [=](unsigned l) { return static_cast<int>(l) % Shape::groups == group; };
    for (int l = group; l < m_task.features.d_padded; l += Shape::groups) dz()[l * Shape::stride + t] = 0;
    const float factor = phi(0, t);
    float g_phi = 0;
    for (int f0 = 0; f0 < r(); f0 += k_tile) {
      __syncthreads();
      load_gradients(g(), f0);
      __syncthreads();
      for (int k = 0; k < min(k_tile, r() - f0); ++k) {
        const float g_f = g()[k * stride + t];
        if (group == 0) g_phi += gradient_times(g_f, phi(f0 + k, t));
        if (g_f != 0) constants.add_gradient(f0 + k, factor * g_f, m_z_tile + t, dz() + t, owns);
      }
    }
    g_phi = over_groups(scratch(), g_phi, [](float a, float b) { return a + b; });
    if (group == 0) sums()[t] = g_phi;
    for (int l = group; l < d; l += Shape::groups)
      dz()[l * Shape::stride + t] += gradient_times(g_phi, constants.curvature[l] * m_z_tile[l * Shape::stride + t]);
    __syncthreads();
    const bool is_centred = m_task.features.centring.values;
    for_each_entry(
        [&](float& dx, int i, int k) { dx = dz()[k * Shape::stride + m_row + i] + (is_centred ? 0.0f : exact(i, k)); });
  }

  /// Turns the gradient of the coordinates into dx', if there is a centring.
  __device__ __forceinline__ void propagate_centring() {
    const FeatureTask<S>& f = m_task.features;
    if (!f.centring.values) return;
    const CentringConstants constants = f.centring.of(head(), f.x.channels, f.d_padded);
    __syncthreads();
    for_each_entry([&](float& dx, int i, int k) { dz()[k * Shape::stride + m_row + i] = dx; });
#pragma unroll
    for (int tile_of_d = 0; tile_of_d < tiles; ++tile_of_d) {
      for_each_entry(tile_of_d, [&](float& dx, int i, int k) { dx = exact(i, k); });
      for (int l0 = 0; l0 < f.x.channels; l0 += k_tile) {
        __syncthreads();
        for (int e = static_cast<int>(threadIdx.x); e < k_tile * tile; e += TileShape::threads) {
          const int l = l0 + e / tile, t = e % tile;
          g()[e / tile * stride + t] = l < f.x.channels ? dz()[l * Shape::stride + t] : 0.0f;
        }
        load_rows(constants.axes, f.x.channels, l0, tile_of_d * tile);
        __syncthreads();
        for (int l = 0; l < k_tile; ++l)
          add_outer(m_dx[tile_of_d], g() + l * stride + m_row, w() + l * stride + m_column);
      }
      for_each_entry(tile_of_d,
                     [&](float& dx, int i, int k) { dx += gradient_times(sums()[m_row + i], constants.linear[k]); });
    }
  }

  /// Computes dx' of elu features.
  __device__ __forceinline__ void add_elu() {
#pragma unroll
    for (int tile_of_d = 0; tile_of_d < tiles; ++tile_of_d) {
      const int k0 = tile_of_d * tile;
      __syncthreads();
      static_assert(tile == 2 * k_tile);  // the rows of g()
      load_gradients<tile>(g(), k0);
      __syncthreads();
      for_each_entry(tile_of_d, [&](float& dx, int i, int k) {
        const float g_k = g()[(k - k0) * stride + m_row + i];
        dx = at(i, k) > 0 ? g_k : gradient_times(g_k, phi(k, m_row + i));
      });
    }
  }

  /// Computes dx from dx', and writes it.
  __device__ __forceinline__ void store_all() {
    const float radius = m_task.features.radius;
    float dx_x[4] = {};
    for_each_entry([&](float dx, int i, int k) { dx_x[i] += gradient_times(dx, at(i, k)); });
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      for (int step = 8; step > 0; step /= 2)  // sum over the 16 threads that share a token
        dx_x[i] += __shfl_xor_sync(~0u, dx_x[i], step);
      dx_x[i] = radius > 0 ? dx_x[i] / (radius * radius) : 0.0f;
    }
    for_each_entry([&](float dx, int i, int k) {
      const int t = m_row + i;
      if (m_t0 + t >= n()) return;
      const float value = gradient_times(dx - gradient_times(dx_x[i], at(i, k)), factors()[t]);
      if (m_task.dx_of_z)
        m_task.dx_of_z[(static_cast<std::ptrdiff_t>(m_z) * n() + m_t0 + t) * m_task.features.x.channels + k] = value;
      else
        store(row_of(m_task.dx, m_z, m_t0 + t) + k, value);
    });
  }

 private:
  using Shape = FeatureShape;
  static constexpr int tile = TileShape::tile, k_tile = FeatureGradientShape::k_tile, stride = TileShape::stride;

  __device__ __forceinline__ float* g() const { return shared_memory<float>(); }       // twice (k_tile,tile)
  __device__ __forceinline__ float* w() const { return g() + 2 * k_tile * stride; }    // (k_tile,tile)
  __device__ __forceinline__ float* factors() const { return w() + k_tile * stride; }  // (tile)
  __device__ __forceinline__ float* sums() const { return factors() + tile; }          // (tile)
  __device__ __forceinline__ float* x() const { return sums() + tile; }                // (d_padded,tile), or two
  __device__ __forceinline__ float* scratch() const {
    return x() + m_task.features.tiles() * m_task.features.tile_size();
  }
  // (d_padded,tile): the gradient of the coordinates, of centred and quadratic features
  __device__ __forceinline__ float* dz() const { return scratch() + (Shape::groups + 1) * tile; }

  // x' of this thread's token i, and its coordinates
  __device__ __forceinline__ float at(int i, int k) const { return x()[k * Shape::stride + m_row + i]; }
  __device__ __forceinline__ float coordinate(int i, int k) const {
    return has_gradient_tile ? m_z_tile[k * Shape::stride + m_row + i] : at(i, k);
  }
  // the gradient of x' by exact pairs
  __device__ __forceinline__ float exact(int i, int k) const {
    const int t = m_t0 + m_row + i, d = m_task.features.x.channels;
    return m_task.exact && t < n() ? m_task.exact[(static_cast<std::ptrdiff_t>(m_z) * n() + t) * d + k] : 0.0f;
  }
  __device__ __forceinline__ int head() const { return m_z % m_task.features.x.heads; }
  __device__ __forceinline__ int n() const { return m_task.features.x.tokens; }
  __device__ __forceinline__ int r() const { return m_task.features.r(); }

  // g of feature f and token t; both must exist
  __device__ __forceinline__ float gradient(int t, int f) const {
    return m_task.dphi.numerator(static_cast<std::ptrdiff_t>(m_z) * n() + m_t0 + t, f);
  }
  __device__ __forceinline__ float phi(int f, int t) const {
    const FeatureTask<S>& all = m_task.features;
    const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(m_z / all.group) * r() + f;
    return f < r() && m_t0 + t < n() ? all.phi[row * all.stride + m_t0 + t] : 0.0f;
  }

  // adds the log domain terms to s of the projections from f0 on, and to g.phi
  __device__ __forceinline__ void add_log_domain_terms(int f0) const {
    const int m = m_task.features.m;
    for (int e = static_cast<int>(threadIdx.x); e < k_tile * tile; e += TileShape::threads) {
      const int k = e / tile, t = e % tile;
      if (f0 + k < m && m_t0 + t < n())
        g()[k * stride + t] += m_task.log_domain.de[(static_cast<std::ptrdiff_t>(m_z) * m + f0 + k) * n() + m_t0 + t];
    }
  }
  __device__ __forceinline__ float log_domain_g_phi(int t) const {
    const bool has = m_task.log_domain.g_phi && m_t0 + t < n() && m_task.log_domain.any_in(m_z);
    return has ? m_task.log_domain.g_phi[static_cast<std::ptrdiff_t>(m_z) * n() + m_t0 + t] : 0.0f;
  }

  // to[k][t] = g of feature f0 + k, for k < count; zero beyond the last feature
  template <int count = k_tile>
  __device__ __forceinline__ void load_gradients(float* to, int f0) const {
    const int end = f0 < m_task.features.m ? m_task.features.m : r();
    for (int e = static_cast<int>(threadIdx.x); e < count * tile; e += TileShape::threads) {
      const int k = e % count, t = e / count;
      to[k * stride + t] = f0 + k < end && m_t0 + t < n() ? gradient(t, f0 + k) : 0.0f;
    }
  }
  // w()[k][c] = channel k0 + c of projection f0 + k
  __device__ __forceinline__ void load_weights(int f0, int k0) const {
    const FeatureTask<S>& f = m_task.features;
    load_rows(f.w + head() * f.w_stride, f.m, f0, k0);
  }
  // w()[k][c] = channel k0 + c of row f0 + k of a matrix (count,d_padded)
  __device__ __forceinline__ void load_rows(const float* from, int count, int f0, int k0) const {
    const int d_padded = m_task.features.d_padded;
    for (int e = static_cast<int>(threadIdx.x); e < k_tile * tile; e += TileShape::threads) {
      const int k = e / tile, c = e % tile;
      const bool inside = f0 + k < count && k0 + c < d_padded;
      w()[k * stride + c] = inside ? from[static_cast<std::ptrdiff_t>(f0 + k) * d_padded + k0 + c] : 0.0f;
    }
  }

  // calls f(dx', token, channel) for this thread's entries; the token is 0..3
  template <class F>
  __device__ __forceinline__ void for_each_entry(int tile_of_d, F&& f) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int k = tile_of_d * tile + m_column + j;
        if (k < m_task.features.x.channels) f(m_dx[tile_of_d][i][j], i, k);
      }
  }
  template <class F>
  __device__ __forceinline__ void for_each_entry(F&& f) {
#pragma unroll
    for (int tile_of_d = 0; tile_of_d < tiles; ++tile_of_d) for_each_entry(tile_of_d, f);
  }

  const FeatureGradientTask<S>& m_task;
  int m_z, m_t0, m_row, m_column;
  const float* m_z_tile = nullptr;  // (d_padded,tile): the coordinates of the tokens, of centred and quadratic features
  float m_dx[tiles][4][4] = {};
};

/// For heads of at most 64 tiles channels. Blocks (tiles of tokens, z).
template <Storage S, int tiles, bool has_gradient_tile>
__global__ void __launch_bounds__(FeatureShape::threads, FeatureGradientShape::blocks(tiles))
    feature_gradients_kernel(FeatureGradientTask<S> task) {
  start_kernel();
  FeatureGradients<S, tiles, has_gradient_tile> gradients(task);
  if constexpr (has_gradient_tile) {
    if (task.features.kind == FeatureKind::quadratic)
      gradients.add_quadratic();
    else
      gradients.add_projections();
    gradients.propagate_centring();
  } else if (task.features.kind == FeatureKind::elu) {
    gradients.add_elu();
  } else {
    gradients.add_projections();
  }
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
         dim3{blocks_of<FeatureShape::tokens>(n), static_cast<unsigned>(task.z), 1}, dim3{FeatureShape::threads, 1, 1},
         FeatureGradientShape::shared(task.features.d_padded, task.features.tiles(), task.features.has_gradient_tile()),
         stream, task);
}

}  // namespace nprf::cuda
