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

/// y (rows,p) = X L of chunk I, for L (terms r,p). Also sets `sums` (rows) to X L', unless it is null; L' (terms r)
/// follows L.
template <Real T>
void set_rows(const ChunkRows<T>& of, Index I, const T* L, MatrixRef<T> y, T* sums, Workspace& scratch) {
  const Workspace::Scope scope(scratch);
  const T* X = of.expand(I, scratch);
  const Index R = of.cols(), p = y.cols(), packs = p / Pack<T>::size;
  for (Index i = 0; i < y.rows(); i += Block<T>::rows)
    multiply_block(R, packs, LeftFactor<T, Index, Step<1>>{X + i * R, R, {}}, RightFactor<T>::in_place(L, p),
                   [&](Index k, Index j, const Pack<T>& z) {
                     if (i + k < y.rows()) z.store(&y(i + k, j));
                   });
  for (Index i = 0; i < y.rows(); ++i) {
    const T* x = X + i * R;
    for (Index q = packs * Pack<T>::size; q < p; ++q) {
      T sum = 0;
      for (Index k = 0; k < R; ++k) sum += x[k] * L[k * p + q];
      y(i, q) = sum;
    }
    if (sums) sums[i] = dot_by_packs(x, L + R * p, R);
  }
}

/// M (terms r,p) = X^T U for the values U (n,p) of the tokens of chunk I. If has_ones, M is followed by X^T 1.
template <Real T>
void set_moments(const ChunkRows<T>& of, Index I, const MatrixView<T>& U, bool has_ones, T* M, Workspace& scratch) {
  const Workspace::Scope scope(scratch);
  const RowRange rows = of.rows(I);
  const Index R = of.cols(), p = U.cols(), packs = p / Pack<T>::size;
  const T* X = of.expand(I, scratch);
  const T* u = U.data() + rows.begin * U.outerStride();
  for (Index k = 0; k < R; k += Block<T>::rows)
    multiply_block(rows.size(), packs, LeftFactor<T, Step<1>, Index>{X + k, {}, R},
                   RightFactor<T>::in_place(u, U.outerStride()), [=](Index i, Index j, const Pack<T>& y) {
                     if (k + i < R) y.store(M + (k + i) * p + j);
                   });
  for (Index q = packs * Pack<T>::size; q < p; ++q) {
    for (Index k = 0; k < R; ++k) M[k * p + q] = 0;
    for (Index i = 0; i < rows.size(); ++i)
      for (Index k = 0; k < R; ++k) M[k * p + q] += X[i * R + k] * u[i * U.outerStride() + q];
  }
  if (!has_ones) return;
  T* ones = M + R * p;
  std::fill_n(ones, R, T(0));
  for (Index i = 0; i < rows.size(); ++i)
    for (Index k = 0; k < R; ++k) ones[k] += X[i * R + k];
}

}  // namespace nprf::toeplitz
