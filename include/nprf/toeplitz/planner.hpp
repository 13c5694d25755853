// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/config.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/threads.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/tail.hpp"

namespace nprf::toeplitz {

/// The smallest over the largest sum of weights that a row sees: where it is small, an FFT's rounding, which is
/// relative to the largest rows, drowns the smallest. O(n_q + n_k).
template <Real T>
double row_balance(LagWeightsView<T> c, const ProductShape& shape) {
  double sum = 0, smallest = std::numeric_limits<double>::infinity(), largest = 0;
  for (Index lag = -(shape.n_q - 1); lag < shape.n_k; ++lag) {
    // a window of n_k lags slides from the last row to the first; sums are those of positive weights
    const Index first = lag - (shape.n_k - 1);
    sum += std::abs(static_cast<double>(c[lag]));
    if (first > -(shape.n_q - 1)) sum -= std::abs(static_cast<double>(c[first - 1]));
    if (first < -(shape.n_q - 1)) continue;
    smallest = std::min(smallest, sum);
    largest = std::max(largest, sum);
  }
  return largest > 0 ? smallest / largest : 0;
}

/// The same for tokens in slots with gaps, each row's weights summed over the keys that there are. O(n) and for each
/// run of keys without a gap O(n_q).
template <Real T>
double row_balance(LagWeightsView<T> c, const Slots& queries, const Slots& keys, Workspace& workspace) {
  if (queries.count == 0 || keys.count == 0) return 0;
  const Workspace::Scope scope(workspace);
  const Index last = queries[queries.count - 1], lags = last + keys[keys.count - 1] + 1;
  double* before = workspace.take<double>(lags + 1);  // the sum of |c| of the lags before k - last
  before[0] = 0;
  for (Index k = 0; k < lags; ++k) before[k + 1] = before[k] + std::abs(static_cast<double>(c[k - last]));
  double* sums = workspace.take<double>(queries.count);
  std::fill_n(sums, queries.count, 0.0);
  for (Index j = 0, end; j < keys.count; j = end) {
    end = j + 1;
    while (end < keys.count && keys[end] == keys[end - 1] + 1) ++end;
    const double *from = before + last + keys[j], *to = before + last + keys[end - 1] + 1;
    for (Index i = 0; i < queries.count; ++i) sums[i] += to[-queries[i]] - from[-queries[i]];
  }
  const auto [smallest, largest] = std::minmax_element(sums, sums + queries.count);
  return *largest > 0 ? *smallest / *largest : 0;
}

/// Where weights are less balanced than that, Engine::automatic does not take an FFT: a third of the digits may go.
template <Real T>
double least_balance() {
  return std::cbrt(static_cast<double>(std::numeric_limits<T>::epsilon()));
}

/// What a product costs by each engine: multiplications and additions, those of an FFT weighted by the measured cost of
/// one against one of a matrix product's. An FFT works on all slots, direct on the tokens that stand in them.
struct Operations {
  Operations(const ProductShape& tokens, const ProductShape& slots) {
    const double n = static_cast<double>(slots.n_q + slots.n_k);
    const double r = static_cast<double>(tokens.r), p = static_cast<double>(tokens.p);
    direct = static_cast<double>(tokens.n_q) * static_cast<double>(tokens.n_k) * (r + p + 16);
    fftw = r * p * n * (4.5 * std::log2(std::max(n, 2.0)) + 45);
  }
  explicit Operations(const ProductShape& shape) : Operations(shape, shape) {}

  double direct, fftw;

  double least() const { return NPRF_USE_FFTW ? std::min(direct, fftw) : direct; }
};

/// The same for the engine that tails make linear (banded.hpp); infinity where the weights have none.
template <Real T>
double banded_operations(LagWeightsView<T> c, const ProductShape& tokens, const ProductShape& slots) {
  const Tail<T> before(Side::before, c, slots), after(Side::after, c, slots);
  const int tails = (before.lags > 0) + (after.lags > 0);
  if (tails == 0) return std::numeric_limits<double>::infinity();
  constexpr Index tile = 32;
  const double band = static_cast<double>(tile + band_between(before, after, c).size());
  const double n_q = static_cast<double>(tokens.n_q), n_k = static_cast<double>(tokens.n_k);
  const double r = static_cast<double>(tokens.r), p = static_cast<double>(tokens.p);
  return n_q * band * (r + p + 16) + tails * (n_q + 1.5 * n_k) * r * p;
}

/// How many threads so many operations are worth: waking one costs some microseconds, and more on a busy machine.
inline Index worthwhile_threads(double operations) {
  constexpr double for_each_thread = 4e6;
  return static_cast<Index>(std::clamp(operations / for_each_thread, 1.0, static_cast<double>(num_threads())));
}

/// The engine that Engine::automatic stands for: the cheapest one by operations; but none with an FFT where it would
/// drown some rows in the rounding of others: for one-sided weights, and for weights that leave some rows a small part
/// of what others see.
template <Real T>
Engine choose(LagWeightsView<T> lags, const ProductShape& tokens, const ProductShape& slots) {
  const Operations operations(tokens, slots);
  const double banded = banded_operations(lags, tokens, slots);
  const bool flat = lags.tails.slope_before == 0 && lags.tails.slope_after == 0;
  const Engine exact = banded >= operations.direct ? Engine::direct : flat ? Engine::banded : Engine::recurrence;
  const LagRange support = lags.support();
  if (!NPRF_USE_FFTW || support.first >= 0 || support.last <= 0) return exact;
  if (std::min(banded, operations.direct) <= operations.fftw) return exact;
  return row_balance(lags, slots) < least_balance<T>() ? exact : Engine::fftw;
}
template <Real T>
Engine choose(LagWeightsView<T> lags, const ProductShape& shape) {
  return choose(lags, shape, shape);
}

}  // namespace nprf::toeplitz
