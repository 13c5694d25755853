// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <type_traits>

#include "nprf/core/pack.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"

/// Products of matrices that fit into the caches. Each block of the result is accumulated in registers. A callback gets
/// each pack of the result, so that the caller can weight it or add it to another array before it is stored.
///
///     RowBlocks<T> A(depth, scratch);
///     Transposed<T> B(depth, cols, scratch);
///     A.set(a);         // (rows,depth)
///     B.set(b, packs);  // (cols,depth)
///     for (Index i = 0; i < rows; i += Block<T>::rows)
///       multiply_block(depth, packs, A.block(i), B.factor(), [&](Index k, Index j, const Pack<T>& c) {
///         // the entries (i + k, j), (i + k, j + 1), ... of a b^T
///       });
namespace nprf {

/// The size of the block of C = A B that is accumulated in registers: it occupies 12 of 16 registers, or 24 of 32.
template <Real T>
struct Block {
  static constexpr Index rows = 6;
  static constexpr Index packs = Pack<T>::registers >= 32 ? 4 : 2;
  static constexpr Index cols = packs * Pack<T>::size;
};

/// The type of a row_step or a depth_step (LeftFactor) that is known at compile time.
template <Index value>
using Step = std::integral_constant<Index, value>;

/// The rows of one block of the left factor: A(i,k) = data[i row_step + k depth_step].
template <Real T, class RowStep, class DepthStep>
struct LeftFactor {
  const T* data;
  RowStep row_step;
  DepthStep depth_step;
};

/// The right factor, in panels of Block<T>::cols columns: B(k,j) of panel q is data[q panel_step + k depth_step + j].
template <Real T>
struct RightFactor {
  const T* data;
  Index depth_step;
  Index panel_step;

  /// Row-major x (depth,cols), read in place. Only whole packs of columns may be multiplied.
  static RightFactor in_place(const T* x, Index stride) { return {x, stride, Block<T>::cols}; }
};

namespace detail {

template <Index rows, Index packs, Real T, class RowStep, class DepthStep, class Emit>
[[gnu::always_inline]] inline void multiply_panel(Index depth, LeftFactor<T, RowStep, DepthStep> A, const T* b,
                                                  Index b_step, Emit&& emit) {
  Pack<T> sum[rows][packs];
  NPRF_UNROLL
  for (Index i = 0; i < rows; ++i) {
    NPRF_UNROLL
    for (Index v = 0; v < packs; ++v) sum[i][v] = Pack<T>::all(0);
  }
  const T* a = A.data;
  for (Index k = 0; k < depth; ++k, a += A.depth_step, b += b_step) {
    Pack<T> row[packs];
    NPRF_UNROLL
    for (Index v = 0; v < packs; ++v) row[v] = Pack<T>::load(b + v * Pack<T>::size);
    NPRF_UNROLL
    for (Index i = 0; i < rows; ++i) {
      const Pack<T> each = Pack<T>::all(a[i * A.row_step]);
      NPRF_UNROLL
      for (Index v = 0; v < packs; ++v) sum[i][v] = multiply_add(each, row[v], sum[i][v]);
    }
  }
  NPRF_UNROLL
  for (Index i = 0; i < rows; ++i) {
    NPRF_UNROLL
    for (Index v = 0; v < packs; ++v) emit(i, v * Pack<T>::size, sum[i][v]);
  }
}

// calls use.operator()<count>() for a runtime count of 1..most; does nothing for other counts
template <Index most, class Use>
[[gnu::always_inline]] inline void with_constant(Index count, Use&& use) {
  if constexpr (most > 0) {
    if (count == most)
      use.template operator()<most>();
    else
      with_constant<most - 1>(count, use);
  }
}

}  // namespace detail

/// Computes a block of C = A B of `rows` rows and `packs` packs of columns. Calls emit(i, j, pack) for each row i and
/// each pack, which holds the columns j, j + 1, ... The bits of a row do not depend on the number of rows.
template <Index rows, Real T, class RowStep, class DepthStep, class Emit>
[[gnu::always_inline]] inline void multiply_rows(Index depth, Index packs, LeftFactor<T, RowStep, DepthStep> A,
                                                 RightFactor<T> B, Emit&& emit) {
  constexpr Index most = Block<T>::packs;
  const T* panel = B.data;
  Index j0 = 0;
  const auto shifted = [&](Index i, Index j, const Pack<T>& c) { emit(i, j0 + j, c); };
  for (; packs >= most; packs -= most, panel += B.panel_step, j0 += Block<T>::cols)
    detail::multiply_panel<rows, most>(depth, A, panel, B.depth_step, shifted);
  detail::with_constant<most - 1>(
      packs, [&]<Index rest>() { detail::multiply_panel<rows, rest>(depth, A, panel, B.depth_step, shifted); });
}

template <Real T, class RowStep, class DepthStep, class Emit>
[[gnu::always_inline]] inline void multiply_block(Index depth, Index packs, LeftFactor<T, RowStep, DepthStep> A,
                                                  RightFactor<T> B, Emit&& emit) {
  multiply_rows<Block<T>::rows>(depth, packs, A, B, emit);
}

/// Row-major x (rows,depth) as left factors, one for each block of rows. Whole blocks are read in place. An incomplete
/// last block is copied and padded with rows of zeros.
template <Real T>
class RowBlocks {
 public:
  RowBlocks(Index depth, Workspace& scratch) : m_last(scratch.take<T>(Block<T>::rows * depth)) {}

