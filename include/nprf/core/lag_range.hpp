// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/engine.hpp"
#include "nprf/core/index.hpp"

namespace nprf {

/// The lags first..last, inclusive; empty if last < first.
struct LagRange {
  Index first = 0;
  Index last = -1;

  Index size() const { return std::max<Index>(last - first + 1, 0); }
};

/// The lags between n_q queries at positions offset, offset + 1, ... and n_k keys at positions 0, 1, ...
inline LagRange reachable_lags(Index n_q, Index n_k, Index offset, Direction direction) {
  if (n_q == 0 || n_k == 0) return {};
  const LagRange all{-(n_q - 1) - offset, n_k - 1 - offset};
  return {all.first, direction == Direction::causal ? std::min<Index>(all.last, 0) : all.last};
}

}  // namespace nprf
