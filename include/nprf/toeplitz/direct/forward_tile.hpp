// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>
#include <utility>

#include "nprf/core/block_product.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf::toeplitz {

/// The weights c[j-i] of a block of queries and a run of keys. Where no slot is empty and the keys fill whole packs
/// they are read in the table, else in a copy with zeros beside the last key.
template <Real T>
class BlockWeights {
 public:
  /// For runs of at most so many keys, the packs of zeros counted.
  BlockWeights(const Factors<T>& x, LagWeightsView<T> c, Index most, Workspace& scratch)
      : m_x(x), m_c(c), m_most(most), m_copy(scratch.take<T>(Block<T>::rows * most)) {}

  /// Of queries i..i+rows-1 and keys j0..j0+count-1.
  void set(Index i, Index rows, Index j0, Index count, Index packs) {
    const Index width = packs * Pack<T>::size;
    for (Index k = 0; k < Block<T>::rows; ++k) {
      const Index first = -m_c.first - m_x.queries.slots[i + std::min(k, rows - 1)];  // of the key in slot 0
      if (!m_x.keys.slots.at && count == width) {
        m_row[k] = m_c.values + (first + m_x.keys.slots.first + j0);
        continue;
      }
      T* copy = m_copy + k * m_most;
      for (Index j = 0; j < count; ++j) copy[j] = m_c.values[first + m_x.keys.slots[j0 + j]];
      std::fill(copy + count, copy + width, T(0));
      m_row[k] = copy;
    }
  }

  /// Of the k-th query and each key of the run.
  const T* row(Index k) const { return m_row[k]; }

 private:
  const Factors<T>& m_x;
  LagWeightsView<T> m_c;
  Index m_most;
  T* m_copy;
  const T* m_row[Block<T>::rows];
};

/// Y = ((A B^T) o C) U for a few queries, a run of keys at a time. The scores of a block of queries and a run of keys
/// never leave the first cache. The weights C are those of lags, or any that have set() and row() as BlockWeights.
template <Real T, class Weights = BlockWeights<T>>
class ForwardTile {
 public:
  /// Queries that share a copy of B^T, and keys in a run, at most.
  static constexpr Index rows = 22 * Block<T>::rows, keys = 64;
  static_assert(keys % Pack<T>::size == 0);

  /// For queries i0..i0+count-1, and weights of runs of so many keys.
  ForwardTile(const Factors<T>& x, Weights c, Index i0, Index count, Workspace& scratch)
      : m_x(x),
        m_i0(i0),
        m_count(count),
        m_A(x.A.cols(), scratch),
        m_Bt(x.A.cols(), keys, scratch),
        m_U(x.U.cols(), keys, scratch),
        m_c(std::move(c)),
        m_S(scratch.take<T>(Block<T>::rows * keys)) {
    m_A.set(x.A.middleRows(i0, count));
  }

  /// With weights that hold every lag between them and the keys to come.
  ForwardTile(const Factors<T>& x, LagWeightsView<T> c, Index i0, Index count, Workspace& scratch)
    requires std::same_as<Weights, BlockWeights<T>>
      : ForwardTile(x, Weights(x, c, keys, scratch), i0, count, scratch) {}

  /// Y (count,p) += what keys j0..j0+cols-1 give; and sums (count), unless it is null, what they give for values of 1.
  void add(Index j0, Index cols, MatrixRef<T> Y, T* sums = nullptr) {
    const Index packs = packs_for<T>(cols), r = m_x.A.cols();
    m_Bt.set(m_x.B.middleRows(j0, cols), packs);
    m_U.set(m_x.U.middleRows(j0, cols));
    for (Index i = 0; i < m_count; i += Block<T>::rows) {
      const Index block = std::min(Block<T>::rows, m_count - i);
      m_c.set(m_i0 + i, block, j0, cols, packs);
      if (all_zero(packs)) continue;
      multiply_block(r, packs, m_A.block(i), m_Bt.factor(), [&](Index k, Index j, const Pack<T>& s) {
        weighted(s, Pack<T>::load(m_c.row(k) + j)).store(m_S + k * keys + j);  // S = (A B^T) o C  (block,cols)
      });
      m_U.add_product(LeftFactor<T, Step<keys>, Step<1>>{m_S, {}, {}}, block, Y.data() + i * Y.outerStride(),
                      Y.outerStride());  // (block,p)
      for (Index k = 0; sums && k < block; ++k) sums[i + k] += row_sum(m_S + k * keys, packs);
    }
  }

 private:
  // as those of causal attention are above the diagonal
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
  Index m_i0, m_count;
  RowBlocks<T> m_A;
  Transposed<T> m_Bt;
  RightRows<T> m_U;
  Weights m_c;
  T* m_S;  // (6,keys)
};

}  // namespace nprf::toeplitz
