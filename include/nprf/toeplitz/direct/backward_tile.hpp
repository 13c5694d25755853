// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/block_product.hpp"
#include "nprf/core/function_ref.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/direct/tile_weights.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/gradients.hpp"

namespace nprf::toeplitz {

/// A query i and the keys j0..j0+count-1 of a run: the scores S = A B^T, P = G U^T and the weights C of their pairs,
/// (count) each.
template <Real T>
struct PairRow {
  Index i, j0, count;
  const T *S, *P, *C;
};

// forward: S = A B^T, Y = (S o C) U; so with P = G U^T: dA = (P o C) B, dB = (P o C)^T A, dU = (S o C)^T G, dC = S o P
/// The gradients of Y = ((A B^T) o C) U for the queries of one tile.
template <Real T>
class BackwardTile {
 public:
  /// The largest number of queries, and of keys in a run: their scores stay in the second-level cache.
  static constexpr Index rows = 96, keys = 96;
  static_assert(rows % Block<T>::rows == 0 && keys % Block<T>::rows == 0 && keys % Pack<T>::size == 0);

  /// What adds to the gradient of the weights, for each query and run of keys.
  using AddDc = FunctionRef<void(const PairRow<T>&)>;

  /// For G (n_q,p) = dL/dY.
  BackwardTile(const Factors<T>& x, const MatrixView<T>& G, const TileWeights<T>& weights, Workspace& scratch)
      : m_x(x),
        m_weights(weights),
        m_G(G),
        m_A_blocks(x.A.cols(), scratch),
        m_G_blocks(G.cols(), scratch),
        m_Bt(x.A.cols(), keys, scratch),
        m_Ut(G.cols(), keys, scratch),
        m_B(x.B.cols(), keys, scratch),
        m_c(keys, scratch),
        m_S(scratch.take<T>(rows * keys)),
        m_P(scratch.take<T>(rows * keys)),
        m_sums(scratch.take<T>(keys)) {}

  /// The queries of the next calls of add().
  void set_queries(RowRange queries) {
    m_queries = queries;
    m_A_blocks.set(m_x.A.middleRows(queries.begin, queries.size()));
    m_G_blocks.set(m_G.middleRows(queries.begin, queries.size()));
  }

  /// Adds the share of these queries and some keys to out.dA (n_q,r), out.dB (n_k,r) and out.dU (n_k,p), and calls
  /// add_dc(PairRow) for each query and run of keys.
  void add(RowRange of, GradientRefs<T>& out, AddDc add_dc) {
    for (Index j0 = of.begin; j0 < of.end; j0 += keys) add_run(j0, std::min(keys, of.end - j0), out, add_dc);
  }

 private:
  void add_run(Index j0, Index cols, GradientRefs<T>& out, AddDc add_dc);

  // out (cols,q) += S^T x, for x (queries,q)
  void add_transposed_product(const T* S, const MatrixView<T>& x, MatrixRef<T> out);

  const Factors<T>& m_x;
  const TileWeights<T>& m_weights;
  const MatrixView<T>& m_G;
  RowBlocks<T> m_A_blocks, m_G_blocks;
  Transposed<T> m_Bt, m_Ut;
  RightRows<T> m_B;
  WeightBlock<T> m_c;
  T *m_S, *m_P;  // (rows,keys)
  T* m_sums;     // (keys)
  RowRange m_queries{};
};

// not inline, so that both can be compiled once (implementation.hpp)
template <Real T>
void BackwardTile<T>::add_run(Index j0, Index cols, GradientRefs<T>& out, AddDc add_dc) {
  // enough packs for whole blocks of keys, which add_transposed_product() reads
  const Index packs = packs_for<T>((cols + Block<T>::rows - 1) / Block<T>::rows * Block<T>::rows);
  m_Bt.set(m_x.B.middleRows(j0, cols), packs);
  m_Ut.set(m_x.U.middleRows(j0, cols), packs);
  m_B.set(m_x.B.middleRows(j0, cols));
  for (Index i = 0; i < m_queries.size(); i += Block<T>::rows) {
    const Index block = std::min(Block<T>::rows, m_queries.size() - i), i0 = m_queries.begin + i;
    T *S = m_S + i * keys, *P = m_P + i * keys;
    multiply_block(m_x.A.cols(), packs, m_A_blocks.block(i), m_Bt.factor(),
                   [=](Index k, Index j, const Pack<T>& s) { s.store(S + k * keys + j); });  // (block,cols)
    multiply_block(m_G.cols(), packs, m_G_blocks.block(i), m_Ut.factor(),
                   [=](Index k, Index j, const Pack<T>& p) { p.store(P + k * keys + j); });  // (block,cols)
    const PairBlock pairs{i0, block, j0, cols, packs};
    m_weights.set(pairs, m_c);
    m_weights.replace_scores(pairs, S, keys, m_c);
    for (Index k = 0; k < block; ++k) add_dc(PairRow<T>{i0 + k, j0, cols, S + k * keys, P + k * keys, m_c.row(k)});
    for (Index k = 0; k < Block<T>::rows; ++k) {
      const T* c = m_c.row(k);
      for (T* x : {S + k * keys, P + k * keys})
        for (Index j = 0; j < packs * Pack<T>::size; j += Pack<T>::size)
          weighted(Pack<T>::load(x + j), Pack<T>::load(c + j)).store(x + j);
    }
    m_B.add_product(LeftFactor<T, Step<keys>, Step<1>>{P, {}, {}}, block, out.dA.data() + i0 * out.dA.outerStride(),
                    out.dA.outerStride());  // (block,r)
    m_weights.multiply_by_factors(pairs, P, keys);
  }
  add_transposed_product(m_P, m_x.A.middleRows(m_queries.begin, m_queries.size()),
                         out.dB.middleRows(j0, cols));  // (cols,r)
  add_transposed_product(m_S, m_G.middleRows(m_queries.begin, m_queries.size()),
                         out.dU.middleRows(j0, cols));  // (cols,p)
}

template <Real T>
void BackwardTile<T>::add_transposed_product(const T* S, const MatrixView<T>& x, MatrixRef<T> out) {
  const Index packs = x.cols() / Pack<T>::size, cols = out.rows(), stride = out.outerStride();
  for (Index j = 0; j < cols; j += Block<T>::rows) {
    T* to = out.data() + j * stride;
    multiply_block(x.rows(), packs, LeftFactor<T, Step<1>, Step<keys>>{S + j, {}, {}},
                   RightFactor<T>::in_place(x.data(), x.outerStride()), [=](Index k, Index q, const Pack<T>& y) {
                     T* at = to + k * stride + q;
                     if (k < cols - j) (Pack<T>::load(at) + y).store(at);
                   });
  }
  for (Index q = packs * Pack<T>::size; q < x.cols(); ++q) {  // the columns after the whole packs
    T* sums = m_sums;
    std::fill_n(sums, cols, T(0));
    for (Index i = 0; i < x.rows(); ++i) {
      const T each = x(i, q);
      for (Index j = 0; j < cols; ++j) sums[j] += each * S[i * keys + j];
    }
    for (Index j = 0; j < cols; ++j) out(j, q) += sums[j];
  }
}

}  // namespace nprf::toeplitz
