// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/function_ref.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/direct/backward_tile.hpp"
#include "nprf/toeplitz/direct/forward_tile.hpp"
#include "nprf/toeplitz/direct/tile_weights.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/gradients.hpp"

namespace nprf::toeplitz {

/// Y = ((A B^T) o C) U and its gradients, by tiles of the n_q x n_k matrix, for any weights C. Every row is rounded
/// relative to its own terms. Time O(n_q n_k (r + p)) for the keys that the weights return; scratch memory of one tile
/// a thread.
template <Real T>
class TiledProduct {
 public:
  TiledProduct(const Factors<T>& x, const TileWeights<T>& weights) : m_x(x), m_weights(weights) {}

  /// Y (n_q,p); sums (n_q), unless it is null, the same for a column of ones. Threads share out the tiles of queries.
  void contract(MatrixRef<T> Y, const Team& team, T* sums) const {
    team.run_tiles(m_x.A.rows(), Forward::rows, [&](Index i0, Index rows, Workspace& scratch) {
      auto y = Y.middleRows(i0, rows);  // (rows,p)
      T* tile_sums = sums ? sums + i0 : nullptr;
      y.setZero();
      if (sums) std::fill_n(tile_sums, rows, T(0));
      add(i0, y, tile_sums, scratch);
    });
  }

  /// The rows of one tile: y (rows,p) += that of queries i0..i0+rows-1, and sums (rows) likewise, unless it is null.
  void add(Index i0, MatrixRef<T> y, T* sums, Workspace& scratch) const {
    const RowRange keys = m_weights.keys(i0, y.rows(), Forward::keys);
    if (keys.begin >= keys.end) return;
    const Workspace::Scope scope(scratch);
    Forward tile(m_x, m_weights, {i0, i0 + y.rows()}, scratch);
    add_in_chunks<T>(m_weights.chunk_origin(keys.begin), keys.begin, keys.end, y, sums, scratch,
                     [&](Index begin, Index end, MatrixRef<T> more, T* ones) {
                       tile.add({begin, end}, more, ones);
                     });
  }

  /// Adds the gradients for G (n_q,p) = dL/dY to out, except dc. add_dc(pairs, share) adds what a row of pairs
  /// (PairRow) contributes to the gradient of the weights to a share (size), which is zero at first. Returns the shares
  /// of the blocks of queries (blocks,size). Threads share out pairs of blocks of queries and keys.
  MatrixMap<T> add_gradients(const MatrixView<T>& G, GradientRefs<T>& out, Index size, const Team& team,
                             FunctionRef<void(const PairRow<T>&, T*)> add_dc) const {
    static_assert(Backward::rows == Backward::keys);
    const Index n_q = m_x.A.rows(), n_k = m_x.B.rows();
    const Index tiles = (std::max(n_q, n_k) + Backward::rows - 1) / Backward::rows;
    const Index blocks = std::clamp<Index>(tiles, 1, most_blocks);
    const auto edge = [&](Index block) { return tiles * block / blocks * Backward::rows; };
    auto shares = team.workspace().template matrix<T>(blocks, size);
    shares.setZero();
    team.run_pairs(blocks, [&](Index block, Index key_block, Workspace& scratch) {
      Backward tile(m_x, G, m_weights, scratch);
      const auto add_share = [&, share = shares.data() + block * size](const PairRow<T>& pairs) {
        add_dc(pairs, share);
      };
      const Index i_end = std::min(edge(block + 1), n_q), j_begin = edge(key_block),
                  j_end = std::min(edge(key_block + 1), n_k);
      for (Index i0 = edge(block); i0 < i_end; i0 += Backward::rows) {
        const Index rows = std::min(Backward::rows, i_end - i0);
        const auto [begin, end] = m_weights.keys(i0, rows, Backward::keys);
        tile.set_queries({i0, i0 + rows});
        tile.add({std::max(begin, j_begin), std::min(end, j_end)}, out, add_share);
      }
    });
    return shares;
  }

 private:
  using Forward = ForwardTile<T>;
  using Backward = BackwardTile<T>;
  static constexpr Index most_blocks = 8;

  const Factors<T>& m_x;
  const TileWeights<T>& m_weights;
};

}  // namespace nprf::toeplitz
