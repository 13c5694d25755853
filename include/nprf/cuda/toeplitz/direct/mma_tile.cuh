// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "nprf/cuda/device/mma_fragment.cuh"
#include "nprf/cuda/device/row_loader.cuh"
#include "nprf/cuda/device/scales.cuh"
#include "nprf/cuda/device/storage.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"
#include "nprf/cuda/toeplitz/direct/mma_rows.cuh"

namespace nprf::cuda {

/// The scales, powers of two, of columns of a matrix M (r,p + 1) that is rounded to half: of 64 columns of a tile, and
/// of column p. A scale takes the largest magnitude of its column to [2^14, 2^15). An entry of the column then has a
/// relative error of at most 2^-11, or an absolute error of at most 2^-39 times the largest. Each column has its own
/// scale, because values may be far smaller than 1, which takes the place of a value in column p. A block has `threads`
/// threads.
template <int threads>
struct ColumnScales {
  static constexpr int columns = MmaTileShape::channels;
  static constexpr int size = threads + threads / 32;  // of `maxima`

  /// Writes maxima, from which of() computes the scales of the columns p0 .. p0 + 63, and of_last() the scale of column
  /// p. Columns from p on count as zero in of(). All threads of the block must call it; they are synchronised at the
  /// end.
  template <class Entries>
  __device__ __forceinline__ static void find(float* maxima, int r, int p0, int p, Entries&& at) {
    const int thread = static_cast<int>(threadIdx.x), column = p0 + thread % columns;
    const auto larger = [](float x, float y) { return fmaxf(x, y); };
    float largest = 0, last = 0;
    for (int f = thread / columns; f < r && column < p; f += threads / columns)
      largest = larger(largest, fabsf(at(f, column)));
    for (int f = thread; f < r; f += threads) last = larger(last, fabsf(at(f, p)));
    last = over_warp(last, larger);
    maxima[thread] = largest;
    if (thread % 32 == 0) maxima[threads + thread / 32] = last;
    __syncthreads();
  }

