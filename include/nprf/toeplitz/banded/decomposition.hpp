// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/banded/exponential_tail.hpp"
#include "nprf/toeplitz/direct/toeplitz_weights.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf::toeplitz {

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

  /// The band, for tiles of queries: each tile has the keys that are in neither of its tails.
  ToeplitzWeights<T> band_weights(const Factors<T>& x) const { return {x, table, band}; }

  LagWeightsView<T> table;  // of all lags that the slots can reach
  ExponentialTail<T> before, after;
  LagRange band;
  T constant;  // the weight of all lags, if they are equal; else 0
};

}  // namespace nprf::toeplitz
