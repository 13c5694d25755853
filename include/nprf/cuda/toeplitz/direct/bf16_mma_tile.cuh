// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <type_traits>

#include "nprf/cuda/device/bf16_row_loader.cuh"
#include "nprf/cuda/device/mma_fragment.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"

namespace nprf::cuda {

/// Tile (fp32_tile.cuh) on tensor cores, for values of 16 bits. 4 warps have 32 rows each, and hold their scores, their
/// sums and 64 columns of Y in registers.
///
///     P = bf16((A B^T) o C)        N += P bf16(V)        D += P 1
///
/// Features are rows of bfloat16, padded with zeros to a multiple of 16. P is rounded to bfloat16, and so are values
/// that are stored as half. Sums are float. For positive features the relative error of a weight is at most 3 2^-8,
/// from rounding A, B and P (in a tail with a slope 4 2^-8, from A, B, weighted B and the M of add_product). The error
/// of y is at most 6 (8) 2^-8 max |v|, usually far less, since the errors of many keys average out. Rounding the values
/// adds 2^-8 max |v|. D sums the rounded scores, so that the weights add up to 1.
template <Storage S>
class TensorTile {
 public:
  using Feature = __nv_bfloat16;
  static constexpr bool compiled = has_mma;
  static constexpr int queries = 128, keys = 64, columns = Bf16TileShape::channels, threads = Bf16TileShape::threads,
                       blocks = 2;
  static constexpr std::size_t shared = Bf16TileShape::bytes(queries + 2 * keys) + sizeof(float) * (2 * threads);

  __device__ __forceinline__ TensorTile(const TileTask<S, Feature>& task, int z, int i0, int p0)
      : m_task(task),
        m_A(task.A.of(z)),
        m_B(task.B.of(z)),
        m_U(task.U.of(z)),
        m_head(z % task.A.heads),
        m_i0(i0),
        m_p0(p0),
        m_has_aligned_values(has_aligned_rows(m_U)) {}

  /// Adds the contributions of the key tiles first to end - 1.
  __device__ __forceinline__ void add_keys(int first, int end) {
    if (first >= end) return;
    fetch(first, 0);
    for (int J = first; J < end; ++J) add_tile(J, end);
  }

  /// Adds A bf16(M), for a matrix M (r,p + 1) with the entries at(f, column). For M = B^T [V 1] and positive features
  /// this adds no more error than rounding B and P: |A (bf16(M) - M)| <= 2^-8 A |M| <= 2^-8 max |v| A B^T 1.
  template <class Entries>
  __device__ __forceinline__ void add_product(Entries&& at) {
    const int r = m_task.A.channels, p = m_U.p;
    Feature* sums = reinterpret_cast<Feature*>(c());  // the last column of M
    for (int k0 = 0; k0 < r; k0 += k_tile) {
      __syncthreads();
      load_queries(k0);
      const int depth = min(k_tile, r - k0);
#pragma unroll 8
      for (int e = static_cast<int>(threadIdx.x); e < depth * columns; e += threads) {
        const int f = e / columns, column = m_p0 + e % columns;
        cuda::store(u() + f * stride + e % columns, column < p ? at(k0 + f, column) : 0.0f);
      }
      for (int f = static_cast<int>(threadIdx.x); f < depth; f += threads) cuda::store(sums + f, at(k0 + f, p));
      __syncthreads();
#pragma unroll 1
      for (int k = 0; k < depth; k += 16) {
        LeftFragment q[2];
        for (int m = 0; m < 2; ++m) q[m] = load_left(a() + (row_of_warp() + 16 * m) * stride + k, stride);
        add_columns(q, k);
        for (int m = 0; m < 2; ++m) multiply_add(m_sum[m], q[m], load_right_column(sums + k));
      }
    }
  }

