// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/block_product.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/smooth/chunk_blocks.hpp"

namespace nprf::toeplitz {

/// The tokens of one axis by chunks of slots, with factors A (n,r): row i of X (rows,terms r) has P_p(u_i) A_i for each
/// polynomial p, at the slot u_i of the token in its chunk.
template <Real T>
class ChunkRows {
 public:
  ChunkRows(Index terms, const Slots& slots, const MatrixView<T>& A) : m_terms(terms), m_slots(slots), m_A(A) {}

  /// The tokens of chunk I.
  RowRange rows(Index I) const { return {m_slots.below(I * smooth_chunk), m_slots.below((I + 1) * smooth_chunk)}; }
  Index cols() const { return m_terms * m_A.cols(); }
  /// P_p(u_i) of a token of chunk I (most_terms).
  const T* polynomials(Index I, Index i) const {
    return ChunkBasis<T>::get().by_slot + (m_slots[i] - I * smooth_chunk) * most_terms;
  }

  /// X of chunk I, followed by zeros up to whole blocks of rows.
  const T* expand(Index I, Workspace& scratch) const {
    constexpr Index W = Pack<T>::size, block = Block<T>::rows;
    const RowRange of = rows(I);
    const Index r = m_A.cols(), size = ((of.size() + block - 1) / block * cols() + 1) * block;
    T *X = scratch.take<T>(size), *to = X;
    for (Index i = of.begin; i < of.end; ++i) {
      const T *a = m_A.data() + i * m_A.outerStride(), *P = polynomials(I, i);
      for (Index p = 0; p < m_terms; ++p, to += r) {
        const auto factor = Pack<T>::all(P[p]);
        for (Index k = 0; k < r; k += W) (factor * Pack<T>::load(a + k, r - k)).store(to + k, r - k);
      }
    }
    std::fill(to, X + size, T(0));
    return X;
  }

 private:
  Index m_terms;
  Slots m_slots;
  MatrixView<T> m_A;
};

/// The columns of values U (n,p) of the tokens, and how the moments of a chunk store them: whole packs of columns
/// first, (terms r,packed()), padded with zeros; then vectors (terms r) of one or two columns that are left over, and
/// of values of 1, if they are asked for.
template <Real T>
class ChunkValues {
 public:
  ChunkValues(const MatrixView<T>& U, bool has_ones) : m_U(U), m_has_ones(has_ones) {
    const Index rest = U.cols() % Pack<T>::size;
    m_apart = rest <= 2 ? rest : 0;
  }

  const MatrixView<T>& all() const { return m_U; }
  /// The number of columns in packs, and of scalars that they take.
  Index in_packs() const { return m_U.cols() - m_apart; }
  Index packed() const { return packs_for<T>(in_packs()) * Pack<T>::size; }
  /// The number of vectors.
  Index apart() const { return m_apart + m_has_ones; }
  T value(Index i, Index vector) const { return vector < m_apart ? m_U(i, in_packs() + vector) : T(1); }

  /// The columns in packs of some rows: in place, or a padded copy.
  RightFactor<T> rows(RowRange of, Workspace& scratch) const {
    const Index width = packed();
    const T* first = m_U.data() + of.begin * m_U.outerStride();
    if (in_packs() == width) return RightFactor<T>::in_place(first, m_U.outerStride());
    T* copy = scratch.take<T>(of.size() * width);
    for (Index i = 0; i < of.size(); ++i) {
      std::copy_n(first + i * m_U.outerStride(), in_packs(), copy + i * width);
      std::fill(copy + i * width + in_packs(), copy + (i + 1) * width, T(0));
    }
    return RightFactor<T>::in_place(copy, width);
  }

