// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/columns.cuh"
#include "nprf/cuda/launch.cuh"
#include "nprf/cuda/operand.cuh"

namespace nprf::cuda {

/// The weights of a Toeplitz matrix on the device: c[lag] of head h at values[h stride + (lag - first) step].
struct DeviceWeights {
  const float* values;
  std::ptrdiff_t stride;      // 0: one table for all heads
  int size, first, step;      // of the table; step -1: it is a transposed matrix's
  int first_seen, last_seen;  // weights of lags beyond are zero

  __device__ __forceinline__ float operator()(int head, int lag) const {
    const int at = lag - first;
    return at >= 0 && at < size ? values[head * stride + at * step] : 0.0f;
  }

  /// Of the transposed matrix.
  DeviceWeights transposed() const {
    return {
        size > 0 ? values + (size - 1) * step : values, stride, size, 1 - first - size, -step, -last_seen, -first_seen};
  }

  /// Entry k of the circulant of some length that holds C: c[lag] stands at -lag modulo the length.
  __device__ __forceinline__ float in_circulant(int head, int k, int length) const {
    return (*this)(head, k <= -first ? -k : length - k);
  }
};

/// Lags, both included; those before it have one weight, and those after it.
struct Band {
  int first, last;
};

/// C of all heads, by its lags.
struct ToeplitzWeights {
  DeviceWeights c;
  Band band;
  int positions;  // 1 or heads

  /// Of C^T.
  ToeplitzWeights transposed() const { return {c.transposed(), {-band.last, -band.first}, positions}; }
};

/// What a block of threads has of Y = ((A B^T) o C) [V 1]: a tile of queries and a tile of columns.
template <Storage S, class Feature = float>
struct TileTask {
  Operand<Feature> A, B;  // (n_q,r) (n_k,r)
  Columns<S> U;           // (n_k,p + 1)
  DeviceWeights c;
};

struct TileShape {
  static constexpr int tile = 64, deep = 32, threads = 256;
  static constexpr int stride = tile + 4;
  static constexpr std::size_t shared = sizeof(float) * (2 * deep * stride + 2 * tile * stride + 2 * tile);

  static __host__ __device__ constexpr int tiles(int n) { return (n + tile - 1) / tile; }
  // tiles of the columns p, one at least, since it has the sums
  static __host__ __device__ constexpr int column_tiles(int p) { return p == 0 ? 1 : tiles(p); }
};

/// y += a^T b of four and four.
__device__ __forceinline__ void add_outer(float (&y)[4][4], const float* a, const float* b) {
  const float4 p = *reinterpret_cast<const float4*>(a), q = *reinterpret_cast<const float4*>(b);
  const float left[4] = {p.x, p.y, p.z, p.w}, right[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) y[i][j] = fmaf(left[i], right[j], y[i][j]);
}

/// The block's work: 16 by 16 threads, each of which has four rows and four columns of Y in registers.
template <Storage S>
class Tile {
 public:
  static constexpr bool compiled = true;
  static constexpr int queries = TileShape::tile, keys = TileShape::tile, columns = TileShape::tile,
                       threads = TileShape::threads, blocks = 1;
  static constexpr std::size_t shared = TileShape::shared;

  /// The queries from i0 on and the columns from p0 on, of matrix z.
  __device__ __forceinline__ Tile(const TileTask<S>& task, int z, int i0, int p0)
      : m_task(task),
        m_A(task.A.of(z)),
        m_B(task.B.of(z)),
        m_U(task.U.of(z)),
        m_head(z % task.A.heads),
        m_i0(i0),
        m_p0(p0),
        m_row(static_cast<int>(threadIdx.x) / 16 * 4),
        m_column(static_cast<int>(threadIdx.x) % 16 * 4) {}

  /// Adds what the keys of the tiles first to end - 1 give.
  __device__ __forceinline__ void add_keys(int first, int end) {
    for (int J = first; J < end; ++J) add_tile(J);
  }