  /// The scale of column p0 + column.
  __device__ __forceinline__ static float of(const float* maxima, int column) {
    float largest = 0;
#pragma unroll
    for (int share = 0; share < threads; share += columns) largest = fmaxf(largest, maxima[share + column]);
    return scale_to_half(largest);
  }
  /// The scale of column p.
  __device__ __forceinline__ static float of_last(const float* maxima) {
    float largest = 0;
#pragma unroll
    for (int warp = 0; warp < threads / 32; ++warp) largest = fmaxf(largest, maxima[threads + warp]);
    return scale_to_half(largest);
  }
};

template <MmaFactor T>
__device__ __forceinline__ bool is_nonfinite(T x) {
  return !(fabsf(to_float(x)) <= largest_float);
}

/// Whether this thread's part of a tile (rows,MmaTileShape::channels) of shared memory has a NaN or an infinity.
template <MmaFactor T>
__device__ __forceinline__ bool has_nonfinite_scalar(const T* tile, int rows) {
  bool found = false;
  for (int e = static_cast<int>(threadIdx.x); e < rows * MmaTileShape::channels; e += static_cast<int>(blockDim.x))
    found |= is_nonfinite(tile[e / MmaTileShape::channels * MmaTileShape::stride + e % MmaTileShape::channels]);
  return found;
}

/// Replaces the NaNs and infinities in this thread's part of the tile by zeros.
template <MmaFactor T>
__device__ __forceinline__ void clear_nonfinite_scalars(T* tile, int rows) {
  for (int e = static_cast<int>(threadIdx.x); e < rows * MmaTileShape::channels; e += static_cast<int>(blockDim.x)) {
    T& x = tile[e / MmaTileShape::channels * MmaTileShape::stride + e % MmaTileShape::channels];
    if (is_nonfinite(x)) store(&x, 0.0f);
  }
}

/// Computes a tile of Y as Tile does (fp32_tile.cuh), but on tensor cores and for values of 16 bits. A warp has
/// row_blocks blocks of 16 rows, and holds their scores, their sums and 64 columns of Y in registers. With one such
/// block the tile takes twice as many warps as with two, and each warp reads all keys and values from shared memory: on
/// an H200 one block is faster for few keys, and slower for many. [x] is x rounded to Feature, bfloat16 or half:
///
///     P = [(A B^T) o C]        N += P [V]        D += P 1
///
/// Rows of A and B have type Feature, and are padded with zeros to a multiple of 16 features. Sums are float. In half
/// the operands have scales (OperandScales), which are undone when the sums are stored.
///
/// Let u = 2^-8 for bfloat16 and u = 2^-11 for half. For positive features the relative error of a weight is at most
/// 3 u, from rounding A, B and P. In a tail with a slope it is at most 4 u, from rounding A, B, the weighted B and the
/// matrix M of add_product. The error of y is at most 6 u max |v|, in such a tail 8 u max |v|, and usually far less,
/// since the errors of many keys average out. Rounding values of another type to Feature adds u max |v|. D sums the
/// rounded scores, so that the weights add up to 1.
///
/// Half has a small range (scales.cuh), so that the rows of P and the columns of M are multiplied by powers of two
/// before they are rounded. The scale of a row of P, which the sums of the row have, too, takes the largest entry so
/// far to at most 2^15. To the relative errors above this adds absolute errors of small numbers. An entry of A or B has
/// an error of up to 2^-39, which DeviceModel::features_fit_half() bounds in proportion to scores. An entry of P has an
/// error of up to 2^-39 times the largest entry of its row, so that the weights of a row together have n_k times this
/// error.
template <Storage S, class Feature_ = __nv_bfloat16, MmaShape shape = MmaShape::native, int row_blocks = 2,
          int stages = 1>
class TensorTile : public MmaRows<Feature_, shape, row_blocks> {
  using Rows = MmaRows<Feature_, shape, row_blocks>;

 public:
  using Feature = Feature_;
  static constexpr bool compiled = has_mma<Feature>;
  static constexpr int queries = 128, keys = 64, columns = Rows::columns, blocks = 2;
  static constexpr int threads = queries / (16 * row_blocks) * 32;
  static constexpr std::size_t stage_bytes =
      MmaTileShape::bytes(2 * keys) +
      sizeof(float) * std::max(queries + 2 * keys, MmaTileShape::channels + ColumnScales<threads>::size);
  static constexpr std::size_t shared = MmaTileShape::bytes(queries) + stages * stage_bytes;

  __device__ __forceinline__ TensorTile(const TileTask<S, Feature>& task, int z, int i0, int p0)
      : Rows(i0, p0),
        m_task(task),
        m_A(task.A.of(z)),
        m_B(task.B.of(z)),
        m_U(task.U.of(z)),
        m_z(z),
        m_head(z % task.A.heads),
        m_has_aligned_values(has_aligned_rows(m_U)) {}

  /// Adds the contributions of the key tiles first to end - 1.
  __device__ __forceinline__ void add_keys(int first, int end) {
    if (first >= end) return;
    if constexpr (in_half) fit_rows_to_sums();
    fetch(first, 0);
    for (int J = first; J < end; ++J) add_tile(J, end);
  }

