// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/direct/backward_tile.hpp"
#include "nprf/toeplitz/direct/forward_tile.hpp"
#include "nprf/toeplitz/engine.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/gradients.hpp"

namespace nprf::toeplitz {

/// Y = ((A B^T) o C) U by tiles of the quadratic matrix: exact to rounding for every bias, and fastest for short n.
///
/// Time O(n_q n_k (r + p)), tiles outside the support of c skipped; workspace O(n_q + n_k + r + p). Threads take rows
/// of tiles.
template <Real T>
class DirectEngine {
 public:
  static constexpr Engine names[] = {Engine::direct};
  static constexpr Rounding rounding = Rounding::per_row;
  static constexpr bool accepts_key_log_scales = false, is_automatic = true;
  static Engine name_for(const LagWeightsView<T>&) { return names[0]; }

  /// pairs (r + p + weight) of the lags in the support of c and 48 beyond; where slots are empty, a weight costs more,
  /// since it is looked up; and so does a pair whose weight is below the smallest normal number.
  static double cost(const CostInputs<T>& x) {
    constexpr Index beyond = 48;
    constexpr double looked_up_weight = 40, subnormal_pair = 256;
    const LagRange support = x.weights.support();
    if (x.tokens.empty() || support.size() == 0) return 0;
    const auto pairs = [&](const LagRange& lags) { return pairs_in(lags, x.span.n_q, x.span.n_k); };
    double subnormal = 0;
    for (Index lag = support.first; lag <= support.last; ++lag)
      if (is_subnormal(x.weights[lag])) subnormal += pairs({lag, lag});
    // those of all slots that have a query and a key
    const double filled = static_cast<double>(x.tokens.n_q) * static_cast<double>(x.tokens.n_k) /
                          pairs({-(x.span.n_q - 1), x.span.n_k - 1});
    const double r = static_cast<double>(x.tokens.r), p = static_cast<double>(x.tokens.p);
    const bool has_gaps = x.tokens.n_q + x.tokens.n_k < x.span.n_q + x.span.n_k;
    return filled * (pairs({support.first - beyond, support.last + beyond}) *
                         (r + p + (has_gaps ? looked_up_weight : weight_cost)) +
                     subnormal * p * subnormal_pair);
  }
  /// The same with a weight for every lag, without gaps.
  static double dense_cost(const ProductShape& x) {
    return static_cast<double>(x.n_q) * static_cast<double>(x.n_k) * (static_cast<double>(x.r + x.p) + weight_cost);
  }

  /// For queries in slots 0..n_q-1 and keys in slots 0..n_k-1; its table lies in the team's workspace.
  DirectEngine(LagWeightsView<T> lags, const ProductShape& span, const Team& team) : m_support(lags.support()) {
    const Index size = span.n_q + span.n_k - 1, first = -(span.n_q - 1);
    T* c = team.workspace().take<T>(size);
    for (Index k = 0; k < size; ++k) c[k] = lags[first + k];
    m_c = {first, c, size};
  }

  /// Y (n_q,p) = ((A B^T) o C) U; sums (n_q), unless it is null, are those for values of 1.
  void contract(const Factors<T>& x, MatrixRef<T> Y, const Team& team, T* sums = nullptr) const {
    using Tile = ForwardTile<T>;
    team.run_tiles(x.queries.slots.count, Tile::rows, [&](Index i0, Index rows, Workspace& scratch) {
      auto y = Y.middleRows(i0, rows);  // (rows,p)
      T* tile_sums = sums ? sums + i0 : nullptr;
      y.setZero();
      if (sums) std::fill_n(tile_sums, rows, T(0));
      Tile tile(x, m_c, i0, rows, scratch);
      const auto [begin, end] = keys_seen(x, i0, rows, 0, x.keys.slots.count);
      add_in_chunks<T>(begin, begin, end, y, tile_sums, scratch, [&](Index from, Index to, MatrixRef<T> more, T* ones) {
        for (Index j0 = from; j0 < to; j0 += Tile::keys) tile.add(j0, std::min(Tile::keys, to - j0), more, ones);
      });
    });
  }

  /// How many of n_k keys are added up in turn at most, each rounding being one of all before.
  Index longest_plain_sum(Index n_k) const { return nprf::longest_plain_sum(n_k); }

  /// The gradients for G (n_q,p) = dL/dY; out.dc may be empty.
  void gradients(const Factors<T>& x, const MatrixView<T>& G, GradientRefs<T> out, const GradientSizes<T>&,
                 const Team& team) const {
    using Tile = BackwardTile<T>;
    static_assert(Tile::rows == Tile::keys);
    out.set_zero();
    const Index n_q = x.queries.slots.count, n_k = x.keys.slots.count;
    const Index tiles = (std::max(n_q, n_k) + Tile::rows - 1) / Tile::rows;
    const Index blocks = std::clamp<Index>(tiles, 1, most_blocks);
    const auto edge = [&](Index block) { return tiles * block / blocks * Tile::rows; };
    const Workspace::Scope scope(team.workspace());
    const bool wants_dc = out.dc.size() > 0;
    auto dc = team.workspace().matrix<T>(wants_dc ? blocks : 0, m_c.size);  // the share of each block of queries
    dc.setZero();
    team.run_pairs(blocks, [&](Index block, Index key_block, Workspace& scratch) {
      Tile tile(x, G, m_c, scratch);
      const Index i_end = std::min(edge(block + 1), n_q), j_end = std::min(edge(key_block + 1), n_k);
      for (Index i0 = edge(block); i0 < i_end; i0 += Tile::rows) {
        const Index rows = std::min(Tile::rows, i_end - i0);
        tile.set_queries(i0, rows);
        const auto [begin, end] = keys_seen(x, i0, rows, edge(key_block), j_end);
        for (Index j0 = begin; j0 < end; j0 += Tile::keys)
          tile.add(j0, std::min(Tile::keys, end - j0), out,
                   AddDiagonals<T>{x, wants_dc ? &dc(block, 0) : nullptr, m_c.first});
      }
    });
    for (Index block = 0; block < dc.rows(); ++block) out.dc += dc.row(block).transpose();
  }

 private:
  static constexpr Index most_blocks = 8;

  static bool is_subnormal(T c) { return c != T(0) && std::abs(c) < std::numeric_limits<T>::min(); }

  // those of the keys j_begin..j_end-1 that the support of c touches, from the first to the one after the last
  std::pair<Index, Index> keys_seen(const Factors<T>& x, Index i0, Index rows, Index j_begin, Index j_end) const {
    return {std::max(x.keys.slots.below(x.queries.slots[i0] + m_support.first), j_begin),
            std::min(x.keys.slots.below(x.queries.slots[i0 + rows - 1] + m_support.last + 1), j_end)};
  }

  LagRange m_support;
  LagWeightsView<T> m_c;  // of every lag that the slots reach
};

}  // namespace nprf::toeplitz
