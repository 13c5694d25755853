// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/banded/exponential_tail.hpp"
#include "nprf/toeplitz/direct/lag_tiles.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf::toeplitz {

/// Weights taken apart: two tails, either of which may be empty, and the band between them.
template <Real T>
struct BandDecomposition {
  BandDecomposition(LagWeightsView<T> c, const ProductShape& span, Workspace& workspace)
      : table(c, span, workspace),
        before(Side::before, c, span),
        after(Side::after, c, span),
        band(band_between(before, after, c)) {
    before.tabulate(workspace);
    after.tabulate(workspace);
    const LagRange lags = table.lags();
    constant = c[lags.first];
    for (Index lag = lags.first; lag <= lags.last && constant != T(0); ++lag)
      if (c[lag] != constant) constant = T(0);
  }

  /// The keys that a tile of queries, rows i0, i0 + 1, ... (`rows`), does not see in its tails.
  RowRange band_keys(const Factors<T>& x, Index i0, Index rows) const {
    const Index begin = x.keys.slots.below(x.queries.slots[i0] + band.first);
    return {begin, std::max(begin, x.keys.slots.below(x.queries.slots[i0 + rows - 1] + band.last + 1))};
  }

  LagTiles<T> table;
  ExponentialTail<T> before, after;
  LagRange band;
  T constant;  // the weight of all lags, if it is one; else 0
};

}  // namespace nprf::toeplitz
