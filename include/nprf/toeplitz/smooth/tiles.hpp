// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/direct/tiled_product.hpp"
#include "nprf/toeplitz/direct/toeplitz_weights.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/smooth/chunk_rows.hpp"
#include "nprf/toeplitz/smooth/plan.hpp"

namespace nprf::toeplitz {

/// The blocks of C that are not smooth, by tiles. `c` has the weights of all lags between the slots.
template <Real T>
class RoughTiles {
 public:
  RoughTiles(const SmoothPlan<T>& plan, const Factors<T>& x, LagWeightsView<T> c)
      : m_plan(plan),
        m_x(x),
        m_c(c),
        m_weights(x, c, {c.first, c.last()}),
        m_queries(plan.terms(), x.queries.slots, x.A) {}

  /// Adds the terms of chunk I of the queries to its rows y (rows,p), and to `sums` (rows) unless it is null.
  void add(Index I, MatrixRef<T> y, T* sums, Workspace& scratch) const {
    const RowRange rows = m_queries.rows(I);
    ForwardTile<T> tile(m_x, m_weights, rows, scratch);
    for_each_run(I, [&](RowRange keys, bool is_diagonal) {
      // weights above the diagonal are often zeros, which a tile of a few keys skips
      const Index middle = is_diagonal ? m_x.keys.slots.below(I * smooth_chunk + smooth_chunk / 2) : keys.end;
      tile.add({keys.begin, std::min(middle, keys.end)}, y, sums);
      if (middle < keys.end) tile.add({middle, keys.end}, y, sums);
    });
  }

  /// Adds the gradients for G (n_q,p) to `out`; out.dc may be empty.
  void add_gradients(const MatrixView<T>& G, GradientRefs<T>& out, const Team& team) const {
    const Index chunks = m_plan.level(0).side(Axis::queries).chunks,
                all = std::max(chunks, m_plan.level(0).side(Axis::keys).chunks), blocks = std::clamp<Index>(all, 1, 8);
    const auto edge = [=](Index block) { return all * block / blocks; };
    auto dc = team.workspace().template matrix<T>(blocks, out.dc.size());
    dc.setZero();
    team.run_pairs(blocks, [&](Index block, Index key_block, Workspace& scratch) {
      BackwardTile<T> tile(m_x, G, m_weights, scratch);
      T* share = dc.data() + block * dc.cols();
      const auto add_dc = [&](const PairRow<T>& pairs) {
        if (dc.cols() > 0) m_weights.add_gradient(pairs, share, m_c.first);
      };
      const Index begin = m_x.keys.slots.below(edge(key_block) * smooth_chunk),
                  end = m_x.keys.slots.below(edge(key_block + 1) * smooth_chunk);
      for (Index I = edge(block); I < std::min(edge(block + 1), chunks); ++I) {
        const RowRange rows = m_queries.rows(I);
        if (rows.size() == 0) continue;
        bool is_set = false;
        for_each_run(I, [&](RowRange keys, bool) {
          keys = {std::max(keys.begin, begin), std::min(keys.end, end)};
          if (keys.size() <= 0) return;
          if (!is_set) tile.set_queries(rows);
          is_set = true;
          tile.add(keys, out, add_dc);
        });
      }
    });
    for (Index block = 0; block < blocks; ++block)
      for (Index k = 0; k < dc.cols(); ++k) out.dc[k] += dc(block, k);
  }

 private:
  // calls use(keys, is_diagonal) for each run of adjacent chunks of keys whose blocks with chunk I of the queries are
  // tiles; is_diagonal: chunk I is the last one of them
  template <class Use>
  void for_each_run(Index I, Use&& use) const {
    const auto tiles = m_plan.tiles();
    for (std::size_t k = 0, next; k < tiles.size(); k = next) {
      for (next = k + 1; next < tiles.size() && tiles[next] == tiles[next - 1] - 1;) ++next;
      const Index first = I - tiles[k], last = I - tiles[next - 1];
      use(RowRange{m_x.keys.slots.below(first * smooth_chunk), m_x.keys.slots.below((last + 1) * smooth_chunk)},
          last == I);
    }
  }

  const SmoothPlan<T>& m_plan;
  const Factors<T>& m_x;
  LagWeightsView<T> m_c;
  ToeplitzWeights<T> m_weights;
  ChunkRows<T> m_queries;
};

}  // namespace nprf::toeplitz
