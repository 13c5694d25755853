// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>
#include <utility>

#include "nprf/core/long_sums.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/direct/backward_tile.hpp"
#include "nprf/toeplitz/direct/forward_tile.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/gradients.hpp"

namespace nprf::toeplitz {

/// The weights C of a tiled product:
///
///     block_weights(run, scratch)    the BlockWeights of a tile, for runs of at most `run` keys
///     keys(i0, rows, run)            the keys of the tile of queries i0..i0+rows-1: all that have non-zero weights.
///                                    The tile reads them in runs of `run` keys
///     chunk_origin(begin)            where the chunks (long_sums.hpp) of a sum over keys begin, begin + 1, ... begin
template <class W, class T>
concept TileWeights = requires(const W& weights, Index i, Workspace& scratch) {
  { weights.block_weights(i, scratch) } -> BlockWeights<T>;
  { weights.keys(i, i, i) } -> std::same_as<RowRange>;
  { weights.chunk_origin(i) } -> std::same_as<Index>;
};

/// Y = ((A B^T) o C) U and its gradients, by tiles of the n_q x n_k matrix, for any weights C. Every row is rounded
/// relative to its own terms. Time O(n_q n_k (r + p)) for the keys that `Weights` returns; scratch memory of one tile a
/// thread.
template <Real T, TileWeights<T> Weights>
class TiledProduct {
 public:
  /// Refers to both.
  TiledProduct(const Factors<T>& x, const Weights& weights) : m_x(x), m_weights(weights) {}

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
    Forward tile(m_x, m_weights.block_weights(Forward::keys, scratch), {i0, i0 + y.rows()}, scratch);
    add_in_chunks<T>(m_weights.chunk_origin(keys.begin), keys.begin, keys.end, y, sums, scratch,
                     [&](Index begin, Index end, MatrixRef<T> more, T* ones) {
                       tile.add({begin, end}, more, ones);
                     });
  }

  /// Adds the gradients for G (n_q,p) = dL/dY to out, except dc. add_dc(pairs, share) adds what a row of pairs
  /// (PairRow) contributes to the gradient of the weights to a share (size), which is zero at first. Returns the shares
  /// of the blocks of queries (blocks,size), in the team's workspace. Threads share out pairs of blocks of queries and
  /// keys.
  template <class AddDc>
  MatrixMap<T> add_gradients(const MatrixView<T>& G, GradientRefs<T>& out, Index size, const Team& team,
                             AddDc&& add_dc) const {
    static_assert(Backward::rows == Backward::keys);
    const Index n_q = m_x.A.rows(), n_k = m_x.B.rows();
    const Index tiles = (std::max(n_q, n_k) + Backward::rows - 1) / Backward::rows;
    const Index blocks = std::clamp<Index>(tiles, 1, most_blocks);
    const auto edge = [&](Index block) { return tiles * block / blocks * Backward::rows; };
    auto shares = team.workspace().template matrix<T>(blocks, size);
    shares.setZero();
    team.run_pairs(blocks, [&](Index block, Index key_block, Workspace& scratch) {
      Backward tile(m_x, G, m_weights.block_weights(Backward::keys, scratch), scratch);
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
  using WeightsOfBlock = decltype(std::declval<const Weights&>().block_weights(Index{}, std::declval<Workspace&>()));
  using Forward = ForwardTile<T, WeightsOfBlock>;
  using Backward = BackwardTile<T, WeightsOfBlock>;
  static constexpr Index most_blocks = 8;

  const Factors<T>& m_x;
  const Weights& m_weights;
};

}  // namespace nprf::toeplitz