 private:
  MatrixView<T> m_U;
  Index m_apart;
  bool m_has_ones;
};

/// Sets the moments X^T U of chunk I, in the layout of ChunkValues.
template <Real T>
void set_moments(const ChunkRows<T>& of, Index I, const ChunkValues<T>& U, T* M, Workspace& scratch) {
  const Workspace::Scope scope(scratch);
  const RowRange rows = of.rows(I);
  const Index R = of.cols(), width = U.packed();
  const T* X = of.expand(I, scratch);
  const RightFactor<T> values = U.rows(rows, scratch);
  for (Index k = 0; k < R; k += Block<T>::rows)
    multiply_block(rows.size(), width / Pack<T>::size, LeftFactor<T, Step<1>, Index>{X + k, {}, R}, values,
                   [=](Index i, Index j, const Pack<T>& y) {
                     if (k + i < R) y.store(M + (k + i) * width + j);
                   });
  for (Index c = 0; c < U.apart(); ++c) {
    T* sum = M + R * (width + c);
    std::fill_n(sum, R, T(0));
    for (Index i = 0; i < rows.size(); ++i) {
      const T each = U.value(rows.begin + i, c);
      for (Index k = 0; k < R; ++k) sum[k] += each * X[i * R + k];
    }
  }
}

/// Sets the rows y (rows,p) of chunk I to X L for sums L of moments of U, and `sums` (rows) to those of values of 1.
template <Real T>
void set_rows(const ChunkRows<T>& of, Index I, const ChunkValues<T>& U, const T* L, MatrixRef<T> y, T* sums,
              Workspace& scratch) {
  const Workspace::Scope scope(scratch);
  const T* X = of.expand(I, scratch);
  const Index R = of.cols(), rows = y.rows(), width = U.packed(), columns = U.in_packs();
  T* out = y.data();
  Index stride = y.outerStride();
  if (columns < width) out = scratch.take<T>(rows * width), stride = width;
  for (Index i = 0; i < rows; i += Block<T>::rows)
    multiply_block(R, width / Pack<T>::size, LeftFactor<T, Index, Step<1>>{X + i * R, R, {}},
                   RightFactor<T>::in_place(L, width), [=](Index k, Index j, const Pack<T>& z) {
                     if (i + k < rows) z.store(out + (i + k) * stride + j);
                   });
  for (Index i = 0; columns < width && i < rows; ++i) std::copy_n(out + i * stride, columns, &y(i, 0));
  for (Index c = 0; c < U.apart(); ++c)
    for (Index i = 0; i < rows; ++i) {
      const T sum = dot_by_packs(X + i * R, L + R * (width + c), R);
      (columns + c < y.cols() ? y(i, columns + c) : sums[i]) = sum;
    }
}

/// dA_i = sum_p P_p(u_i) L[p] G_i for the tokens i of chunk I, for sums L of moments in the layout of G.
template <Real T>
void set_factor_gradients(const ChunkRows<T>& of, Index I, const ChunkValues<T>& G, const T* L, MatrixRef<T>& dA,
                          Workspace& scratch) {
  const Workspace::Scope scope(scratch);
  const RowRange rows = of.rows(I);
  const Index R = of.cols(), r = dA.cols(), depth = G.in_packs(), packs = packs_for<T>(R),
              width = packs * Pack<T>::size;
  RowBlocks<T> left(depth, scratch);
  left.set(G.all().middleRows(rows.begin, rows.size()).leftCols(depth));
  Transposed<T> right(depth, width, scratch);
  right.set(Eigen::Map<const Matrix<T>, 0, Eigen::OuterStride<>>(L, R, depth, Eigen::OuterStride<>(G.packed())), packs);
  T* Z = scratch.take<T>(Block<T>::rows * width);  // G L^T
  for (Index i = 0; i < rows.size(); i += Block<T>::rows) {
    multiply_block(depth, packs, left.block(i), right.factor(),
                   [=](Index k, Index j, const Pack<T>& z) { z.store(Z + k * width + j); });
    for (Index k = 0; k < std::min(Block<T>::rows, rows.size() - i); ++k) {
      const Index row = rows.begin + i + k;
      T* z = Z + k * width;
      for (Index c = 0; c < G.apart(); ++c) {
        const T each = G.value(row, c), *l = L + R * (G.packed() + c);
        for (Index q = 0; q < R; ++q) z[q] += each * l[q];
      }
      const T* P = of.polynomials(I, row);
      T* to = dA.data() + row * dA.outerStride();
      for (Index j = 0; j < r; j += Pack<T>::size) {
        auto sum = Pack<T>::all(0);
        for (Index q = 0; q * r < R; ++q)
          sum = multiply_add(Pack<T>::all(P[q]), Pack<T>::load(z + q * r + j, r - j), sum);
        sum.store(to + j, r - j);
      }
    }
  }
}

}  // namespace nprf::toeplitz