  /// Adds A M, of a matrix M (r,p + 1) whose entries are at(f, column).
  template <class Entries>
  __device__ __forceinline__ void add_product(Entries&& at) {
    const int r = m_task.A.channels, p = m_U.p;
    for (int k0 = 0; k0 < r; k0 += deep) {
      __syncthreads();
      load_queries(k0);
      for (int e = static_cast<int>(threadIdx.x); e < deep * tile; e += TileShape::threads) {
        const int f = k0 + e / tile, column = m_p0 + e % tile;
        u()[e / tile * stride + e % tile] = f < r && column < p ? at(f, column) : 0.0f;
      }
      if (threadIdx.x < deep) {
        const int f = k0 + static_cast<int>(threadIdx.x);
        c()[threadIdx.x] = f < r ? at(f, p) : 0.0f;
      }
      __syncthreads();
      for (int k = 0; k < deep; ++k) {
        add_outer(m_y, a() + k * stride + m_row, u() + k * stride + m_column);
        if (m_column == 0)
          for (int i = 0; i < 4; ++i) m_sum[i] = fmaf(a()[k * stride + m_row + i], c()[k], m_sum[i]);
      }
    }
  }

  /// Writes rows of Y (n_q,p) and, with the first columns, of sums (n_q).
  __device__ __forceinline__ void store(float* Y, float* sums) const {
    const int n_q = m_task.A.tokens, p = m_U.p;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = m_i0 + m_row + i;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int column = m_p0 + m_column + j;
        if (row < n_q && column < p) Y[static_cast<std::ptrdiff_t>(row) * p + column] = m_y[i][j];
      }
      // over the 16 threads that share a row
      float sum = m_sum[i];
      for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
      if (m_p0 == 0 && m_column == 0 && row < n_q) sums[row] = sum;
    }
  }

 private:
  static constexpr int tile = TileShape::tile, deep = TileShape::deep, stride = TileShape::stride;

  __device__ __forceinline__ static float* a() { return shared_memory<float>(); }    // (deep,tile)
  __device__ __forceinline__ static float* b() { return a() + deep * stride; }       // (deep,tile)
  __device__ __forceinline__ static float* scores() { return b() + deep * stride; }  // (keys,queries)
  __device__ __forceinline__ static float* u() { return scores() + tile * stride; }  // (keys,columns)
  __device__ __forceinline__ static float* c() { return u() + tile * stride; }       // 2 tile - 1 lags

  // features k0.. of the queries, which stay where they are if there are no more
  __device__ __forceinline__ void load_queries(int k0) {
    if (m_has_queries && m_task.A.channels <= deep) return;
    load_tile(a(), 1, stride, m_task.A, m_A, m_i0, tile, k0, deep);
    m_has_queries = true;
  }

  __device__ __forceinline__ void add_tile(int J) {
    const int j0 = J * tile, r = m_task.A.channels;
    float s[4][4] = {};
    bool wild = false;
    for (int k0 = 0; k0 < r; k0 += deep) {
      __syncthreads();
      load_queries(k0);
      load_tile(b(), 1, stride, m_task.B, m_B, j0, tile, k0, deep);
      if (k0 == 0) {
        for (int e = static_cast<int>(threadIdx.x); e < 2 * tile - 1; e += TileShape::threads)
          c()[e] = m_task.c(m_head, j0 - (m_i0 + tile - 1) + e);
        wild = __syncthreads_or(load_columns(u(), stride, m_U, j0, tile, m_p0, tile));
      } else {
        __syncthreads();
      }
      const int depth = min(deep, r - k0);
      for (int k = 0; k < depth; ++k) add_outer(s, a() + k * stride + m_row, b() + k * stride + m_column);
    }
    // a weight of zero hides whatever its key holds, and its value
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float weight = c()[m_column + j - m_row - i + tile - 1];
        const float score = weight == 0 ? 0.0f : weight * s[i][j];
        m_sum[i] += score;
        scores()[(m_column + j) * stride + m_row + i] = score;
      }
    __syncthreads();
    const int count = min(tile, m_task.B.tokens - j0);
    for (int k = 0; k < count; ++k) {
      if (wild)
        add_seen(k);
      else
        add_outer(m_y, scores() + k * stride + m_row, u() + k * stride + m_column);
    }
  }

  // key k of the tile, for the rows that see it
  __device__ __forceinline__ void add_seen(int k) {
    for (int i = 0; i < 4; ++i) {
      if (c()[k - m_row - i + tile - 1] == 0) continue;
      const float score = scores()[k * stride + m_row + i];
      for (int j = 0; j < 4; ++j) m_y[i][j] = fmaf(score, u()[k * stride + m_column + j], m_y[i][j]);
    }
  }

  const TileTask<S>& m_task;
  const float *m_A, *m_B;
  ColumnsOf<S> m_U;
  int m_head, m_i0, m_p0, m_row, m_column;
  bool m_has_queries = false;
  float m_y[4][4] = {}, m_sum[4] = {};
};

}  // namespace nprf::cuda