  /// Adds A [M], for a matrix M (r,p + 1) with the entries at(f, column). Must be called before add_keys(). For M = B^T
  /// [V 1] and positive features this adds no more error than rounding B and P: |A ([M] - M)| <= u A |M| <=
  /// u max |v| A B^T 1.
  template <class Entries>
  __device__ __forceinline__ void add_product(Entries&& at) {
    const int r = m_task.A.channels, p = m_U.p;
    Feature* sums = reinterpret_cast<Feature*>(c());  // the last column of M
    float scale = 1, scale_of_last = 1;
    if constexpr (in_half) {
      Scales::find(column_maxima(), r, m_p0, p, at);
      scale = Scales::of(column_maxima(), static_cast<int>(threadIdx.x) % columns);
      scale_of_last = Scales::of_last(column_maxima());
    }
    for (int k0 = 0; k0 < r; k0 += k_tile) {
      __syncthreads();
      load_queries(k0);
      const int depth = min(k_tile, r - k0);
#pragma unroll 8
      for (int e = static_cast<int>(threadIdx.x); e < depth * columns; e += threads) {
        // all entries of a thread are of one column, whose scale is `scale`
        const int f = e / columns, column = m_p0 + e % columns;
        cuda::store(u() + f * stride + e % columns, column < p ? scale * at(k0 + f, column) : 0.0f);
      }
      for (int f = static_cast<int>(threadIdx.x); f < depth; f += threads)
        cuda::store(sums + f, scale_of_last * at(k0 + f, p));
      __syncthreads();
#pragma unroll 1
      for (int k = 0; k < depth; k += 16) {
        typename F::Left q[row_blocks];
        for (int m = 0; m < row_blocks; ++m) q[m] = F::load_left(a() + (row_of_warp() + 16 * m) * stride + k, stride);
        add_columns(q, u() + k * stride);
        add_column(q, F::load_right_column(sums + k));
      }
    }
    if constexpr (in_half)
      scale_columns([&](int column) { return 1 / Scales::of(column_maxima(), column); }, 1 / scale_of_last);
  }

  /// Writes the rows to Y (n_q,p). The block that has the first columns also writes the sums (n_q).
  __device__ __forceinline__ void store(float* Y, float* sums) const {
    const OperandScales& scales = m_task.scales;
    store_rows(Y, sums, m_task.A.tokens, m_U.p, [&](int i) {
      const float of_row = scales.rows ? scales.rows[static_cast<std::ptrdiff_t>(m_z) * m_task.A.tokens + i] : 1.0f;
      return scales.unit * of_row;
    });
  }

 protected:
  using typename Rows::F;
  using Scores = typename F::Sum[row_blocks][keys / 16];  // (16 * row_blocks,keys)
  using Scales = ColumnScales<threads>;
  using Rows::in_half, Rows::stride, Rows::row_of_warp, Rows::column_of, Rows::add_columns, Rows::add_column,
      Rows::store_rows, Rows::fit_rows_to_sums, Rows::fit_rows_to, Rows::scale_columns, Rows::m_i0, Rows::m_p0,
      Rows::m_y, Rows::m_scale;
  static constexpr bool weights_scores_first =
      in_half || stages > 1;  // whether scores are weighted before, not while they are rounded: fewer registers
  static constexpr int k_tile = MmaTileShape::channels, own_weights = (queries + 2 * keys) / threads;

  __device__ __forceinline__ static Feature* a() { return shared_memory<Feature>(); }  // (queries,k_tile)
  __device__ __forceinline__ static Feature* b_of(int stage) {
    return a() + queries * stride + stage * static_cast<int>(stage_bytes / sizeof(Feature));
  }
  __device__ __forceinline__ Feature* b() const { return b_of(stages == 1 ? 0 : m_stage); }  // (keys,k_tile)
  __device__ __forceinline__ Feature* u() const { return b() + keys * stride; }              // (keys,columns)
  __device__ __forceinline__ float* c() const {  // weights of queries + keys lags, scales of keys
    return reinterpret_cast<float*>(u() + keys * stride);
  }
  // ColumnScales' maxima, for add_product; before them c() has k_tile entries of M's last column
  __device__ __forceinline__ float* column_maxima() const { return c() + k_tile; }

