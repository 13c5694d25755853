// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/feature_map/forward.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"
#include "nprf/cuda/toeplitz/row_sums.cuh"

namespace nprf::cuda {

/// What rows from logarithms (attention/recompute_log_domain_backward.cuh) add to s and to g.phi of exponential
/// features.
struct LogGradients {
  const int* lost = nullptr;     // [z]: how many there are; null: none
  const float* de = nullptr;     // [z, m, n], where there are any
  const float* along = nullptr;  // [z, n]; null: nothing

  __device__ __forceinline__ bool in(int z) const { return lost && lost[z] > 0; }
};

/// dL/dx of queries or keys, from g = dL/dphi. Of x', the normalised token:
///
///     positive, hyperbolic   dx' = sum_f s_f w_f - (g.phi) x'   s_f = g_f phi_f - g_{m+f} phi_{m+f}
///     trigonometric          dx' = sum_f s_f w_f + (g.phi) x'   s_f = g_f phi_{m+f} - g_{m+f} phi_f
///     elu                    dx' = g where x' > 0, else g phi
///
/// and dx = factor dx', less its part along x' where all tokens have one norm. What features are divided by is
/// constant: y does not change with it. A token without gradients has none whatever it holds. O(n d m).
template <Storage S>
struct FeatureGradientTask {
  FeatureTask<S> features;  // as forwards; phi is read
  CheckedSums dphi;         // [.., n, r]
  LogGradients logs;
  int z;
  DeviceMatrixView<S> dx;
};

/// A gradient times what it passes: 0 stays 0.
__device__ __forceinline__ float passed(float gradient, float by) { return gradient == 0 ? 0.0f : gradient * by; }

struct FeatureGradientShape {
  static constexpr int tokens = FeatureShape::tokens, k_tile = 32, stride = TileShape::stride;
  static_assert(tokens == TileShape::tile && FeatureShape::threads == TileShape::threads);

  static std::size_t shared(int d_padded) {
    return FeatureShape::shared(d_padded) + sizeof(float) * (3 * k_tile * stride + 2 * tokens);
  }
};

/// The block's work: 16 by 16 threads, each of which has four tokens and, of every 64 channels, four.
template <Storage S, int tiles>
class FeatureGradients {
 public:
  __device__ __forceinline__ explicit FeatureGradients(const FeatureGradientTask<S>& task)
      : m_task(task),
        m_z(static_cast<int>(blockIdx.y)),
        m_t0(static_cast<int>(blockIdx.x) * tile),
        m_row(static_cast<int>(threadIdx.x) / 16 * 4),
        m_column(static_cast<int>(threadIdx.x) % 16 * 4) {
    const FeatureTask<S>& f = task.features;
    load_tile(x(), 1, Shape::stride, f.x, f.x.of(m_z), m_t0, tile, 0, f.d_padded);
    __syncthreads();
    const Normalised token = normalise(f, x(), scratch());
    if (threadIdx.x < tile) factors()[threadIdx.x] = token.factor;
    __syncthreads();
  }

  /// dx' of exponential and trigonometric features.
  __device__ __forceinline__ void add_projections() {
    const FeatureTask<S>& f = m_task.features;
    const bool trigonometric = f.kind == FeatureKind::trigonometric, one = f.kind == FeatureKind::positive;
    float along = 0;  // g.phi of token threadIdx.x % tile
    for (int f0 = 0; f0 < f.m; f0 += k_tile) {
      __syncthreads();
      load_gradients(g(), f0);
      if (!one) load_gradients(g() + k_tile * stride, f.m + f0);
      __syncthreads();
      for (int e = static_cast<int>(threadIdx.x); e < k_tile * tile; e += TileShape::threads) {
        const int k = e / tile, t = e % tile;
        const float g_1 = g()[k * stride + t], phi_1 = phi(f0 + k, t);
        const float g_2 = one ? 0.0f : g()[(k_tile + k) * stride + t], phi_2 = one ? 0.0f : phi(f.m + f0 + k, t);
        along += passed(g_1, phi_1) + passed(g_2, phi_2);
        g()[k * stride + t] =
            trigonometric ? passed(g_1, phi_2) - passed(g_2, phi_1) : passed(g_1, phi_1) - passed(g_2, phi_2);
      }
      if (m_task.logs.in(m_z)) add_logs(f0);
#pragma unroll
      for (int tile_of_d = 0; tile_of_d < tiles; ++tile_of_d) {
        __syncthreads();
        load_weights(f0, tile_of_d * tile);
        __syncthreads();
        for (int k = 0; k < k_tile; ++k)
          add_outer(m_dx[tile_of_d], g() + k * stride + m_row, w() + k * stride + m_column);
      }
    }
    along = over_groups(scratch(), along, [](float a, float b) { return a + b; });
    if (threadIdx.x < tile) {
      along += along_logs(static_cast<int>(threadIdx.x));
      sums()[threadIdx.x] = trigonometric ? along : -along;
    }
    __syncthreads();
    each([&](float& dx, int i, int k) { dx += passed(sums()[m_row + i], at(i, k)); });
  }

