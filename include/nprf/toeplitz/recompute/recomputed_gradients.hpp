// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/direct/backward_tile.hpp"
#include "nprf/toeplitz/direct/forward_tile.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/gradients.hpp"
#include "nprf/toeplitz/recompute/pair_weights.hpp"

namespace nprf::toeplitz {

/// Gradients of single queries, keys and lags by their sums, whatever an engine made of them. Each is rounded relative
/// to its own sum alone.
template <Real T>
class RecomputedGradients {
 public:
  /// Refers to all of them.
  RecomputedGradients(const PairWeights<T>& weights, const Factors<T>& x, const MatrixView<T>& G, GradientRefs<T>& out,
                      const Team& team)
      : m_weights(weights), m_x(x), m_G(G), m_out(out), m_team(team) {}

  /// dA_i = sum_j w_ij (G_i.U_j) B_j of these queries. O(n_k (r + p)) each.
  void queries(std::span<const Index> numbers) const {
    const Workspace::Scope scope(m_team.workspace());
    const LagRange support = m_weights.support();
    const Slots &q = m_x.queries.slots, &k = m_x.keys.slots;
    const auto range = [&](Index i) {
      return std::pair(k.below(q[i] + support.first), k.below(q[i] + support.last + 1));
    };
    contract(TilePairWeights<T>::Rows::queries, numbers, m_G, m_x.U, m_x.B, range, m_out.dA);
  }

  /// dB_j = sum_i w_ij (G_i.U_j) A_i and dU_j = sum_i w_ij (A_i.B_j) G_i of these keys. O(n_q (r + p)) each.
  void keys(std::span<const Index> numbers) const {
    const Workspace::Scope scope(m_team.workspace());
    const LagRange support = m_weights.support();
    const Slots &q = m_x.queries.slots, &k = m_x.keys.slots;
    const auto range = [&](Index j) {
      return std::pair(q.below(k[j] - support.last), q.below(k[j] - support.first + 1));
    };
    contract(TilePairWeights<T>::Rows::keys, numbers, m_x.U, m_G, m_x.A, range, m_out.dB);
    contract(TilePairWeights<T>::Rows::keys, numbers, m_x.B, m_x.A, m_G, range, m_out.dU);
  }

  /// dc_l = sum over j - i = l of (A_i.B_j)(G_i.U_j) of these lags, the exponents counted; dc's first lag is `first`.
  /// O(r + p) a pair.
  void lags(std::span<const Index> numbers, Index first) const {
    m_team.run(static_cast<Index>(numbers.size()), [&](Index at, Workspace&) {
      const Index lag = numbers[static_cast<std::size_t>(at)];
      double sum = 0;
      for_each_pair(lag, [&](Index i, Index j) {
        sum += static_cast<double>(m_x.A.row(i).dot(m_x.B.row(j))) * static_cast<double>(m_G.row(i).dot(m_x.U.row(j))) *
               static_cast<double>(m_weights.factor(i, j));
      });
      m_out.dc[lag - first] = static_cast<T>(sum);
    });
  }