  void set(const MatrixView<T>& x) {
    const Index depth = x.cols(), rest = x.rows() % Block<T>::rows;
    m_x = x.data();
    m_stride = x.outerStride();
    m_depth = depth;
    m_whole_rows = x.rows() - rest;
    for (Index i = 0; i < rest; ++i) std::copy_n(m_x + (m_whole_rows + i) * m_stride, depth, m_last + i * depth);
    std::fill(m_last + rest * depth, m_last + Block<T>::rows * depth, T(0));
  }

  /// The block of rows i, i + 1, ..., where i is a multiple of Block<T>::rows.
  LeftFactor<T, Index, Step<1>> block(Index i) const {
    if (i < m_whole_rows) return {m_x + i * m_stride, m_stride, {}};
    return {m_last, m_depth, {}};
  }

 private:
  T* m_last;
  const T* m_x = nullptr;
  Index m_stride = 0, m_depth = 0, m_whole_rows = 0;
};

/// z (rows,cols) = x B for row-major x (rows,depth), where cols is `packs` times the size of a pack. The bits of a row
/// do not depend on the other rows.
template <Real T>
void multiply_each_row(const MatrixView<T>& x, Index packs, RightFactor<T> B, MatrixMap<T> z, Workspace& scratch) {
  const Index rows = x.rows(), depth = x.cols();
  if (rows <= 2) {  // as in a step of a decoder; a single row is computed twice
    const LeftFactor<T, Index, Step<1>> A{x.data(), rows == 2 ? x.outerStride() : 0, {}};
    multiply_rows<2>(depth, packs, A, B, [&](Index i, Index j, const Pack<T>& product) {
      if (i < rows) product.store(&z(i, j));
    });
    return;
  }
  RowBlocks<T> blocks(depth, scratch);
  blocks.set(x);
  for (Index i = 0; i < rows; i += Block<T>::rows)
    multiply_block(depth, packs, blocks.block(i), B, [&](Index k, Index j, const Pack<T>& product) {
      if (i + k < rows) product.store(&z(i + k, j));
    });
}

/// Returns w^T (depth,cols) for w (cols,depth), a matrix that the caller keeps and reads in place as a right factor.
/// Its columns are padded to whole packs; the padding repeats the last column. Packs are those of the widest registers,
/// because code that is compiled for other registers may use the matrix (levels.hpp).
template <Real T>
Matrix<T> transposed_in_packs(const Matrix<T>& w) {
  constexpr Index widest = std::max<Index>(64 / sizeof(T), Pack<T>::size);
  const Index cols = w.rows();
  Matrix<T> wt(w.cols(), (cols + widest - 1) / widest * widest);
  for (Index i = 0; i < wt.rows(); ++i)
    for (Index j = 0; j < wt.cols(); ++j) wt(i, j) = w(std::min(j, cols - 1), i);
  return wt;
}

/// x^T (depth,cols) of row-major x (cols,depth) as a right factor: a copy, padded with columns of zeros.
template <Real T>
class Transposed {
 public:
  /// `most` is the largest number of columns, including those of the padding.
  Transposed(Index depth, Index most, Workspace& scratch)
      : m_depth(depth), m_data(scratch.take<T>((most + Block<T>::cols - 1) / Block<T>::cols * panel_step())) {}

  /// Copies x into `packs` packs of columns, at least as many as the rows of x need.
  void set(const MatrixView<T>& x, Index packs) {
    constexpr Index W = Pack<T>::size, width = Block<T>::cols;
    const Index stride = x.outerStride();
    for (Index j = 0; j < packs * W; j += W) {
      T* to = m_data + j / width * panel_step() + j % width;
      const T* from = x.data() + j * stride;
      const Index count = std::clamp<Index>(x.rows() - j, 0, W);
      Index k = 0;
      if (count == W)
        for (; k + W <= m_depth; k += W) transpose_square(from + k, stride, to + k * width, width);
      for (; k < m_depth; ++k)
        for (Index u = 0; u < W; ++u) to[k * width + u] = u < count ? from[u * stride + k] : T(0);
    }
  }

