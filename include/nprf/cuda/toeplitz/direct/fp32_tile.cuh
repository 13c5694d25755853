// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/reductions.cuh"
#include "nprf/cuda/device/scales.cuh"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/device/value_columns.cuh"
#include "nprf/cuda/position/toeplitz_weights.cuh"

namespace nprf::cuda {

/// Operands in half are divided by powers of two when they are stored, so that they fit the range of half. The product
/// undoes this. Row i of the sums is multiplied by `unit`, which undoes the constant factors of the operands, and by
/// rows[z, i], by which row i of A was divided. The weights of key j are multiplied by keys[z, j], by which row j of B,
/// or of the values, was divided.
struct OperandScales {
  const float *rows = nullptr, *keys = nullptr;  // powers of two; null: 1
  float unit = 1;

  /// The scales for A and B that are both features, which were multiplied by feature_scale<Feature> when they were
  /// stored.
  template <class Feature>
  static __host__ __device__ constexpr OperandScales of_features() {
    return {nullptr, nullptr, 1 / (feature_scale<Feature> * feature_scale<Feature>)};
  }
};

/// The operands of Y = ((A B^T) o C) [V 1]. A block of threads computes Y for a tile of queries and a tile of columns.
template <Storage S, class Feature = float>
struct TileTask {
  Operand<Feature> A, B;  // (n_q,r) (n_k,r)
  Columns<S> U;           // (n_k,p + 1)
  DeviceWeights c;
  OperandScales scales = OperandScales::of_features<Feature>();  // by default A and B are features
};

struct TileShape {
  static constexpr int tile = 64, k_tile = 32, threads = 256;
  static constexpr int stride = tile + 4;
  static constexpr std::size_t shared = sizeof(float) * (2 * k_tile * stride + 2 * tile * stride + 2 * tile);

  /// The place of the entry (s,t) in a tile of pairs: of key s and query t, or of query s and key t. Groups of four t,
  /// from multiples of 4 on, are permuted within their row, so that threads that store groups of different s use
  /// different banks.
  static __host__ __device__ constexpr int pair(int s, int t) { return s * stride + (t ^ (s >> 1 & 12)); }

  static __host__ __device__ constexpr int tiles(int n) { return (n + tile - 1) / tile; }
  // tiles of p columns; at least one, since the first tile also has the denominators
  static __host__ __device__ constexpr int column_tiles(int p) { return p == 0 ? 1 : tiles(p); }
};

/// y += a^T b, for a and b of 4 scalars.
__device__ __forceinline__ void add_outer(float (&y)[4][4], const float* a, const float* b) {
  const float4 p = *reinterpret_cast<const float4*>(a), q = *reinterpret_cast<const float4*>(b);
  const float left[4] = {p.x, p.y, p.z, p.w}, right[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) y[i][j] = fmaf(left[i], right[j], y[i][j]);
}

/// Calls f(i, j) for a thread's entries of 4 rows and 4 columns.
template <class F>
__device__ __forceinline__ void for_each_entry(F&& f) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) inlined(f, i, j);
}

/// The queries of a tile: consecutive ones from i0 on, or some of a list.
struct ConsecutiveRows {
  static constexpr bool consecutive = true;
  int i0, n;

  /// The query index of row t of the tile; -1 if there is none.
  __device__ __forceinline__ int operator()(int t) const { return i0 + t < n ? i0 + t : -1; }
};
struct ListedRows {
  static constexpr bool consecutive = false;
  const int* rows;
  int count;

  __device__ __forceinline__ int operator()(int t) const { return t < count ? rows[t] : -1; }
};

/// The tiles of keys first to end - 1. attended() returns the range of tiles that contains all keys that one of the
/// queries first_row to last_row attends to.
struct KeyTiles {
  int first, end;

  __device__ __forceinline__ static KeyTiles attended(const DeviceWeights& c, int first_row, int last_row, int n_k) {
    if (c.pairs == DeviceWeights::Pairs::of_border && first_row >= c.places.outside)
      return {0, TileShape::tiles(c.places.outside)};
    const int first = max(0, first_row + c.first_attended) / TileShape::tile;
    return {first, max(first, TileShape::tiles(min(n_k, max(0, last_row + c.last_attended + 1))))};
  }
  /// The k-th of `parts` sections of the range, which have about equal lengths.
  __device__ __forceinline__ KeyTiles part(int k, int parts) const {
    const auto bound = [&](int at) {
      return first + static_cast<int>(static_cast<long long>(end - first) * at / parts);
    };
    return {bound(k), bound(k + 1)};
  }
};

