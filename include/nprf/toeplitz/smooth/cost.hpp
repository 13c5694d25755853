// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>

#include "nprf/core/lags.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/toeplitz/cost.hpp"
#include "nprf/toeplitz/smooth/block_pairs.hpp"
#include "nprf/toeplitz/smooth/chunk_blocks.hpp"

namespace nprf::toeplitz {

/// The number of polynomials with which SmoothEngine is cheapest, and its cost then (cost.hpp).
struct SmoothCost {
  Index terms = most_terms;
  double cost = std::numeric_limits<double>::infinity();
};

/// The cost of SmoothEngine by a sample of blocks of C; infinity for few slots, and for weights that may not change.
template <Real T>
SmoothCost smooth_cost(const CostInputs<T>& x) {
  // measured: moments, rows and sums over blocks take longer than as many multiply-adds of a tile
  constexpr double moment = 1.6, coupling = 1.6, halves = 1.5, most_offsets = 12, narrow = 8;
  SmoothCost best;
  if (x.weights.max_deviation <= 0 || std::max(x.span.n_q, x.span.n_k) < 8 * smooth_chunk || x.tokens.empty())
    return best;
  const double r = static_cast<double>(x.tokens.r), p = static_cast<double>(x.tokens.p),
               tokens = static_cast<double>(x.tokens.n_q + x.tokens.n_k),
               chunks = static_cast<double>(x.span.n_q + x.span.n_k) / smooth_chunk,
               filled = static_cast<double>(x.tokens.n_q) * static_cast<double>(x.tokens.n_k) /
                        (static_cast<double>(x.span.n_q) * static_cast<double>(x.span.n_k)),
               diagonal = pairs_in({1 - smooth_chunk, smooth_chunk - 1}, x.span.n_q, x.span.n_k) / 2;
  const BlockPairs directions[] = {sampled_blocks(x.weights, x.span.n_q, x.span.n_k, 1),
                                   sampled_blocks(x.weights, x.span.n_q, x.span.n_k, -1)};
  for (Index terms = least_terms; terms <= most_terms; ++terms) {
    double rough = diagonal, offsets = 0;
    for (const BlockPairs& each : directions) {
      const double smooth = std::accumulate(each.smooth, each.smooth + terms + 1, 0.0),
                   left = each.rough + std::accumulate(each.smooth + terms + 1, std::end(each.smooth), 0.0);
      rough += left;
      // the blocks at distances 2 D of which those at D are rough
      if (smooth > 0) offsets += std::min(1.5 * (1 + left / diagonal), most_offsets);
    }
    if (offsets == 0) continue;  // nothing is gained over the direct engine
    const double q = static_cast<double>(terms);
    const double cost = filled * rough * (r + p + weight_cost) + moment * tokens * q * r * (p + narrow) +
                        coupling * chunks * q * q * r * p * (halves + offsets);
    if (cost < best.cost) best = {terms, cost};
  }
  return best;
}

}  // namespace nprf::toeplitz