  /// dx' of elu features.
  __device__ __forceinline__ void add_elu() {
#pragma unroll
    for (int tile_of_d = 0; tile_of_d < tiles; ++tile_of_d) {
      const int k0 = tile_of_d * tile;
      __syncthreads();
      load_gradients(g(), k0);
      load_gradients(g() + k_tile * stride, k0 + k_tile);
      __syncthreads();
      each(tile_of_d, [&](float& dx, int i, int k) {
        const float own = g()[(k - k0) * stride + m_row + i];
        dx = at(i, k) > 0 ? own : passed(own, phi(k, m_row + i));
      });
    }
  }

  /// dx of dx', written.
  __device__ __forceinline__ void store_all() {
    const float radius = m_task.features.radius;
    float along[4] = {};
    each([&](float dx, int i, int k) { along[i] += passed(dx, at(i, k)); });
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      for (int step = 8; step > 0; step /= 2)  // over the 16 threads that share a token
        along[i] += __shfl_xor_sync(~0u, along[i], step);
      along[i] = radius > 0 ? along[i] / (radius * radius) : 0.0f;
    }
    each([&](float dx, int i, int k) {
      const int t = m_row + i;
      if (m_t0 + t < n())
        store(row_of(m_task.dx, m_z, m_t0 + t) + k, passed(dx - passed(along[i], at(i, k)), factors()[t]));
    });
  }

 private:
  using Shape = FeatureShape;
  static constexpr int tile = TileShape::tile, k_tile = FeatureGradientShape::k_tile, stride = TileShape::stride;

  __device__ __forceinline__ float* g() const { return shared_memory<float>(); }       // twice (k_tile,tile)
  __device__ __forceinline__ float* w() const { return g() + 2 * k_tile * stride; }    // (k_tile,tile)
  __device__ __forceinline__ float* factors() const { return w() + k_tile * stride; }  // (tile)
  __device__ __forceinline__ float* sums() const { return factors() + tile; }          // (tile)
  __device__ __forceinline__ float* x() const { return sums() + tile; }                // (d_padded,tile)
  __device__ __forceinline__ float* scratch() const { return x() + Shape::stride * m_task.features.d_padded; }

  // x' of the thread's token i
  __device__ __forceinline__ float at(int i, int k) const { return x()[k * Shape::stride + m_row + i]; }
  __device__ __forceinline__ int n() const { return m_task.features.x.tokens; }
  __device__ __forceinline__ int r() const { return m_task.features.r(); }

  // g of feature f of token t, which is there
  __device__ __forceinline__ float gradient(int t, int f) const {
    return m_task.dphi.numerator(static_cast<std::ptrdiff_t>(m_z) * n() + m_t0 + t, f);
  }
  __device__ __forceinline__ float phi(int f, int t) const {
    const FeatureTask<S>& all = m_task.features;
    return f < r() && m_t0 + t < n() ? all.phi[(static_cast<std::ptrdiff_t>(m_z) * r() + f) * all.stride + m_t0 + t]
                                     : 0.0f;
  }