/// Computes a tile of Y by one block, in float. The block has 16 x 16 threads, each with 4 x 4 entries of Y in
/// registers.
template <Storage S, class Rows = ConsecutiveRows>
class Tile {
 public:
  static constexpr bool compiled = true;
  static constexpr int queries = TileShape::tile, keys = TileShape::tile, columns = TileShape::tile,
                       threads = TileShape::threads, blocks = 1;
  static constexpr std::size_t shared = TileShape::shared;

  /// The tile of matrix z with the queries `rows` and the columns from p0 on.
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
    if constexpr (!Rows::consecutive)
      for (int i = 0; i < 4; ++i) m_query_index[i] = rows(m_row + i);
  }
  /// The tile of matrix z with the queries from i0 on and the columns from p0 on.
  __device__ __forceinline__ Tile(const TileTask<S>& task, int z, int i0, int p0)
    requires Rows::consecutive
      : Tile(task, z, ConsecutiveRows{i0, task.A.tokens}, p0) {}

  /// Adds the contributions of the key tiles first to end - 1.
  __device__ __forceinline__ void add_keys(int first, int end) {
    for (int J = first; J < end; ++J) add_tile(J);
  }

  /// Adds A M, for a matrix M (r,p + 1) with the entries at(f, column).
  template <class Entries>
  __device__ __forceinline__ void add_product(Entries&& at) {
    const int r = m_task.A.channels, p = m_U.p;
    for (int k0 = 0; k0 < r; k0 += k_tile) {
      __syncthreads();
      load_queries(k0);
      copy_tile<k_tile, tile, threads, 8>(
          [&](int k, int column) { return k0 + k < r && m_p0 + column < p ? at(k0 + k, m_p0 + column) : 0.0f; },
          [&](int k, int column, float x) { u()[k * stride + column] = x; });
      if (threadIdx.x < k_tile) {
        const int f = k0 + static_cast<int>(threadIdx.x);
        c()[threadIdx.x] = f < r ? at(f, p) : 0.0f;
      }
      __syncthreads();
      for (int k = 0; k < k_tile; ++k) {
        add_outer(m_y, a() + k * stride + m_row, u() + k * stride + m_column);
        if (m_column == 0)
          for (int i = 0; i < 4; ++i) m_sum[i] = fmaf(a()[k * stride + m_row + i], c()[k], m_sum[i]);
      }
    }
  }

  /// Multiplies each row i by factor(i); a row whose factor is 0 becomes 0, even if it is not finite.
  template <class Factor>
  __device__ __forceinline__ void scale_rows(Factor&& factor) {
    for (int i = 0; i < 4; ++i) {
      const float c = factor(m_rows.i0 + m_row + i);
      m_sum[i] = c == 0 ? 0.0f : c * m_sum[i];
      for (int j = 0; j < 4; ++j) m_y[i][j] = c == 0 ? 0.0f : c * m_y[i][j];
    }
  }

  /// Writes the rows to Y (n_q,p). The block that has the first columns also writes the last column of Y, the row sums,
  /// to sums (n_q).
  __device__ __forceinline__ void store(float* Y, float* sums) const {
    const int p = m_U.p;
    const bool is_aligned = p % 4 == 0 && reinterpret_cast<std::uintptr_t>(Y) % sizeof(float4) == 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = m_rows(m_row + i), column = m_p0 + m_column;
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(row) * p + column;
      if (row >= 0 && column < p && is_aligned) {
        *reinterpret_cast<float4*>(Y + at) = make_float4(m_y[i][0], m_y[i][1], m_y[i][2], m_y[i][3]);
      } else if (row >= 0) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (column + j < p) Y[at + j] = m_y[i][j];
      }
      // sum over the 16 threads that share a row
      const float sum = over_warp<16>(m_sum[i], Sum());
      if (m_p0 == 0 && m_column == 0 && row >= 0) sums[row] = sum;
    }
  }

 private:
  static constexpr int tile = TileShape::tile, k_tile = TileShape::k_tile, stride = TileShape::stride;

  __device__ __forceinline__ static float* a() { return shared_memory<float>(); }      // (features,queries)
  __device__ __forceinline__ static float* b() { return a() + k_tile * stride; }       // (features,keys)
  __device__ __forceinline__ static float* scores() { return b() + k_tile * stride; }  // (keys,queries)
  __device__ __forceinline__ static float* u() { return scores() + tile * stride; }    // (keys,columns)
  // the scores of key k and of the queries row to row + 3 of the tile, where `row` is a multiple of 4
  __device__ __forceinline__ static float* scores_of(int k, int row) { return scores() + TileShape::pair(k, row); }
  __device__ __forceinline__ static float* c() { return u() + tile * stride; }  // the weights of 2 * tile - 1 lags

  // loads the features of the queries from k0 on; if one step has all features, they are loaded only once and stay in
  // shared memory
  __device__ __forceinline__ void load_queries(int k0) {
    if (m_has_queries && m_task.A.channels <= k_tile) return;
    m_has_queries = true;
    if constexpr (Rows::consecutive) {
      load_tile<tile, k_tile, TileShape::threads>({a(), 1, stride}, m_task.A, m_A, m_rows.i0, k0);
    } else {
      for (int e = static_cast<int>(threadIdx.x); e < k_tile * tile; e += TileShape::threads) {
        const int t = e % tile, k = k0 + e / tile, row = m_rows(t);
        a()[(k - k0) * stride + t] =
            row >= 0 && k < m_task.A.channels ? m_A[row * m_task.A.token_stride + k * m_task.A.channel_stride] : 0.0f;
      }
    }
  }

  // the weight of this thread's row i and key k of the tile
  __device__ __forceinline__ float weight(int i, int k) const {
    const int key = m_j0 + k;
    if (m_task.c.places.is_grid()) {
      const int query = m_rows(m_row + i);
      return query < 0 || key >= m_task.B.tokens ? 0.0f : m_task.c.between(m_head, query, key);
    }
    if constexpr (Rows::consecutive) return c()[k - m_row - i + tile - 1];
    return m_task.c(m_head, key - m_query_index[i]);
  }

  __device__ __forceinline__ void add_tile(int J) {
    const int j0 = J * tile, r = m_task.A.channels;
    m_j0 = j0;
    float s[4][4] = {};
    bool has_nonfinite = false;
    for (int k0 = 0; k0 < r; k0 += k_tile) {
      __syncthreads();
      load_queries(k0);
      load_tile<tile, k_tile, TileShape::threads>({b(), 1, stride}, m_task.B, m_B, j0, k0);
      if (k0 == 0) {
        if constexpr (Rows::consecutive)
          for (int e = static_cast<int>(threadIdx.x); e < 2 * tile - 1; e += TileShape::threads)
            c()[e] = m_task.c(m_head, j0 - (m_rows.i0 + tile - 1) + e);
        has_nonfinite =
            __syncthreads_or(load_columns_at_once<tile, tile, TileShape::threads>(u(), stride, m_U, j0, m_p0));
      } else {
        __syncthreads();
      }
      const int depth = min(k_tile, r - k0);
      for (int k = 0; k < depth; ++k) add_outer(s, a() + k * stride + m_row, b() + k * stride + m_column);
    }
    // a key of weight 0 contributes nothing, even if its score or its value is not finite
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float c_ij = weight(i, m_column + j);
        s[i][j] = c_ij == 0 ? 0.0f : c_ij * s[i][j];
        m_sum[i] += s[i][j];
      }
      *reinterpret_cast<float4*>(scores_of(m_column + j, m_row)) = make_float4(s[0][j], s[1][j], s[2][j], s[3][j]);
    }
    __syncthreads();
    const int count = min(tile, m_task.B.tokens - j0);
    for (int k = 0; k < count; ++k) {
      if (has_nonfinite)
        add_attended_key(k);
      else
        add_outer(m_y, scores_of(k, m_row), u() + k * stride + m_column);
    }
  }

  // adds key k of the tile to the rows that attend to it
  __device__ __forceinline__ void add_attended_key(int k) {
    for (int i = 0; i < 4; ++i) {
      if (weight(i, k) == 0) continue;
      const float score = scores_of(k, m_row)[i];
      for (int j = 0; j < 4; ++j) m_y[i][j] = fmaf(score, u()[k * stride + m_column + j], m_y[i][j]);
    }
  }

  const TileTask<S>& m_task;
  const float *m_A, *m_B;
  ColumnsOf<S> m_U;
  Rows m_rows;
  int m_head, m_p0, m_row, m_column, m_j0 = 0;
  int m_query_index[4] = {};  // query indices of this thread's rows, for ListedRows
  bool m_has_queries = false;
  float m_y[4][4] = {}, m_sum[4] = {};
};

}  // namespace nprf::cuda
