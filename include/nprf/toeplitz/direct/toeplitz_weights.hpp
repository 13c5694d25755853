// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/block_product.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/direct/backward_tile.hpp"
#include "nprf/toeplitz/factors.hpp"

/// The weights C[i,j] = c[t_j - s_i] of queries in slots s_i and keys in slots t_j, as TiledProduct reads them.
namespace nprf::toeplitz {

/// c of all lags -(n_q-1)..n_k-1 that slots can reach, without tails: a copy in the workspace.
template <Real T>
LagWeightsView<T> tabulate(LagWeightsView<T> c, const ProductShape& span, Workspace& workspace) {
  const Index size = span.n_q + span.n_k - 1, first = -(span.n_q - 1);
  T* table = workspace.take<T>(size);
  for (Index k = 0; k < size; ++k) table[k] = c[first + k];
  return {first, table, size};
}

/// The weights of a block of queries and a run of keys. If no slot is empty and the keys fill whole packs, they are
/// read in the table of c. Otherwise they are copied, with zeros after the last key.
template <Real T>
class ToeplitzBlockWeights {
 public:
  /// c must have all lags between the queries and the keys; `most` is the largest number of keys in a run, padded to
  /// whole packs.
  ToeplitzBlockWeights(const Factors<T>& x, LagWeightsView<T> c, Index most, Workspace& scratch)
      : m_x(x), m_c(c), m_most(most), m_copy(scratch.take<T>(Block<T>::rows * most)) {}

  /// For queries i..i+rows-1 and keys j0..j0+count-1.
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

  const T* row(Index k) const { return m_row[k]; }

 private:
  const Factors<T>& m_x;
  LagWeightsView<T> m_c;
  Index m_most;
  T* m_copy;
  const T* m_row[Block<T>::rows];
};

/// The weights c, as a TileWeights (tiled_product.hpp). A tile whose queries are in slots s..s' has the keys in slots
/// s + range.first .. s' + range.last. It leaves out the other keys: their weights are 0, or are in a tail (banded/).
template <Real T>
struct ToeplitzWeights {
  const Factors<T>& x;
  LagWeightsView<T> c;  // of all lags between the queries and the keys
  LagRange range;

  ToeplitzBlockWeights<T> block_weights(Index run, Workspace& scratch) const { return {x, c, run, scratch}; }

  RowRange keys(Index i0, Index rows, Index) const {
    const Index begin = x.keys.slots.below(x.queries.slots[i0] + range.first);
    return {begin, std::max(begin, x.keys.slots.below(x.queries.slots[i0 + rows - 1] + range.last + 1))};
  }

  Index chunk_origin(Index begin) const { return begin; }

  /// dc[lag - first] += the share of a query and a run of keys.
  void add_gradient(const PairRow<T>& pairs, T* dc, Index first) const {
    const Index at = -first - x.queries.slots[pairs.i];  // of the key in slot 0
    if (x.keys.slots.at) {
      for (Index j = 0; j < pairs.count; ++j) dc[at + x.keys.slots.at[pairs.j0 + j]] += pairs.S[j] * pairs.P[j];
    } else {  // contiguous, so that compilers vectorise it
      T* sum = dc + (at + x.keys.slots.first + pairs.j0);
      for (Index j = 0; j < pairs.count; ++j) sum[j] += pairs.S[j] * pairs.P[j];
    }
  }
};

}  // namespace nprf::toeplitz
