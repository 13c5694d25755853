// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/block_product.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/direct/tiled_product.hpp"
#include "nprf/toeplitz/factors.hpp"

/// The weights C[i,j] = c[t_j - s_i] of queries in slots s_i and keys in slots t_j, as TiledProduct reads them.
namespace nprf::toeplitz {

/// Returns a copy of c in the workspace: a table of all lags -(n_q-1)..n_k-1 that slots can reach, without `tails`.
template <Real T>
LagWeightsView<T> tabulate(LagWeightsView<T> c, const ProductShape& span, Workspace& workspace) {
  const Index size = span.n_q + span.n_k - 1, first = -(span.n_q - 1);
  T* table = workspace.take<T>(size);
  for (Index k = 0; k < size; ++k) table[k] = c[first + k];
  return {first, table, size};
}

/// The weights c of the lags between slots. A tile whose queries are in slots s..s' has the keys in slots
/// s + range.first .. s' + range.last. It leaves out the other keys: their weights are 0, or are in a tail (banded/).
template <Real T>
class ToeplitzWeights final : public TileWeights<T> {
 public:
  /// c must have all lags between the queries and the keys.
  ToeplitzWeights(const Factors<T>& x, LagWeightsView<T> c, LagRange range) : m_x(x), m_c(c), m_range(range) {}

  /// If no slot is empty and the keys fill whole packs, the rows refer to the table of c. Otherwise they are copies.
  void set(const PairBlock& of, WeightBlock<T>& c) const override {
    const Index width = of.packs * Pack<T>::size;
    for (Index k = 0; k < Block<T>::rows; ++k) {
      const Index first = -m_c.first - m_x.queries.slots[of.i + std::min(k, of.rows - 1)];  // in m_c.values, for slot 0
      if (!m_x.keys.slots.at && of.count == width) {
        c.refer(k, m_c.values + (first + m_x.keys.slots.first + of.j0));
        continue;
      }
      T* copy = c.own_row(k);
      for (Index j = 0; j < of.count; ++j) copy[j] = m_c.values[first + m_x.keys.slots[of.j0 + j]];
      std::fill(copy + of.count, copy + width, T(0));
    }
  }

  RowRange keys(Index i0, Index rows, Index) const override {
    const Index begin = m_x.keys.slots.below(m_x.queries.slots[i0] + m_range.first);
    return {begin, std::max(begin, m_x.keys.slots.below(m_x.queries.slots[i0 + rows - 1] + m_range.last + 1))};
  }

  /// Adds what a query and a run of keys contribute to the gradient of c[lag] to dc[lag - first].
  void add_gradient(const PairRow<T>& pairs, T* dc, Index first) const {
    const Index at = -first - m_x.queries.slots[pairs.i];  // in dc, for slot 0
    if (m_x.keys.slots.at) {
      for (Index j = 0; j < pairs.count; ++j) dc[at + m_x.keys.slots.at[pairs.j0 + j]] += pairs.S[j] * pairs.P[j];
    } else {  // contiguous, so that compilers vectorise it
      T* sum = dc + (at + m_x.keys.slots.first + pairs.j0);
      for (Index j = 0; j < pairs.count; ++j) sum[j] += pairs.S[j] * pairs.P[j];
    }
  }

 private:
  const Factors<T>& m_x;
  LagWeightsView<T> m_c;
  LagRange m_range;
};

}  // namespace nprf::toeplitz
