// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/direct/backward_tile.hpp"
#include "nprf/toeplitz/direct/forward_tile.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/gradients.hpp"

namespace nprf::toeplitz {

/// Y = ((A B^T) o C) U and its gradients for a tile of queries and a run of keys, tile by tile of the quadratic matrix:
/// exact to rounding for every bias. O(rows keys (r + p)); scratch for one tile, for the gradients two.
template <Real T>
class LagTiles {
 public:
  /// For queries in slots 0..n_q-1 and keys in slots 0..n_k-1; its table lies in the workspace.
  LagTiles(LagWeightsView<T> lags, const ProductShape& span, Workspace& workspace)
      : m_first(-(span.n_q - 1)), m_size(span.n_q + span.n_k - 1) {
    T* c = workspace.take<T>(m_size);
    for (Index k = 0; k < m_size; ++k) c[k] = lags[m_first + k];
    m_c = c;
  }

  /// All lags that there can be.
  LagRange lags() const { return {m_first, m_first + m_size - 1}; }

  /// y (rows,p) += ((A_I B_J^T) o C) U_J  for the queries i0, i0 + 1, ... and the keys j_begin..j_end-1; sums (rows),
  /// unless it is null, the same for values of 1.
  void add(const Factors<T>& x, Index i0, Index j_begin, Index j_end, MatrixRef<T> y, Workspace& scratch,
           T* sums = nullptr) const {
    using Tile = ForwardTile<T>;
    if (j_begin >= j_end) return;
    const Workspace::Scope scope(scratch);
    Tile tile(x, weights(), i0, y.rows(), scratch);
    add_in_chunks<T>(j_begin, j_begin, j_end, y, sums, scratch, [&](Index from, Index to, MatrixRef<T> more, T* ones) {
      for (Index j0 = from; j0 < to; j0 += Tile::keys) tile.add(j0, std::min(Tile::keys, to - j0), more, ones);
    });
  }

  /// Adds what these tokens give, at most BackwardTile<T>::rows queries, to out.dA (n_q,r), out.dB (n_k,r) and out.dU
  /// (n_k,p), and, unless it is null, to dc, whose first lag is dc_first.
  void add_gradients(const Factors<T>& x, const MatrixView<T>& G, Index i0, Index rows, Index j_begin, Index j_end,
                     GradientRefs<T>& out, T* dc, Index dc_first, Workspace& scratch) const {
    using Tile = BackwardTile<T>;
    if (j_begin >= j_end) return;
    const Workspace::Scope scope(scratch);
    Tile tile(x, G, weights(), scratch);
    tile.set_queries(i0, rows);
    for (Index j0 = j_begin; j0 < j_end; j0 += Tile::keys)
      tile.add(j0, std::min(Tile::keys, j_end - j0), out, AddDiagonals<T>{x, dc, dc_first});
  }

 private:
  LagWeightsView<T> weights() const { return {m_first, m_c, m_size}; }

  Index m_first, m_size;
  const T* m_c = nullptr;  // (m_size)  c[l] at l - m_first
};

}  // namespace nprf::toeplitz
