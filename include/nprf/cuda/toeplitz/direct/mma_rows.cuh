// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <type_traits>

#include "nprf/cuda/device/mma_fragment.cuh"
#include "nprf/cuda/device/row_loader.cuh"
#include "nprf/cuda/device/scales.cuh"

namespace nprf::cuda {

/// The rows of Y and of the sums D that a warp of a tensor core tile has in registers: row_blocks blocks of 16 rows,
/// and 64 columns of Y. They start as zeros.
///
/// If Feature is half, each row of Y and its sum are stored times a power of two, the scale of the row. What is added
/// to a row has the same scale, so that it fits the range of half (scales.cuh).
template <class Feature, MmaShape shape, int row_blocks>
class MmaRows {
 public:
  static constexpr int columns = MmaTileShape::channels;

  /// Multiplies each row i by factor(i); a row whose factor is 0 becomes 0, even if it is not finite.
  template <class Factor>
  __device__ __forceinline__ void scale_rows(Factor&& factor) {
#pragma unroll
    for (int m = 0; m < row_blocks; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float c = factor(row(m, h));
        for_row(m, h, [=](float& x) { x = c == 0 ? 0.0f : c * x; });
      }
  }

 protected:
  using F = Fragments<Feature, shape>;
  static constexpr bool in_half = std::is_same_v<Feature, __half>;
  static constexpr int stride = MmaTileShape::stride;

  /// The tile has the queries from i0 on, and the columns from p0 on.
  __device__ __forceinline__ MmaRows(int i0, int p0) : m_i0(i0), m_p0(p0) {
    for (int m = 0; m < row_blocks; ++m) m_scale[m][0] = m_scale[m][1] = 1;
  }

  // the first row of this warp in the tile
  __device__ __forceinline__ static int row_of_warp() { return static_cast<int>(threadIdx.x) / 32 * (16 * row_blocks); }
  // the query of this lane's row (m,h): of the m-th block of 16 rows, in which the lane has the two rows h = 0 and 1
  __device__ __forceinline__ int row(int m, int h) const {
    return m_i0 + row_of_warp() + 16 * m + h * F::row_step + F::row();
  }
  // a lane's columns are neighbours, two by two; this is the first column of its n-th two, counted in the tile
  __device__ __forceinline__ static int column_of(int n) { return n / 2 * 16 + n % 2 * F::column_step + F::column(); }

  // calls f(x) for the sum of row (m,h), and for each entry x of Y that this lane has in the row
  template <class Function>
  __device__ __forceinline__ void for_row(int m, int h, Function&& f) {
    f(m_sum[m].of(h));
#pragma unroll
    for (int n = 0; n < columns / 8; ++n)
#pragma unroll
      for (int e = 2 * h; e < 2 * h + 2; ++e) f(m_y[m][n / 2].x[n % 2][e]);
  }

  // Y += p u, for 16 columns of p and 16 rows of u, which are in shared memory
  __device__ __forceinline__ void add_columns(const typename F::Left (&p)[row_blocks], const Feature* u) {
#pragma unroll
    for (int column = 0; column < columns; column += 16) {
      const typename F::Right value = F::load_right(u + column, stride);
#pragma unroll
      for (int m = 0; m < row_blocks; ++m) F::multiply_add(m_y[m][column / 16], p[m], value);
    }
  }
  // sums += p column, for 16 columns of p
  __device__ __forceinline__ void add_column(const typename F::Left (&p)[row_blocks],
                                             const typename F::RightColumn& column) {
    for (int m = 0; m < row_blocks; ++m) F::multiply_add(m_sum[m], p[m], column);
  }

  // Writes the rows to Y (n_q,p). The block that has the first columns also writes the sums (n_q). In half, the row of
  // query i is multiplied by unit_of(i), and divided by its scale.
  template <class Unit>
  __device__ __forceinline__ void store_rows(float* Y, float* sums, int n_q, int p, Unit&& unit_of) const {
#pragma unroll
    for (int m = 0; m < row_blocks; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int i = row(m, h);
        if (i >= n_q) continue;
        const float unit = in_half ? unit_of(i) / m_scale[m][h] : 1.0f;
        float* y = Y + static_cast<std::ptrdiff_t>(i) * p;
#pragma unroll
        for (int n = 0; n < columns / 8; ++n) {
          const int column = m_p0 + column_of(n);
          const float* two = m_y[m][n / 2].x[n % 2] + 2 * h;
          const float first = unit * two[0], second = unit * two[1];
          if (p % 2 == 0 && column < p)
            *reinterpret_cast<float2*>(y + column) = make_float2(first, second);
          else if (column < p)
            y[column] = first;
          if (p % 2 != 0 && column + 1 < p) y[column + 1] = second;
        }
        if (m_p0 == 0 && F::column() == 0) sums[i] = unit * m_sum[m].of(h);
      }
  }

  // ---- scales of rows in half

  // sets the scale of row (m,h) such that numbers of up to `largest` fit half, and multiplies the row accordingly
  __device__ __forceinline__ void fit_row(int m, int h, float largest) {
    const float scale = scale_to_half(largest), factor = scale / m_scale[m][h];
    m_scale[m][h] = scale;
    for_row(m, h, [=](float& x) { x *= factor; });
  }
  // sets the scale of each row such that entries of P (TensorTile) fit half up to the D of the row, or up to its
  // largest |N| / 2^16 if that is larger: with values of up to 2^16, |N| is at most 2^16 times the sum of P
  __device__ __forceinline__ void fit_rows_to_sums() {
#pragma unroll
    for (int m = 0; m < row_blocks; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float largest = 0x1p16f * fabsf(m_sum[m].of(h));
        for_row(m, h, [&](const float& x) { largest = fmaxf(largest, fabsf(x)); });
        fit_row(m, h, 0x1p-16f / m_scale[m][h] * F::row_max(largest));
      }
  }
  // reduces the scales of rows whose entries of P = s (16 * row_blocks,16 * blocks) would be too large for half
  template <int blocks>
  __device__ __forceinline__ void fit_rows_to(const typename F::Sum (&s)[row_blocks][blocks]) {
#pragma unroll
    for (int m = 0; m < row_blocks; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float largest = 0;
#pragma unroll
        for (int n = 0; n < 2 * blocks; ++n)
#pragma unroll
          for (int e = 2 * h; e < 2 * h + 2; ++e) largest = fmaxf(largest, fabsf(s[m][n / 2].x[n % 2][e]));
        largest = F::row_max(largest);
        if (!(largest * m_scale[m][h] <= largest_scaled)) fit_row(m, h, largest);
      }
    __syncwarp();  // the rows of some lanes took longer
  }
  // multiplies column k of Y by factor_of(k), and the sums by factor_of_sums
  template <class Factor>
  __device__ __forceinline__ void scale_columns(Factor&& factor_of, float factor_of_sums) {
#pragma unroll
    for (int n = 0; n < columns / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float factor = factor_of(column_of(n) + e % 2);
#pragma unroll
        for (int m = 0; m < row_blocks; ++m) m_y[m][n / 2].x[n % 2][e] *= factor;
      }
#pragma unroll
    for (int m = 0; m < row_blocks; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) m_sum[m].of(h) *= factor_of_sums;
  }

  int m_i0, m_p0;
  typename F::Sum m_y[row_blocks][columns / 16] = {};
  typename F::RowSum m_sum[row_blocks] = {};
  float m_scale[row_blocks][2];  // the scales of this lane's rows (m,h)
};

}  // namespace nprf::cuda
