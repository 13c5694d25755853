// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/device/value_columns.cuh"

namespace nprf::cuda {

/// The weights of a Toeplitz matrix on the device: c[lag] of head h at values[h stride + (lag - first) step].
struct DeviceWeights {
  const float* values;
  std::ptrdiff_t stride;              // 0: one table for all heads
  int size, first, step;              // of the table; step -1: it is a transposed matrix's
  int first_attended, last_attended;  // weights of lags beyond are zero

  __device__ __forceinline__ float operator()(int head, int lag) const {
    const int at = lag - first;
    return at >= 0 && at < size ? values[head * stride + at * step] : 0.0f;
  }

  /// Of the transposed matrix.
  DeviceWeights transposed() const {
    return {size > 0 ? values + (size - 1) * step : values,
            stride,
            size,
            1 - first - size,
            -step,
            -last_attended,
            -first_attended};
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

/// The queries of a tile: those from i0 on, or some of a list.
struct RowsInTurn {
  static constexpr bool in_turn = true;
  int i0, n;

  /// The number of row t, -1 where there is none.
  __device__ __forceinline__ int operator()(int t) const { return i0 + t < n ? i0 + t : -1; }
};
struct RowsOfList {
  static constexpr bool in_turn = false;
  const int* rows;
  int count;

  __device__ __forceinline__ int operator()(int t) const { return t < count ? rows[t] : -1; }
};

/// Tiles of keys: those that queries first..last see something of.
struct KeyTiles {
  int first, end;

  __device__ __forceinline__ static KeyTiles seen(const DeviceWeights& c, int first_row, int last_row, int n_k) {
    const int first = max(0, first_row + c.first_attended) / TileShape::tile;
    return {first, max(first, TileShape::tiles(min(n_k, max(0, last_row + c.last_attended + 1))))};
  }
  /// A share of them.
  __device__ __forceinline__ KeyTiles part(int k, int parts) const {
    const auto bound = [&](int at) {
      return first + static_cast<int>(static_cast<long long>(end - first) * at / parts);
    };
    return {bound(k), bound(k + 1)};
  }
};

/// The block's work: 16 by 16 threads, each of which has four rows and four columns of Y in registers.
template <Storage S, class Rows = RowsInTurn>
class Tile {
 public:
  static constexpr bool compiled = true;
  static constexpr int queries = TileShape::tile, keys = TileShape::tile, columns = TileShape::tile,
                       threads = TileShape::threads, blocks = 1;
  static constexpr std::size_t shared = TileShape::shared;

  /// These queries and the columns from p0 on, of matrix z.
  __device__ __forceinline__ Tile(const TileTask<S>& task, int z, const Rows& rows, int p0)
      : m_task(task),
        m_A(task.A.of(z)),
        m_B(task.B.of(z)),
        m_U(task.U.of(z)),
        m_rows(rows),
        m_head(z % task.A.heads),
        m_p0(p0),
        m_row(static_cast<int>(threadIdx.x) / 16 * 4),
        m_column(static_cast<int>(threadIdx.x) % 16 * 4) {
    if constexpr (!Rows::in_turn)
      for (int i = 0; i < 4; ++i) m_number[i] = rows(m_row + i);
  }
  /// The queries from i0 on.
  __device__ __forceinline__ Tile(const TileTask<S>& task, int z, int i0, int p0)
    requires Rows::in_turn
      : Tile(task, z, RowsInTurn{i0, task.A.tokens}, p0) {}

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
    const int p = m_U.p;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = m_rows(m_row + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int column = m_p0 + m_column + j;
        if (row >= 0 && column < p) Y[static_cast<std::ptrdiff_t>(row) * p + column] = m_y[i][j];
      }
      // over the 16 threads that share a row
      float sum = m_sum[i];
      for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
      if (m_p0 == 0 && m_column == 0 && row >= 0) sums[row] = sum;
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
    m_has_queries = true;
    if constexpr (Rows::in_turn) {
      load_tile(a(), 1, stride, m_task.A, m_A, m_rows.i0, tile, k0, deep);
    } else {
      for (int e = static_cast<int>(threadIdx.x); e < deep * tile; e += TileShape::threads) {
        const int t = e % tile, k = k0 + e / tile, row = m_rows(t);
        a()[(k - k0) * stride + t] =
            row >= 0 && k < m_task.A.channels ? m_A[row * m_task.A.token_stride + k * m_task.A.channel_stride] : 0.0f;
      }
    }
  }

  // of the thread's row i and key k of the tile
  __device__ __forceinline__ float weight(int i, int k) const {
    if constexpr (Rows::in_turn) return c()[k - m_row - i + tile - 1];
    return m_task.c(m_head, m_j0 + k - m_number[i]);
  }

  __device__ __forceinline__ void add_tile(int J) {
    const int j0 = J * tile, r = m_task.A.channels;
    m_j0 = j0;
    float s[4][4] = {};
    bool wild = false;
    for (int k0 = 0; k0 < r; k0 += deep) {
      __syncthreads();
      load_queries(k0);
      load_tile(b(), 1, stride, m_task.B, m_B, j0, tile, k0, deep);
      if (k0 == 0) {
        if constexpr (Rows::in_turn)
          for (int e = static_cast<int>(threadIdx.x); e < 2 * tile - 1; e += TileShape::threads)
            c()[e] = m_task.c(m_head, j0 - (m_rows.i0 + tile - 1) + e);
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
        const float c_ij = weight(i, m_column + j), score = c_ij == 0 ? 0.0f : c_ij * s[i][j];
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
      if (weight(i, k) == 0) continue;
      const float score = scores()[k * stride + m_row + i];
      for (int j = 0; j < 4; ++j) m_y[i][j] = fmaf(score, u()[k * stride + m_column + j], m_y[i][j]);
    }
  }

  const TileTask<S>& m_task;
  const float *m_A, *m_B;
  ColumnsOf<S> m_U;
  Rows m_rows;
  int m_head, m_p0, m_row, m_column, m_j0 = 0;
  int m_number[4] = {};  // of the thread's rows, where they are not in turn
  bool m_has_queries = false;
  float m_y[4][4] = {}, m_sum[4] = {};
};

}  // namespace nprf::cuda
