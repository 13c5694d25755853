// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "nprf/config.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"

/// Sums over any number of keys, in two levels: those of a chunk of keys are added up in turn, and chunks so that what
/// rounding takes from a sum is kept beside it (Ogita, Rump, Oishi 2005). Errors do not grow with the chunks.
namespace nprf {

/// Keys in a chunk.
inline constexpr Index keys_in_chunk = 4096;

/// How many of n_k keys are added up in turn, each rounding being one of all before.
constexpr Index keys_in_turn(Index n_k) { return std::min(n_k, keys_in_chunk); }

/// sums (n) += more (n); lost (n) += what rounding takes from that (Knuth 1969). Zeros change no bit.
template <Real T>
void add_exactly(Index n, const T* more, T* sums, T* lost) {
  NPRF_INDEPENDENT_ITERATIONS
  for (Index k = 0; k < n; ++k) {
    const T sum = sums[k] + more[k], added = sum - sums[k];
    lost[k] += (sums[k] - (sum - added)) + (more[k] - added);
    sums[k] = sum;
  }
}

/// sums (n) += lost (n), which is nothing where a sum is not finite.
template <Real T>
void add_lost(Index n, const T* lost, T* sums) {
  for (Index k = 0; k < n; ++k) sums[k] += std::isfinite(lost[k]) ? lost[k] : T(0);
}

/// Y (rows,p) += what add(begin, end, Y', sums') adds to zeros for the keys begin..end-1, chunk by chunk; chunks end at
/// `origin` and whole numbers of chunks from there. sums (rows), which may be null, likewise. One chunk is added to Y
/// itself. Scratch memory O(rows p).
template <Real T, class Add>
void add_in_chunks(Index origin, Index begin, Index end, MatrixRef<T> Y, T* sums, Workspace& scratch, Add&& add) {
  const auto chunk_end = [=](Index j) { return std::min(end, j - (j - origin) % keys_in_chunk + keys_in_chunk); };
  if (begin >= end) return;
  if (chunk_end(begin) == end) {
    add(begin, end, Y, sums);
    return;
  }
  const Workspace::Scope scope(scratch);
  const Index rows = Y.rows(), p = Y.cols();
  auto more = scratch.matrix<T>(rows, p), lost = scratch.matrix<T>(rows, p);
  auto more_sums = scratch.vector<T>(sums ? rows : 0), lost_sums = scratch.vector<T>(more_sums.size());
  lost.setZero();
  lost_sums.setZero();
  for (Index j = begin; j < end; j = chunk_end(j)) {
    more.setZero();
    more_sums.setZero();
    add(j, chunk_end(j), MatrixRef<T>(more), sums ? more_sums.data() : nullptr);
    for (Index i = 0; i < rows; ++i)
      add_exactly(p, more.data() + i * p, Y.data() + i * Y.outerStride(), lost.data() + i * p);
    if (sums) add_exactly(rows, more_sums.data(), sums, lost_sums.data());
  }
  for (Index i = 0; i < rows; ++i) add_lost(p, lost.data() + i * p, Y.data() + i * Y.outerStride());
  if (sums) add_lost(rows, lost_sums.data(), sums);
}

}  // namespace nprf
