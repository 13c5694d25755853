// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/row_quotient.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/block_causal/levels.hpp"
#include "nprf/toeplitz/fft/convolution_error.hpp"
#include "nprf/toeplitz/plan/failing_share.hpp"

namespace nprf::toeplitz {

/// The sum of the absolute values of the weights of each query over all keys, (n_q) in the workspace. It is 0 only if
/// all of these weights are 0. O(n_q + n_k): if the keys have many gaps, some queries get the sum of a query near them.
/// There must be a query and a key.
template <Real T>
std::span<const double> row_sums(LagWeightsView<T> c, const Slots& queries, const Slots& keys, Workspace& workspace) {
  double* sums = workspace.take<double>(queries.count);
  std::fill_n(sums, queries.count, 0.0);
  const Workspace::Scope scope(workspace);
  const Index last = queries[queries.count - 1], lags = last + keys[keys.count - 1] + 1;
  double* before = workspace.take<double>(lags + 1);  // the sum of |c| of the lags before k - last
  Index* nonzero = workspace.take<Index>(lags + 1);   // how many of them are not 0
  before[0] = 0, nonzero[0] = 0;
  for (Index k = 0; k < lags; ++k) {
    before[k + 1] = before[k] + std::abs(static_cast<double>(c[k - last]));
    nonzero[k + 1] = nonzero[k] + (c[k - last] != T(0));
  }
  const auto run_end = [&](Index j) {
    Index end = j + 1;
    while (end < keys.count && keys[end] == keys[end - 1] + 1) ++end;
    return end;
  };
  Index runs = 0;
  for (Index j = 0; j < keys.count; j = run_end(j)) ++runs;
  const Index step = 1 + runs * queries.count / (16384 + 4 * lags);
  for (Index j = 0, end; j < keys.count; j = end) {
    end = run_end(j);
    const Index from = last + keys[j], to = last + keys[end - 1] + 1;
    for (Index i = 0; i < queries.count; i += step) {
      const Index at = queries[i];
      // weights whose sum is lost to rounding still count as non-zero
      if (nonzero[to - at] > nonzero[from - at])
        sums[i] += std::max(before[to - at] - before[from - at], std::numeric_limits<double>::min());
    }
  }
  for (Index i = 0; i < queries.count; ++i) sums[i] = sums[i - i % step];
  return {sums, static_cast<std::size_t>(queries.count)};
}

/// The predicted share of rows that an FFT over all rows makes fail the error bound (failing_share.hpp), with the
/// default tolerance. As row_sums().
template <Real T>
double failing_share(LagWeightsView<T> c, const Slots& queries, const Slots& keys, Workspace& workspace) {
  if (queries.count == 0 || keys.count == 0) return 0;
  const Workspace::Scope scope(workspace);
  const Index n_q = queries[queries.count - 1] + 1, n_k = keys[keys.count - 1] + 1;
  NormSums weights;
  for (Index lag = 1 - n_q; lag < n_k; ++lag) weights.add(static_cast<double>(c[lag]));
  const double N = 2 * static_cast<double>(std::max(n_q, n_k)), eps = std::numeric_limits<T>::epsilon();
  return failing_share(row_sums(c, queries, keys, workspace), weights, static_cast<double>(keys.count), N, eps,
                       default_tolerance<T>);
}

/// The smallest balance within any block of rows that CausalLevels may use: blocks of 128 times any power of two,
/// except the first of each size. Rows without non-zero weights are left out. Time and memory of row_sums().
template <Real T>
double block_balance(LagWeightsView<T> c, const Slots& queries, const Slots& keys, Workspace& workspace) {
  if (queries.count == 0 || keys.count == 0) return 0;
  const Workspace::Scope scope(workspace);
  const auto sums = row_sums(c, queries, keys, workspace);
  const Index n_q = queries[queries.count - 1] + 1, n_k = keys[keys.count - 1] + 1;
  const Index ahead = CausalAxis(c.support(), {n_q, n_k, 1, 1}).queries.first, size = CausalLevels<T>::block;
  struct Range {
    double smallest = std::numeric_limits<double>::infinity(), largest = 0;

    void add(const Range& other) {
      smallest = std::min(smallest, other.smallest), largest = std::max(largest, other.largest);
    }
  };
  Index count = (n_q + ahead + size - 1) / size;
  Range* blocks = workspace.take<Range>(count + 1);
  std::fill_n(blocks, count + 1, Range{});
  for (Index i = 0; i < queries.count; ++i)
    if (const double sum = sums[static_cast<std::size_t>(i)]; sum > 0)
      blocks[(queries[i] + ahead) / size].add({sum, sum});
  double balance = 1;
  for (; count > 1; count = (count + 1) / 2) {
    for (Index block = 1; block < count; ++block)
      if (blocks[block].largest > 0) balance = std::min(balance, blocks[block].smallest / blocks[block].largest);
    blocks[count] = {};
    for (Index block = 0; block < (count + 1) / 2; ++block) {
      blocks[block] = blocks[2 * block];
      blocks[block].add(blocks[2 * block + 1]);
    }
  }
  return balance;
}

/// If the rows of a block are less balanced than that, Engine::automatic does not choose an FFT by blocks: the smallest
/// would lose more than a third of their digits.
template <Real T>
double least_balance() {
  return std::cbrt(static_cast<double>(std::numeric_limits<T>::epsilon()));
}

}  // namespace nprf::toeplitz
