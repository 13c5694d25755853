// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "nprf/config.hpp"
#include "nprf/core/compensated_sum.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"

/// Sums over any number of keys, in two levels. The terms of a chunk of keys are summed without compensation. The
/// sums of the chunks are added with compensation: the rounding error of each addition is summed separately (Ogita,
/// Rump, Oishi 2005), so that the error does not grow with the number of chunks.
namespace nprf {

/// The number of keys in a chunk.
inline constexpr Index chunk_keys = 4096;

/// Three numbers on which the bounds of rounding errors (row_error_bound.hpp) rely. run_keys: tiles of attention and
/// steps of a decoder sum this number of keys, then add the sum to that of earlier keys. softmax_run_keys: this number
/// for tiles of exact softmax. plain_sum_of_fft: an engine by FFT adds at most this number of terms one after the
/// other.
inline constexpr Index run_keys = 64, softmax_run_keys = 256, plain_sum_of_fft = 512;

/// The largest number of terms in a sum over n_k keys that are added without compensation, so that their rounding
/// errors accumulate.
constexpr Index longest_plain_sum(Index n_k) { return std::min(n_k, chunk_keys); }

/// The sum of x (n), in runs of run_keys; n is a multiple of the size of a pack.
template <Real T>
T sum_in_runs(const T* x, Index n) {
  using P = Pack<T>;
  P all = P::all(0);
  for (Index begin = 0; begin < n; begin += run_keys) {
    P sum = P::all(0);
    for (Index k = begin; k < std::min(begin + run_keys, n); k += P::size) sum = sum + P::load(x + k);
    all = all + sum;
  }
  return all.sum();
}

/// sums (n) += terms (n); compensation (n) += the exact rounding errors of these additions. Zero terms change no bit.
template <Real T>
void add_compensated(Index n, const T* terms, T* sums, T* compensation) {
  NPRF_INDEPENDENT_ITERATIONS
  for (Index k = 0; k < n; ++k) {
    T error;
    sums[k] = two_sum(sums[k], terms[k], error);
    compensation[k] += error;
  }
}

/// sums (n) += compensation (n). A non-finite compensation is skipped: it belongs to a non-finite sum.
template <Real T>
void add_compensation(Index n, const T* compensation, T* sums) {
  for (Index k = 0; k < n; ++k) sums[k] += std::isfinite(compensation[k]) ? compensation[k] : T(0);
}

/// Adds the terms of the keys begin..end-1 to Y (rows,p), chunk by chunk and with compensation, and also to sums (rows)
/// if it is not null. add(j, j_end, Y', sums') adds the terms of the keys j..j_end-1 to Y' and sums'. If there is only
/// one chunk, these are Y and sums; otherwise they are arrays of zeros. Chunks begin at origin + a multiple of
/// chunk_keys. Scratch memory O(rows p).
template <Real T, class Add>
void add_in_chunks(Index origin, Index begin, Index end, MatrixRef<T> Y, T* sums, Workspace& scratch, Add&& add) {
  const auto chunk_end = [=](Index j) { return std::min(end, j - (j - origin) % chunk_keys + chunk_keys); };
  if (begin >= end) return;
  if (chunk_end(begin) == end) {
    add(begin, end, Y, sums);
    return;
  }
  const Workspace::Scope scope(scratch);
  const Index rows = Y.rows(), p = Y.cols();
  auto chunk = scratch.matrix<T>(rows, p), compensation = scratch.matrix<T>(rows, p);
  auto chunk_sums = scratch.vector<T>(sums ? rows : 0), sums_compensation = scratch.vector<T>(chunk_sums.size());
  compensation.setZero();
  sums_compensation.setZero();
  for (Index j = begin; j < end; j = chunk_end(j)) {
    chunk.setZero();
    chunk_sums.setZero();
    add(j, chunk_end(j), MatrixRef<T>(chunk), sums ? chunk_sums.data() : nullptr);
    for (Index i = 0; i < rows; ++i)
      add_compensated(p, chunk.data() + i * p, Y.data() + i * Y.outerStride(), compensation.data() + i * p);
    if (sums) add_compensated(rows, chunk_sums.data(), sums, sums_compensation.data());
  }
  for (Index i = 0; i < rows; ++i) add_compensation(p, compensation.data() + i * p, Y.data() + i * Y.outerStride());
  if (sums) add_compensation(rows, sums_compensation.data(), sums);
}

}  // namespace nprf
