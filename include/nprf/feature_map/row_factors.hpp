// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// Row j of phi (n,r) becomes exp(log_factors_j - g) times itself, where g is the largest finite of the log-factors
/// (n). Returns g; 0 if none is finite. O(n r).
template <Real T>
T scale_to_largest(const VectorMap<T>& log_factors, MatrixRef<T> phi, const Team& team) {
  T largest = -std::numeric_limits<T>::infinity();
  for (const T g : log_factors)
    if (std::isfinite(g)) largest = std::max(largest, g);
  if (!std::isfinite(largest)) largest = 0;
  team.run_tiles(phi.rows(), [&](Index j0, Index rows, Workspace&) {
    for (Index j = j0; j < j0 + rows; ++j) phi.row(j) *= std::exp(log_factors[j] - largest);
  });
  return largest;
}

}  // namespace nprf