  /// All of them, as the direct engine does. O(n_q n_k (r + p)).
  void all(Index first) const {
    using Tile = BackwardTile<T, TilePairWeights<T>>;
    Workspace& workspace = m_team.workspace();
    const Workspace::Scope scope(workspace);
    const Index n_q = m_x.queries.slots.count, n_k = m_x.keys.slots.count, lags = m_out.dc.size();
    Index* numbers = workspace.template take<Index>(n_q);
    std::iota(numbers, numbers + n_q, Index{0});
    const std::span<const Index> each(numbers, static_cast<std::size_t>(n_q));
    const Index tiles = (std::max(n_q, n_k) + Tile::rows - 1) / Tile::rows, blocks = std::min(tiles, most_blocks);
    const auto edge = [&](Index block) { return tiles * block / blocks * Tile::rows; };
    auto db = workspace.template matrix<T>(blocks, lags);  // c dc, the share of each block of queries
    db.setZero();
    m_out.set_zero();
    const LagRange support = m_weights.support();
    m_team.run_pairs(blocks, [&](Index block, Index key_block, Workspace& scratch) {
      Tile tile(m_x, m_G, TilePairWeights<T>(TilePairWeights<T>::Rows::queries, m_weights, each, Tile::keys, scratch),
                scratch);
      const Index i_end = std::min(edge(block + 1), n_q), j_end = std::min(edge(key_block + 1), n_k);
      for (Index i0 = edge(block); i0 < i_end; i0 += Tile::rows) {
        const Index rows = std::min(Tile::rows, i_end - i0);
        tile.set_queries(i0, rows);
        const Index begin = std::max(m_x.keys.slots.below(m_x.queries.slots[i0] + support.first), edge(key_block)),
                    end = std::min(m_x.keys.slots.below(m_x.queries.slots[i0 + rows - 1] + support.last + 1), j_end);
        for (Index j0 = begin; j0 < end; j0 += Tile::keys)
          tile.add(j0, std::min(Tile::keys, end - j0), m_out,
                   [&](Index i, Index j, Index cols, const T* s, const T* p, const T* w) {
                     for (Index k = 0; lags > 0 && k < cols; ++k)
                       db(block, m_x.keys.slots[j + k] - m_x.queries.slots[i] - first) +=
                           w[k] == T(0) ? T(0) : s[k] * p[k] * w[k];
                   });
      }
    });
    for (Index l = 0; l < lags; ++l)
      if (const T c = m_weights.at_lag(first + l); c > T(0)) m_out.dc[l] = db.col(l).sum() / c;
  }

  /// use(i, j) for each query and key that stand this lag apart.
  template <class Use>
  void for_each_pair(Index lag, Use&& use) const {
    const Slots &q = m_x.queries.slots, &k = m_x.keys.slots;
    for (Index i = 0, j = k.below((q.count > 0 ? q[0] : 0) + lag); i < q.count && j < k.count; ++i) {
      while (j < k.count && k[j] < q[i] + lag) ++j;
      if (j < k.count && k[j] == q[i] + lag) use(i, j);
    }
  }

 private:
  static constexpr Index most_blocks = 8;

  // rows `numbers` of out = ((X Y^T) o W) Z, X (n,s), Y (m,s), Z (m,t); a row has columns in range(number) alone, which
  // rises with it
  template <class Range>
  void contract(typename TilePairWeights<T>::Rows rows, std::span<const Index> numbers, const MatrixView<T>& X,
                const MatrixView<T>& Y, const MatrixView<T>& Z, Range&& range, MatrixRef<T>& out) const {
    using Tile = ForwardTile<T, TilePairWeights<T>>;
    const Index count = static_cast<Index>(numbers.size());
    const Workspace::Scope scope(m_team.workspace());
    auto x = m_team.workspace().template matrix<T>(count, X.cols());
    auto all = m_team.workspace().template matrix<T>(count, Z.cols());
    for (Index k = 0; k < count; ++k) x.row(k) = X.row(numbers[static_cast<std::size_t>(k)]);
    const MatrixView<T> picked = x;
    const auto factors = Factors<T>::without_gaps(picked, Y, Z);
    m_team.run_tiles(count, Tile::rows, [&](Index k0, Index of, Workspace& scratch) {
      auto y = all.middleRows(k0, of);
      y.setZero();
      Tile tile(factors, TilePairWeights<T>(rows, m_weights, numbers, Tile::keys, scratch), k0, of, scratch);
      const Index begin = range(numbers[static_cast<std::size_t>(k0)]).first,
                  end = range(numbers[static_cast<std::size_t>(k0 + of - 1)]).second;
      for (Index j0 = begin; j0 < end; j0 += Tile::keys) tile.add(j0, std::min(Tile::keys, end - j0), y);
    });
    for (Index k = 0; k < count; ++k) out.row(numbers[static_cast<std::size_t>(k)]) = all.row(k);
  }

  const PairWeights<T>& m_weights;
  const Factors<T>& m_x;
  const MatrixView<T>& m_G;
  GradientRefs<T>& m_out;
  const Team& m_team;
};

}  // namespace nprf::toeplitz
