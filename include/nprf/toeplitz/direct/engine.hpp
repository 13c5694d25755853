// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <utility>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/direct/backward_tile.hpp"
#include "nprf/toeplitz/direct/forward_tile.hpp"
#include "nprf/toeplitz/gradients.hpp"

namespace nprf::toeplitz {

/// Y = ((A B^T) o C) U by tiles of the quadratic matrix: exact to rounding for every bias, and fastest for short n.
///
/// Time O(n_q n_k (r + p)), tiles outside the support of c skipped; workspace O(n_q + n_k + r + p). Threads take rows
/// of tiles.
template <Real T>
class DirectEngine {
 public:
  /// For queries in slots 0..n_q-1 and keys in slots 0..n_k-1; its table lies in the team's workspace.
  DirectEngine(LagWeightsView<T> lags, const ProductShape& span, const Team& team) : m_support(lags.support()) {
    const Index size = span.n_q + span.n_k - 1, first = -(span.n_q - 1);
    T* c = team.workspace().take<T>(size);
    for (Index k = 0; k < size; ++k) c[k] = lags[first + k];
    m_c = {first, c, size};
  }

  /// Y (n_q,p) = ((A B^T) o C) U; sums (n_q), unless it is null, are those for values of 1.
  void contract(const ProductFactors<T>& x, MatrixRef<T> Y, const Team& team, T* sums = nullptr) const {
    using Tile = QueryTile<T>;
    team.run_tiles(x.queries.count, Tile::rows, [&](Index i0, Index rows, Workspace& scratch) {
      auto y = Y.middleRows(i0, rows);  // (rows,p)
      T* tile_sums = sums ? sums + i0 : nullptr;
      y.setZero();
      if (sums) std::fill_n(tile_sums, rows, T(0));
      Tile tile(x, m_c, i0, rows, scratch);
      const auto [begin, end] = keys_seen(x, i0, rows, 0, x.keys.count);
      add_in_chunks<T>(begin, begin, end, y, tile_sums, scratch, [&](Index from, Index to, MatrixRef<T> more, T* ones) {
        for (Index j0 = from; j0 < to; j0 += Tile::keys) tile.add(j0, std::min(Tile::keys, to - j0), more, ones);
      });
    });
  }

  /// How many of n_k keys are added up in turn at most, each rounding being one of all before.
  Index keys_in_turn(Index n_k) const { return nprf::keys_in_turn(n_k); }

  /// The gradients for G (n_q,p) = dL/dY.
  void gradients(const ProductFactors<T>& x, const MatrixView<T>& G, GradientRefs<T> out, const Team& team) const {
    using Tile = GradientTile<T>;
    static_assert(Tile::rows == Tile::keys);
    out.set_zero();
    const Index n_q = x.queries.count, n_k = x.keys.count;
    const Index tiles = (std::max(n_q, n_k) + Tile::rows - 1) / Tile::rows;
    const Index blocks = std::clamp<Index>(tiles, 1, most_blocks);
    const auto edge = [&](Index block) { return tiles * block / blocks * Tile::rows; };
    const Workspace::Scope scope(team.workspace());
    auto dc = team.workspace().matrix<T>(blocks, m_c.size);  // the share of each block of queries
    dc.setZero();
    team.run_pairs(blocks, [&](Index block, Index key_block, Workspace& scratch) {
      Tile tile(x, G, m_c, scratch);
      const Index i_end = std::min(edge(block + 1), n_q), j_end = std::min(edge(key_block + 1), n_k);
      for (Index i0 = edge(block); i0 < i_end; i0 += Tile::rows) {
        const Index rows = std::min(Tile::rows, i_end - i0);
        tile.set_queries(i0, rows);
        const auto [begin, end] = keys_seen(x, i0, rows, edge(key_block), j_end);
        for (Index j0 = begin; j0 < end; j0 += Tile::keys)
          tile.add(j0, std::min(Tile::keys, end - j0), out, AddDiagonals<T>{x, &dc(block, 0), m_c.first});
      }
    });
    for (Index block = 0; block < blocks; ++block) out.dc += dc.row(block).transpose();
  }

 private:
  static constexpr Index most_blocks = 8;

  // those of the keys j_begin..j_end-1 that the support of c touches, from the first to the one after the last
  std::pair<Index, Index> keys_seen(const ProductFactors<T>& x, Index i0, Index rows, Index j_begin,
                                    Index j_end) const {
    return {std::max(x.keys.below(x.queries[i0] + m_support.first), j_begin),
            std::min(x.keys.below(x.queries[i0 + rows - 1] + m_support.last + 1), j_end)};
  }

  LagRange m_support;
  LagWeightsView<T> m_c;  // of every lag that the slots reach
};

}  // namespace nprf::toeplitz
