// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/direct/toeplitz_weights.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf::toeplitz {

enum class Side { before, after };

/// One tail of a table of weights, from the band outwards:
///
///     c[edge - k] = weight exp(k slope)   before the band,    c[edge + k] = weight exp(k slope)   after it,
///
/// for k = 0..lags-1, up to the farthest lag that slots can reach on this side. The tail is empty (lags == 0) if the
/// table has no tail up to that lag, or if its weights are zero or grow outwards.
template <Real T>
struct ExponentialTail {
  ExponentialTail(Side of, LagWeightsView<T> c, const ProductShape& span) : side(of) {
    const Index least = -(span.n_q - 1), most = span.n_k - 1;
    const bool is_before = side == Side::before;
    slope = is_before ? c.tails.slope_before : c.tails.slope_after;
    edge = is_before ? std::min(c.middle().first - 1, most) : std::max(c.middle().last + 1, least);
    const bool reaches = is_before ? c.tails.before > 0 && c.first <= least : c.tails.after > 0 && c.last() >= most;
    if (!reaches || !(slope <= 0) || c[edge] == T(0)) return;
    weight = c[edge];
    lags = std::max<Index>(is_before ? edge - least + 1 : most - edge + 1, 0);
  }

  /// Tabulates power(k) for small k, in the workspace.
  void tabulate(Workspace& workspace) {
    if (flat()) return;
    m_tabulated = std::min<Index>(lags, 1024);
    T* powers = workspace.take<T>(m_tabulated);
    for (Index k = 0; k < m_tabulated; ++k) powers[k] = static_cast<T>(std::exp(static_cast<double>(k) * slope));
    m_powers = powers;
  }

  bool flat() const { return slope == 0; }

  /// exp(k slope)
  T power(Index k) const {
    return k < m_tabulated ? m_powers[k] : static_cast<T>(std::exp(static_cast<double>(k) * slope));
  }

  Side side;
  Index edge = 0, lags = 0;
  double slope = 0;
  T weight = 0;

 private:
  Index m_tabulated = 0;
  const T* m_powers = nullptr;  // (m_tabulated)
};

/// The lags of non-zero weight that are in no tail.
template <Real T>
LagRange band_between(const ExponentialTail<T>& before, const ExponentialTail<T>& after, LagWeightsView<T> c) {
  LagRange band = c.support();
  if (before.lags > 0) band.first = before.edge + 1;
  if (after.lags > 0) band.last = after.edge - 1;
  return band;
}

/// Tiles of consecutive queries, and for each tile its keys in one tail: the keys whose lags are in the tail for all
/// queries of the tile. The pivot of a tile is the slot of its first query for the tail before the band, and of its
/// last query for the tail after it. With the pivot of the tile,
///
///     c[t - s] = weight exp(slope |s - pivot|) exp(slope |t - (pivot + edge)|)
///
/// for a query of the tile in slot s and one of its keys in slot t. Both factors are at most 1, so that neither
/// overflows.
template <Real T>
class TailTiles {
 public:
  TailTiles(const ExponentialTail<T>& tail, const Factors<T>& x, Index tile)
      : m_tail(&tail), m_queries(x.queries.slots), m_keys(x.keys.slots), m_tile(tile) {}

  const ExponentialTail<T>& tail() const { return *m_tail; }
  bool before() const { return m_tail->side == Side::before; }
  Index tiles() const { return (m_queries.count + m_tile - 1) / m_tile; }
  Index first(Index I) const { return I * m_tile; }
  Index rows(Index I) const { return std::min(m_tile, m_queries.count - first(I)); }

  /// inner: the adjacent tile whose keys are some of the keys of tile I. outer: the adjacent tile whose keys include
  /// those of tile I. -1 or tiles() if there is no such tile.
  Index inner(Index I) const { return before() ? I - 1 : I + 1; }
  Index outer(Index I) const { return before() ? I + 1 : I - 1; }

  Index pivot(Index I) const { return m_queries[before() ? first(I) : first(I) + rows(I) - 1]; }

  /// Where the keys of tile I end if the tail is before the band, or begin if it is after the band.
  Index cut(Index I) const { return m_keys.below(pivot(I) + m_tail->edge + (before() ? 1 : 0)); }

  bool any_keys(Index I) const { return before() ? cut(I) > 0 : cut(I) < m_keys.count; }
  RowRange queries(Index I) const { return {first(I), first(I) + rows(I)}; }
  /// The keys of tile I that are not keys of the tile inner(I).
  RowRange new_keys(Index I) const {
    if (before()) return {I > 0 ? cut(I - 1) : 0, cut(I)};
    return {cut(I), I + 1 < tiles() ? cut(I + 1) : m_keys.count};
  }

  Index query_distance(Index I, Index i) const { return std::abs(m_queries[i] - pivot(I)); }
  Index key_distance(Index I, Index j) const { return std::abs(m_keys[j] - (pivot(I) + m_tail->edge)); }
  /// The distance between the pivots of two tiles; 0 if one of the tiles does not exist.
  Index distance(Index I, Index J) const {
    if (std::min(I, J) < 0 || std::max(I, J) >= tiles()) return 0;
    return std::abs(pivot(I) - pivot(J));
  }

 private:
  const ExponentialTail<T>* m_tail;
  Slots m_queries, m_keys;
  Index m_tile;
};

/// Weights as the sum of two tails, either of which may be empty, and the band between them.
template <Real T>
struct BandDecomposition {
  BandDecomposition(LagWeightsView<T> c, const ProductShape& span, Workspace& workspace)
      : table(tabulate(c, span, workspace)),
        before(Side::before, c, span),
        after(Side::after, c, span),
        band(band_between(before, after, c)) {
    before.tabulate(workspace);
    after.tabulate(workspace);
    constant = c[table.first];
    for (Index lag = table.first; lag <= table.last() && constant != T(0); ++lag)
      if (c[lag] != constant) constant = T(0);
  }

  /// The weights of the band, for tiles of queries: a tile gets the keys that it has in neither of the tails.
  ToeplitzWeights<T> band_weights(const Factors<T>& x) const { return {x, table, band}; }

  LagWeightsView<T> table;  // of all lags that the slots can reach
  ExponentialTail<T> before, after;
  LagRange band;
  T constant;  // the weight of all lags, if they are equal; else 0
};

}  // namespace nprf::toeplitz