  // loads into registers what a step of add_tile needs: the features of the keys of tile J from k0 on, and for k0 = 0
  // also the values and the weights of the tile
  __device__ __forceinline__ void fetch(int J, int k0) {
    const int j0 = J * keys;
    m_keys.fetch(m_task.B, m_B, j0, k0);
    if (k0 > 0) return;
    if (m_has_aligned_values) m_values.fetch(m_U, j0, m_p0);
    fetch_weights(j0);
  }
  __device__ __forceinline__ void fetch_weights(int j0) {
#pragma unroll
    for (int e = 0; e < own_weights; ++e) {
      const int lag = static_cast<int>(threadIdx.x) + e * threads;
      m_weights[e] = lag < queries + keys - 1 ? m_task.c(m_head, j0 - (m_i0 + queries - 1) + lag)
                                              : key_scale(j0 + lag - (queries + keys));
    }
  }

  // the scale that the weights of a key are multiplied by; 1 if it has none
  __device__ __forceinline__ float key_scale(int key) const {
    const bool has_scale = in_half && m_task.scales.keys && key >= 0 && key < m_task.B.tokens;
    return has_scale ? m_task.scales.keys[static_cast<std::ptrdiff_t>(m_z) * m_task.B.tokens + key] : 1.0f;
  }