  /// Multiplies each row i by factor(i); a row whose factor is 0 becomes 0, even if it is not finite.
  template <class Factor>
  __device__ __forceinline__ void scale_rows(Factor&& factor) {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float c = factor(m_i0 + row_of_warp() + 16 * m + 8 * h + SumFragment::row());
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; ++e) {
          m_sum[m].x[e] = c == 0 ? 0.0f : c * m_sum[m].x[e];
#pragma unroll
          for (int n = 0; n < columns / 8; ++n) m_y[m][n].x[e] = c == 0 ? 0.0f : c * m_y[m][n].x[e];
        }
      }
  }

  /// Writes the rows to Y (n_q,p). The block of the first columns also writes the sums (n_q).
  __device__ __forceinline__ void store(float* Y, float* sums) const {
    const int n_q = m_task.A.tokens, p = m_U.p;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int i = m_i0 + row_of_warp() + 16 * m + 8 * h + SumFragment::row();
        if (i >= n_q) continue;
        float* y = Y + static_cast<std::ptrdiff_t>(i) * p;
#pragma unroll
        for (int n = 0; n < columns / 8; ++n) {
          const int column = m_p0 + 8 * n + SumFragment::column();
          const float first = m_y[m][n].x[2 * h], second = m_y[m][n].x[2 * h + 1];
          if (p % 2 == 0 && column < p)
            *reinterpret_cast<float2*>(y + column) = make_float2(first, second);
          else if (column < p)
            y[column] = first;
          if (p % 2 != 0 && column + 1 < p) y[column + 1] = second;
        }
        if (m_p0 == 0 && SumFragment::column() == 0) sums[i] = m_sum[m].x[2 * h];
      }
  }

 private:
  static constexpr int k_tile = Bf16TileShape::channels, stride = Bf16TileShape::stride;

  __device__ __forceinline__ static Feature* a() { return shared_memory<Feature>(); }  // (queries,k_tile)
  __device__ __forceinline__ static Feature* b() { return a() + queries * stride; }    // (keys,k_tile)
  __device__ __forceinline__ static Feature* u() { return b() + keys * stride; }       // (keys,columns)
  __device__ __forceinline__ static float* c() {                                       // queries + keys lags
    return reinterpret_cast<float*>(u() + keys * stride);
  }

  // loads into registers what a step of add_tile needs: features k0.. of tile J, and for k0 = 0 its values and weights
  __device__ __forceinline__ void fetch(int J, int k0) {
    const int j0 = J * keys;
    m_keys.fetch(m_task.B, m_B, j0, k0);
    if (k0 > 0) return;
    if (m_has_aligned_values) m_values.fetch(m_U, j0, m_p0);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int lag = static_cast<int>(threadIdx.x) + e * threads;
      m_weights[e] = lag < queries + keys - 1 ? m_task.c(m_head, j0 - (m_i0 + queries - 1) + lag) : 1.0f;
    }
  }

  // adds tile J, whose first features are in registers; loads the next features during the computation
  __device__ __forceinline__ void add_tile(int J, int end) {
    const int r = m_task.B.channels;
    SumFragment s[2][keys / 8] = {};  // (32,keys)
    bool has_zero_weight = false;
    for (int k0 = 0; k0 < r; k0 += k_tile) {
      __syncthreads();
      load_queries(k0);
      m_keys.put(b(), r - k0);
      if (k0 == 0) {
        if (m_has_aligned_values)
          m_values.template put<S>(u());
        else
          load_columns(u(), stride, m_U, J * keys, keys, m_p0, columns);
        for (int e = 0; e < 2; ++e) c()[static_cast<int>(threadIdx.x) + e * threads] = m_weights[e];
        has_zero_weight = __syncthreads_or(m_weights[0] == 0 || m_weights[1] == 0);
      } else {
        __syncthreads();
      }
      const bool more = k0 + k_tile < r;
      if (more || J + 1 < end) fetch(more ? J : J + 1, more ? k0 + k_tile : 0);
      const int depth = min(k_tile, r - k0);
#pragma unroll 1
      for (int k = 0; k < depth; k += 16) add_scores(s, k);
    }
    // a key of weight 0 contributes nothing, even if its score or its value is not finite
    if (has_zero_weight) {
      zero_masked_scores(s);
      if (__syncthreads_or(has_nonfinite_values())) add_nonfinite_values();
    }
#pragma unroll
    for (int k = 0; k < keys; k += 16) {
      LeftFragment p[2];
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const SumFragment& x = s[m][k / 8 + e / 2];
          const float* weight = weight_of(m, e % 2, k / 8 + e / 2);
          p[m].x[e] = pack(weight[0] * x.x[e % 2 * 2], weight[1] * x.x[e % 2 * 2 + 1]);
        }
      add_columns(p, k);
      for (int m = 0; m < 2; ++m) multiply_add(m_sum[m], p[m], right_ones());
    }
  }

  // the first row of this warp in the tile
  __device__ __forceinline__ static int row_of_warp() { return static_cast<int>(threadIdx.x) / 32 * 32; }

  // the weight of this lane's row (m,h) and its first key in a group of eight
  __device__ __forceinline__ const float* weight_of(int m, int h, int eight) const {
    return c() + queries - 1 - row_of_warp() + SumFragment::column() - SumFragment::row() + 8 * (eight - 2 * m - h);
  }

  // loads features k0.. of the queries; they stay in shared memory if one step has all features
  __device__ __forceinline__ void load_queries(int k0) {
    if (m_has_queries && m_task.A.channels <= k_tile) return;
    m_has_queries = true;
#pragma unroll 1
    for (int i = 0; i < queries; i += keys) {
      Bf16RowLoader<keys> rows;
      rows.fetch(m_task.A, m_A, m_i0 + i, k0);
      rows.put(a() + i * stride);
    }
  }

  // adds 16 features' products to the scores
  __device__ __forceinline__ void add_scores(SumFragment (&s)[2][keys / 8], int k) const {
    LeftFragment q[2];
#pragma unroll
    for (int m = 0; m < 2; ++m) q[m] = load_left(a() + (row_of_warp() + 16 * m) * stride + k, stride);
#pragma unroll
    for (int j = 0; j < keys; j += 16) {
      RightFragment key[2];
      load_right_transposed(key, b() + j * stride + k, stride);
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < 2; ++n) multiply_add(s[m][j / 8 + n], q[m], key[n]);
    }
  }

  // y += p u for 16 rows of u
  __device__ __forceinline__ void add_columns(const LeftFragment (&p)[2], int k) {
#pragma unroll
    for (int column = 0; column < columns; column += 16) {
      RightFragment value[2];
      load_right(value, u() + k * stride + column, stride);
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < 2; ++n) multiply_add(m_y[m][column / 8 + n], p[m], value[n]);
    }
  }

  __device__ __forceinline__ void zero_masked_scores(SumFragment (&s)[2][keys / 8]) const {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < keys / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (weight_of(m, e / 2, n)[e % 2] == 0) s[m][n].x[e] = 0;
  }

  __device__ __forceinline__ static bool is_nonfinite(Feature x) { return !(fabsf(to_float(x)) <= largest_float); }

  // whether this thread's share of the values has a non-finite one
  __device__ __forceinline__ bool has_nonfinite_values() const {
    bool found = false;
    for (int e = static_cast<int>(threadIdx.x); e < keys * columns; e += threads)
      found |= is_nonfinite(u()[e / columns * stride + e % columns]);
    return found;
  }

  // adds the non-finite values to the rows that attend to them, and replaces them by zeros for the others
  __device__ void add_nonfinite_values() {
    for (int k = 0; k < keys; ++k)
#pragma unroll
      for (int n = 0; n < columns / 8; ++n)
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          const Feature value = u()[k * stride + 8 * n + SumFragment::column() + s];
          if (!is_nonfinite(value)) continue;
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float weight = weight_of(e / 2, e % 2, 0)[k - SumFragment::column()];
            if (weight != 0) m_y[e / 2][n].x[e % 2 * 2 + s] += weight * to_float(value);
          }
        }
    __syncthreads();
    for (int e = static_cast<int>(threadIdx.x); e < keys * columns; e += threads) {
      Feature& value = u()[e / columns * stride + e % columns];
      if (is_nonfinite(value)) cuda::store(&value, 0.0f);
    }
    __syncthreads();
  }

  const TileTask<S, Feature>& m_task;
  const Feature *m_A, *m_B;
  ColumnsOf<S> m_U;
  int m_head, m_i0, m_p0;
  bool m_has_aligned_values, m_has_queries = false;
  Bf16RowLoader<keys> m_keys, m_values;
  float m_weights[2];  // this thread's part of c()
  SumFragment m_y[2][columns / 8] = {}, m_sum[2] = {};
};

/// The tile for features of type Feature.
template <Storage S, class Feature>
using TileOf = std::conditional_t<std::is_same_v<Feature, float>, Tile<S>, TensorTile<S>>;

}  // namespace nprf::cuda
