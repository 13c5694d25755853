// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/index.hpp"
#include "nprf/core/lags.hpp"
#include "nprf/toeplitz/smooth/chunk_blocks.hpp"

namespace nprf::toeplitz {

/// The number of pairs of slots in blocks of one direction by how they are computed: by tiles; by this many
/// polynomials.
struct BlockPairs {
  double rough = 0, smooth[most_terms + 1] = {};
};

/// Those of the blocks at the distances sign, 2 sign, ... for n_q and n_k slots; estimated from a sample of blocks, at
/// distances of which each is half as large again as the one before. P: the packs that it computes with.
template <Real T, class P = Pack<T>>
BlockPairs sampled_blocks(const LagWeightsView<T>& c, Index n_q, Index n_k, Index sign) {
  const Index chunks = ((sign > 0 ? n_q : n_k) + smooth_chunk - 1) / smooth_chunk;
  BlockPairs pairs;
  for (Index k = 1, next; k < chunks; k = next) {
    next = std::min(k + std::max<Index>(k / 2, 1), chunks);
    const Index last = -sign * (next - 1) * smooth_chunk;
    const BlockWeights<T, P> weights(c, sign * k);
    const LagRange of{std::min(-sign * k * smooth_chunk, last) - smooth_chunk / 2 + 1,
                      std::max(-sign * k * smooth_chunk, last) + smooth_chunk / 2};
    const double count = pairs_in(of, n_q, n_k);
    for (Index terms = least_terms;; ++terms) {
      BlockKind kind = weights.block(terms).kind;
      if (kind == BlockKind::smooth && c.tangents) kind = weights.tangents(terms).kind;
      if (kind == BlockKind::smooth) pairs.smooth[terms] += count;
      if (kind == BlockKind::rough && terms == most_terms) pairs.rough += count;
      if (kind != BlockKind::rough || terms == most_terms) break;
    }
  }
  return pairs;
}

}  // namespace nprf::toeplitz