  RightFactor<T> factor() const { return {m_data, Block<T>::cols, panel_step()}; }

 private:
  Index panel_step() const { return m_depth * Block<T>::cols; }

  Index m_depth;
  T* m_data;
};

/// x^T (depth,cols) of row-major x (cols,depth) as right factors that begin at any pack of columns: a copy, padded with
/// columns of zeros to whole packs.
template <Real T>
class TransposedRows {
 public:
  /// `most` is the largest number of rows of x.
  TransposedRows(Index depth, Index most, Workspace& scratch)
      : m_depth(depth),
        // an odd number of packs: rows at steps of a power of two would be in the same few sets of a cache
        m_step((packs_for<T>(most) | 1) * Pack<T>::size),
        m_data(scratch.take<T>(depth * m_step)) {}

  void set(const MatrixView<T>& x) {
    constexpr Index W = Pack<T>::size;
    const Index stride = x.outerStride();
    for (Index j = 0; j < x.rows(); j += W) {
      const T* from = x.data() + j * stride;
      const Index count = std::min(x.rows() - j, W);
      Index k = 0;
      if (count == W)
        for (; k + W <= m_depth; k += W) transpose_square(from + k, stride, m_data + k * m_step + j, m_step);
      for (; k < m_depth; ++k)
        for (Index u = 0; u < W; ++u) m_data[k * m_step + j + u] = u < count ? from[u * stride + k] : T(0);
    }
  }

  /// The right factor of the columns that begin with pack number `pack`.
  RightFactor<T> from(Index pack) const { return RightFactor<T>::in_place(m_data + pack * Pack<T>::size, m_step); }

 private:
  Index m_depth, m_step;
  T* m_data;
};

/// Row-major x (depth,cols) as the right factor of a product that is added to a result. Whole packs of columns are read
/// in place. Each remaining column is copied.
template <Real T>
class RightRows {
 public:
  /// `most` is the largest number of rows of x.
  RightRows(Index cols, Index most, Workspace& scratch)
      : m_cols(cols),
        m_most(packs_for<T>(most) * Pack<T>::size),
        m_last(scratch.take<T>((cols - packed_cols()) * m_most)) {}

  void set(const MatrixView<T>& x) {
    m_x = x.data();
    m_stride = x.outerStride();
    m_depth = x.rows();
    T* to = m_last;
    for (Index q = packed_cols(); q < m_cols; ++q, to += m_most) {
      for (Index k = 0; k < m_depth; ++k) to[k] = m_x[k * m_stride + q];
      std::fill(to + m_depth, to + packs_for<T>(m_depth) * Pack<T>::size, T(0));
    }
  }

  /// out (rows,cols) += A x, for a block of A (rows,depth) whose rows are padded with zeros to whole packs.
  template <class RowStep>
  [[gnu::always_inline]] void add_product(LeftFactor<T, RowStep, Step<1>> A, Index rows, T* out, Index stride) const {
    multiply_block(m_depth, m_cols / Pack<T>::size, A, RightFactor<T>::in_place(m_x, m_stride),
                   [=](Index i, Index j, const Pack<T>& y) {
                     T* to = out + i * stride + j;
                     if (i < rows) (Pack<T>::load(to) + y).store(to);
                   });
    const T* x = m_last;
    for (Index q = packed_cols(); q < m_cols; ++q, x += m_most) {
      Pack<T> sum[Block<T>::rows];
      for (Pack<T>& each : sum) each = Pack<T>::all(0);
      for (Index k = 0; k < m_depth; k += Pack<T>::size) {
        const Pack<T> column = Pack<T>::load(x + k);
        for (Index i = 0; i < Block<T>::rows; ++i)
          sum[i] = multiply_add(Pack<T>::load(A.data + i * A.row_step + k), column, sum[i]);
      }
      for (Index i = 0; i < Block<T>::rows; ++i)
        if (i < rows) out[i * stride + q] += sum[i].sum();
    }
  }

 private:
  Index packed_cols() const { return m_cols / Pack<T>::size * Pack<T>::size; }

  Index m_cols, m_most;
  T* m_last;
  const T* m_x = nullptr;
  Index m_stride = 0, m_depth = 0;
};

}  // namespace nprf