  // adds the keys of tile J, whose first features are already in registers; meanwhile it loads what the next step needs
  __device__ __forceinline__ void add_tile(int J, int end) {
    const int r = m_task.B.channels;
    Scores s = {};
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
        has_zero_weight = __syncthreads_or(put_weights());
      } else {
        __syncthreads();
      }
      const bool more = k0 + k_tile < r;
      if (more || J + 1 < end) fetch(more ? J : J + 1, more ? k0 + k_tile : 0);
      const int depth = min(k_tile, r - k0);
#pragma unroll 1
      for (int k = 0; k < depth; k += 16) add_scores(s, k);
    }
    add_weighted_values(s, has_zero_weight);
  }

  // stores in shared memory the weights that this thread fetched; returns whether one of them is zero
  __device__ __forceinline__ bool put_weights() const {
    bool has_zero = false;
    for (int e = 0; e < own_weights; ++e) {
      c()[static_cast<int>(threadIdx.x) + e * threads] = m_weights[e];
      has_zero |= m_weights[e] == 0;
    }
    return has_zero;
  }

  __device__ __forceinline__ void add_weighted_values(Scores& s, bool has_zero_weight) {
    // a key of weight 0 contributes nothing, even if its score or its value is not finite
    if (has_zero_weight) {
      zero_masked_scores(s);
      if (__syncthreads_or(has_nonfinite_scalar(u(), keys))) add_nonfinite_values();
    }
    add_values(s);
  }

  // multiplies the scores by weights, rounds them, and adds their products with the values
  __device__ __forceinline__ void add_values(Scores& s) {
    if constexpr (weights_scores_first) multiply_by_weights(s);
    if constexpr (in_half) fit_rows_to(s);
#pragma unroll
    for (int k = 0; k < keys / 16; ++k) {
      typename F::Left p[row_blocks];
#pragma unroll
      for (int m = 0; m < row_blocks; ++m) p[m] = rounded(s[m][k], m, k);
      add_columns(p, u() + 16 * k * stride);
      add_column(p, F::right_ones());
    }
  }
  // the scores s of the m-th 16 rows and the k-th 16 keys, weighted and rounded, as a left factor
  __device__ __forceinline__ typename F::Left rounded(const typename F::Sum& s, int m, int k) const {
    unsigned words[2][2];
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float *x = s.x[n] + 2 * h, *weight = weight_of(m, h, 2 * k + n);
        words[n][h] = in_half                ? pack<Feature>(m_scale[m][h] * x[0], m_scale[m][h] * x[1])
                      : weights_scores_first ? pack<Feature>(x[0], x[1])
                                             : pack<Feature>(weight[0] * x[0], weight[1] * x[1]);
      }
    return F::left_of(words);
  }

  // points to the weights of this lane's row (m,h) for the lane's n-th two keys, which are neighbours
  __device__ __forceinline__ const float* weight_of(int m, int h, int n) const {
    return c() + queries - 1 - row_of_warp() - F::row() - 16 * m - h * F::row_step + column_of(n);
  }

  // loads the features of the queries from k0 on; if one step has all features, they are loaded only once and stay in
  // shared memory
  __device__ __forceinline__ void load_queries(int k0) {
    if (m_has_queries && m_task.A.channels <= k_tile) return;
    m_has_queries = true;
#pragma unroll 1
    for (int i = 0; i < queries; i += keys) {
      RowLoader<Feature, keys, threads> rows;
      rows.fetch(m_task.A, m_A, m_i0 + i, k0);
      rows.put(a() + i * stride);
    }
  }

  // adds the products of the 16 features from k on to the scores
  __device__ __forceinline__ void add_scores(Scores& s, int k) const {
    typename F::Left q[row_blocks];
#pragma unroll
    for (int m = 0; m < row_blocks; ++m) q[m] = F::load_left(a() + (row_of_warp() + 16 * m) * stride + k, stride);
#pragma unroll
    for (int j = 0; j < keys; j += 16) {
      const typename F::RightTransposed key = F::load_right_transposed(b() + j * stride + k, stride);
#pragma unroll
      for (int m = 0; m < row_blocks; ++m) F::multiply_add(s[m][j / 16], q[m], key);
    }
  }

  // calls f(x, weight, key) for all scores x of this lane, where `key` is counted in the tile
  template <class Function>
  __device__ __forceinline__ void for_scores(Scores& s, Function&& f) const {
#pragma unroll
    for (int m = 0; m < row_blocks; ++m)
#pragma unroll
      for (int n = 0; n < keys / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) f(s[m][n / 2].x[n % 2][e], weight_of(m, e / 2, n)[e % 2], column_of(n) + e % 2);
  }
  __device__ __forceinline__ void zero_masked_scores(Scores& s) const {
    for_scores(s, [](float& x, float weight, int) { x = weight == 0 ? 0.0f : x; });
  }
  __device__ __forceinline__ void multiply_by_weights(Scores& s) const {
    for_scores(s, [](float& x, float weight, int) { x *= weight; });
    if (!in_half || !m_task.scales.keys) return;
    const float* scales = c() + queries + keys;
    for_scores(s, [=](float& x, float, int key) { x *= scales[key]; });
  }

  // adds the non-finite values to the rows that attend to them, and then replaces them by zeros in shared memory, for
  // the other rows
  __device__ __forceinline__ void add_nonfinite_values() {
    for (int k = 0; k < keys; ++k)
#pragma unroll
      for (int n = 0; n < columns / 8; ++n)
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          const Feature value = u()[k * stride + column_of(n) + s];
          if (!is_nonfinite(value)) continue;
#pragma unroll
          for (int e = 0; e < 2 * row_blocks; ++e) {
            const float weight = weight_of(e / 2, e % 2, 0)[k - F::column()];
            if (weight != 0) m_y[e / 2][n / 2].x[n % 2][e % 2 * 2 + s] += weight * to_float(value);
          }
        }
    __syncthreads();
    clear_nonfinite_scalars(u(), keys);
    __syncthreads();
  }

  const TileTask<S, Feature>& m_task;
  const Feature *m_A, *m_B;
  ColumnsOf<S> m_U;
  int m_z, m_head;
  bool m_has_aligned_values, m_has_queries = false;
  int m_stage = 0;  // which of the `stages` tiles of keys in shared memory is multiplied
  RowLoader<Feature, keys, threads> m_keys, m_values;
  float m_weights[own_weights];  // this thread's part of c()
};

/// The tile for features of type Feature. `shape` is the instruction that multiplies.
template <Storage S, class Feature, MmaShape shape = MmaShape::native, int row_blocks = 2>
using TileOf = std::conditional_t<std::is_same_v<Feature, float>, Tile<S>, TensorTile<S, Feature, shape, row_blocks>>;

}  // namespace nprf::cuda