  // what rows from logarithms add, to s of projections from f0 on, where each thread has its own, and to g.phi
  __device__ __forceinline__ void add_logs(int f0) const {
    const int m = m_task.features.m;
    for (int e = static_cast<int>(threadIdx.x); e < k_tile * tile; e += TileShape::threads) {
      const int k = e / tile, t = e % tile;
      if (f0 + k < m && m_t0 + t < n())
        g()[k * stride + t] += m_task.logs.de[(static_cast<std::ptrdiff_t>(m_z) * m + f0 + k) * n() + m_t0 + t];
    }
  }
  __device__ __forceinline__ float along_logs(int t) const {
    const bool has = m_task.logs.along && m_t0 + t < n() && m_task.logs.in(m_z);
    return has ? m_task.logs.along[static_cast<std::ptrdiff_t>(m_z) * n() + m_t0 + t] : 0.0f;
  }

  // to[k][t] = g of feature f0 + k, zero from feature end on
  __device__ __forceinline__ void load_gradients(float* to, int f0) const {
    const int end = f0 < m_task.features.m ? m_task.features.m : r();
    for (int e = static_cast<int>(threadIdx.x); e < k_tile * tile; e += TileShape::threads) {
      const int k = e % k_tile, t = e / k_tile;
      to[k * stride + t] = f0 + k < end && m_t0 + t < n() ? gradient(t, f0 + k) : 0.0f;
    }
  }
  // w()[k][c] = w of projection f0 + k
  __device__ __forceinline__ void load_weights(int f0, int k0) const {
    const FeatureTask<S>& f = m_task.features;
    const float* from = f.w + m_z % f.x.heads * f.w_stride;
    for (int e = static_cast<int>(threadIdx.x); e < k_tile * tile; e += TileShape::threads) {
      const int k = e / tile, c = e % tile;
      const bool inside = f0 + k < f.m && k0 + c < f.d_padded;
      w()[k * stride + c] = inside ? from[static_cast<std::ptrdiff_t>(f0 + k) * f.d_padded + k0 + c] : 0.0f;
    }
  }

  // f(dx', which of the thread's tokens, channel)
  template <class F>
  __device__ __forceinline__ void each(int tile_of_d, F&& f) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int k = tile_of_d * tile + m_column + j;
        if (k < m_task.features.x.channels) f(m_dx[tile_of_d][i][j], i, k);
      }
  }
  template <class F>
  __device__ __forceinline__ void each(F&& f) {
#pragma unroll
    for (int tile_of_d = 0; tile_of_d < tiles; ++tile_of_d) each(tile_of_d, f);
  }

  const FeatureGradientTask<S>& m_task;
  int m_z, m_t0, m_row, m_column;
  float m_dx[tiles][4][4] = {};
};

/// Blocks (tiles of tokens, z), of heads of at most 64 tiles channels.
template <Storage S, int tiles>
__global__ void __launch_bounds__(FeatureShape::threads) feature_gradients_kernel(FeatureGradientTask<S> task) {
  FeatureGradients<S, tiles> gradients(task);
  if (task.features.kind == FeatureKind::elu)
    gradients.add_elu();
  else
    gradients.add_projections();
  gradients.store_all();
}

/// The kernel for heads of d channels.
template <Storage S>
auto feature_gradients_for(int d) -> void (*)(FeatureGradientTask<S>) {
  return d <= 64    ? feature_gradients_kernel<S, 1>
         : d <= 128 ? feature_gradients_kernel<S, 2>
                    : feature_gradients_kernel<S, 4>;
}

template <Storage S>
void queue_feature_gradients(const FeatureGradientTask<S>& task, cudaStream_t stream) {
  const int n = task.features.x.tokens;
  if (n == 0 || task.z == 0) return;
  launch("gradients: features", feature_gradients_for<S>(task.features.x.channels),
         dim3{blocks_of<FeatureShape::tokens>(n), static_cast<unsigned>(task.z), 1}, dim3{FeatureShape::threads, 1, 1},
         FeatureGradientShape::shared(task.features.d_padded), stream, task);
}

}  // namespace nprf::cuda
