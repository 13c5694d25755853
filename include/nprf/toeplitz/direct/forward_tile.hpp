// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/block_product.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/direct/tile_weights.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf::toeplitz {

/// Y = ((A B^T) o C) U for the queries of one tile. The scores of a block of queries and a run of keys stay in the
/// first-level cache.
template <Real T>
class ForwardTile {
 public:
  /// The largest number of queries, which share a copy of B^T, and of keys in a run.
  static constexpr Index rows = 22 * Block<T>::rows, keys = run_keys;
  static_assert(keys % Pack<T>::size == 0);

  /// For these queries.
  ForwardTile(const Factors<T>& x, const TileWeights<T>& weights, RowRange queries, Workspace& scratch)
      : m_x(x),
        m_weights(weights),
        m_queries(queries),
        m_A(x.A.cols(), scratch),
        m_Bt(x.A.cols(), keys, scratch),
        m_U(x.U.cols(), keys, scratch),
        m_c(keys, scratch),
        m_S(scratch.take<T>(Block<T>::rows * keys)) {
    m_A.set(x.A.middleRows(queries.begin, queries.size()));
  }

  /// Y (queries,p) += the terms of some keys; sums (queries) likewise for values of 1, unless it is null.
  void add(RowRange of, MatrixRef<T> Y, T* sums) {
    for (Index j0 = of.begin; j0 < of.end; j0 += keys) add_run(j0, std::min(keys, of.end - j0), Y, sums);
  }

 private:
  void add_run(Index j0, Index cols, MatrixRef<T>& Y, T* sums);

  // whether the block can be skipped, as one above the diagonal of causal attention
  bool all_zero(Index packs) const {
    for (Index k = 0; k < Block<T>::rows; ++k)
      if (std::any_of(m_c.row(k), m_c.row(k) + packs * Pack<T>::size, [](T c) { return c != T(0); })) return false;
    return true;
  }

  static T row_sum(const T* row, Index packs) {
    Pack<T> sum = Pack<T>::all(0);
    for (Index k = 0; k < packs; ++k) sum = sum + Pack<T>::load(row + k * Pack<T>::size);
    return sum.sum();
  }

  const Factors<T>& m_x;
  const TileWeights<T>& m_weights;
  RowRange m_queries;
  RowBlocks<T> m_A;
  Transposed<T> m_Bt;
  RightRows<T> m_U;
  WeightBlock<T> m_c;
  T* m_S;  // (block,keys)
};

// not inline, so that it can be compiled once (implementation.hpp)
template <Real T>
void ForwardTile<T>::add_run(Index j0, Index cols, MatrixRef<T>& Y, T* sums) {
  const Index packs = packs_for<T>(cols), r = m_x.A.cols();
  m_Bt.set(m_x.B.middleRows(j0, cols), packs);
  m_U.set(m_x.U.middleRows(j0, cols));
  for (Index i = 0; i < m_queries.size(); i += Block<T>::rows) {
    const Index block = std::min(Block<T>::rows, m_queries.size() - i);
    m_weights.set({m_queries.begin + i, block, j0, cols, packs}, m_c);
    if (all_zero(packs)) continue;
    multiply_block(r, packs, m_A.block(i), m_Bt.factor(), [&](Index k, Index j, const Pack<T>& s) {
      weighted(s, Pack<T>::load(m_c.row(k) + j)).store(m_S + k * keys + j);  // S = (A B^T) o C  (block,cols)
    });
    m_U.add_product(LeftFactor<T, Step<keys>, Step<1>>{m_S, {}, {}}, block, Y.data() + i * Y.outerStride(),
                    Y.outerStride());  // (block,p)
    for (Index k = 0; sums && k < block; ++k) sums[i + k] += row_sum(m_S + k * keys, packs);
  }
}

}  // namespace nprf::toeplitz
