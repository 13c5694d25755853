// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/toeplitz/cost.hpp"
#include "nprf/toeplitz/smooth/chunk_blocks.hpp"

namespace nprf::toeplitz {

/// The number of polynomials with which SmoothEngine is cheapest, and its cost then (cost.hpp).
struct SmoothCost {
  Index terms = most_terms;
  double cost = std::numeric_limits<double>::infinity();
};

namespace detail {

/// The number of pairs of slots in blocks of one direction by how they are computed: by tiles; by this many
/// polynomials.
struct BlockPairs {
  double rough = 0, smooth[most_terms + 1] = {};
};

// of the blocks at the distances sign, 2 sign, ...; from a sample of blocks, at distances of which each is half as
// large again as the one before
template <Real T>
BlockPairs sample_blocks(const CostInputs<T>& x, Index sign) {
  const Index chunks = ((sign > 0 ? x.span.n_q : x.span.n_k) + smooth_chunk - 1) / smooth_chunk;
  BlockPairs pairs;
  for (Index k = 1, next; k < chunks; k = next) {
    next = std::min(k + std::max<Index>(k / 2, 1), chunks);
    const Index last = -sign * (next - 1) * smooth_chunk;
    const BlockWeights<T> weights(x.weights, sign * k);
    const LagRange of{std::min(-sign * k * smooth_chunk, last) - smooth_chunk / 2 + 1,
                      std::max(-sign * k * smooth_chunk, last) + smooth_chunk / 2};
    const double count = pairs_in(of, x.span.n_q, x.span.n_k);
    for (Index terms = least_terms;; ++terms) {
      BlockKind kind = weights.block(terms).kind;
      if (kind == BlockKind::smooth && x.weights.tangents) kind = weights.tangents(terms).kind;
      if (kind == BlockKind::smooth) pairs.smooth[terms] += count;
      if (kind == BlockKind::rough && terms == most_terms) pairs.rough += count;
      if (kind != BlockKind::rough || terms == most_terms) break;
    }
  }
  return pairs;
}

}  // namespace detail

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
  const detail::BlockPairs directions[] = {detail::sample_blocks(x, 1), detail::sample_blocks(x, -1)};
  for (Index terms = least_terms; terms <= most_terms; ++terms) {
    double rough = diagonal, offsets = 0;
    for (const detail::BlockPairs& each : directions) {
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
