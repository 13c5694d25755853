// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>
#include <utility>

#include "nprf/core/block_product.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/direct/forward_tile.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/gradients.hpp"

namespace nprf::toeplitz {

// forward: S = A B^T, Y = (S o C) U; so with P = G U^T: dA = (P o C) B, dB = (P o C)^T A, dU = (S o C)^T G,
// and dc[l] sums S o P over the diagonal l
/// Adds a row's share to dc, whose first lag is `first`, unless it is null.
template <Real T>
struct AddDiagonals {
  // slots without gaps are left to the compiler to vectorise
  void operator()(Index i, Index j0, Index cols, const T* s, const T* p, const T*) const {
    if (!dc) return;
    const Index at = -first - x.queries.slots[i];  // of the key in slot 0
    if (x.keys.slots.at) {
      for (Index j = 0; j < cols; ++j) dc[at + x.keys.slots.at[j0 + j]] += s[j] * p[j];
    } else {
      T* sum = dc + (at + x.keys.slots.first + j0);
      for (Index j = 0; j < cols; ++j) sum[j] += s[j] * p[j];
    }
  }

  const Factors<T>& x;
  T* dc;
  Index first;
};

/// The gradients of Y = ((A B^T) o C) U for a few queries and a few keys at a time; weights as ForwardTile's.
template <Real T, class Weights = BlockWeights<T>>
class BackwardTile {
 public:
  /// Queries and keys that go through the second cache together, at most.
  static constexpr Index rows = 96, keys = 96;
  static_assert(rows % Block<T>::rows == 0 && keys % Block<T>::rows == 0 && keys % Pack<T>::size == 0);

  /// For G (n_q,p) = dL/dY, and weights of runs of so many keys.
  BackwardTile(const Factors<T>& x, const MatrixView<T>& G, Weights c, Workspace& scratch)
      : m_x(x),
        m_G(G),
        m_A_blocks(x.A.cols(), scratch),
        m_G_blocks(G.cols(), scratch),
        m_Bt(x.A.cols(), keys, scratch),
        m_Ut(G.cols(), keys, scratch),
        m_B(x.B.cols(), keys, scratch),
        m_c(std::move(c)),
        m_S(scratch.take<T>(rows * keys)),
        m_P(scratch.take<T>(rows * keys)),
        m_sums(scratch.take<T>(keys)) {}

  /// With weights that hold every lag between the queries and keys to come.
  BackwardTile(const Factors<T>& x, const MatrixView<T>& G, LagWeightsView<T> c, Workspace& scratch)
    requires std::same_as<Weights, BlockWeights<T>>
      : BackwardTile(x, G, Weights(x, c, keys, scratch), scratch) {}

  /// Queries i0..i0+count-1 from here on.
  void set_queries(Index i0, Index count) {
    m_i0 = i0;
    m_count = count;
    m_A_blocks.set(m_x.A.middleRows(i0, count));
    m_G_blocks.set(m_G.middleRows(i0, count));
  }

  /// Adds what they and keys j0..j0+cols-1 give, and calls add_dc(i, j0, cols, s, p, c) for each query i, with its rows
  /// (cols) of S, P and C.
  template <class AddDc>
  void add(Index j0, Index cols, GradientRefs<T>& out, AddDc&& add_dc) {
    // blocks of keys are to be whole as well as packs of them
    const Index packs = packs_for<T>((cols + Block<T>::rows - 1) / Block<T>::rows * Block<T>::rows);
    m_Bt.set(m_x.B.middleRows(j0, cols), packs);
    m_Ut.set(m_x.U.middleRows(j0, cols), packs);
    m_B.set(m_x.B.middleRows(j0, cols));
    for (Index i = 0; i < m_count; i += Block<T>::rows) {
      const Index block = std::min(Block<T>::rows, m_count - i);
      T *S = m_S + i * keys, *P = m_P + i * keys;
      multiply_block(m_x.A.cols(), packs, m_A_blocks.block(i), m_Bt.factor(),
                     [=](Index k, Index j, const Pack<T>& s) { s.store(S + k * keys + j); });  // (block,cols)
      multiply_block(m_G.cols(), packs, m_G_blocks.block(i), m_Ut.factor(),
                     [=](Index k, Index j, const Pack<T>& p) { p.store(P + k * keys + j); });  // (block,cols)
      m_c.set(m_i0 + i, block, j0, cols, packs);
      for (Index k = 0; k < block; ++k) add_dc(m_i0 + i + k, j0, cols, S + k * keys, P + k * keys, m_c.row(k));
      for (T* x : {S, P})
        for (Index k = 0; k < Block<T>::rows; ++k)
          for (Index j = 0; j < packs * Pack<T>::size; j += Pack<T>::size) {
            T* at = x + k * keys + j;
            weighted(Pack<T>::load(at), Pack<T>::load(m_c.row(k) + j)).store(at);
          }
      m_B.add_product(LeftFactor<T, Step<keys>, Step<1>>{P, {}, {}}, block,
                      out.dA.data() + (m_i0 + i) * out.dA.outerStride(), out.dA.outerStride());  // (block,r)
    }
    add_transposed_product(m_P, m_x.A.middleRows(m_i0, m_count), out.dB.middleRows(j0, cols));  // (cols,r)
    add_transposed_product(m_S, m_G.middleRows(m_i0, m_count), out.dU.middleRows(j0, cols));    // (cols,p)
  }

 private:
  // out += S^T x for x (m_count,out.cols)
  void add_transposed_product(const T* S, const MatrixView<T>& x, MatrixRef<T> out) {
    const Index packs = x.cols() / Pack<T>::size, cols = out.rows(), stride = out.outerStride();
    for (Index j = 0; j < cols; j += Block<T>::rows) {
      T* to = out.data() + j * stride;
      multiply_block(x.rows(), packs, LeftFactor<T, Step<1>, Step<keys>>{S + j, {}, {}},
                     RightFactor<T>::in_place(x.data(), x.outerStride()), [=](Index k, Index q, const Pack<T>& y) {
                       T* at = to + k * stride + q;
                       if (k < cols - j) (Pack<T>::load(at) + y).store(at);
                     });
    }
    for (Index q = packs * Pack<T>::size; q < x.cols(); ++q) {  // the columns beside whole packs
      T* sums = m_sums;
      std::fill_n(sums, cols, T(0));
      for (Index i = 0; i < x.rows(); ++i) {
        const T each = x(i, q);
        for (Index j = 0; j < cols; ++j) sums[j] += each * S[i * keys + j];
      }
      for (Index j = 0; j < cols; ++j) out(j, q) += sums[j];
    }
  }

  const Factors<T>& m_x;
  const MatrixView<T>& m_G;
  RowBlocks<T> m_A_blocks, m_G_blocks;
  Transposed<T> m_Bt, m_Ut;
  RightRows<T> m_B;
  Weights m_c;
  T *m_S, *m_P;  // (rows,keys)
  T* m_sums;     // (keys)
  Index m_i0 = 0, m_count = 0;
};

}  // namespace nprf::toeplitz
