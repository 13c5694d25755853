// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>

#include "nprf/config.hpp"
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

/// The number of pairs of a query and a key whose lag is in a range, if n_q and n_k slots are all filled.
inline double pairs_in(LagRange range, Index n_q, Index n_k) {
  // the number of pairs with a lag of at most l. By lag, the diagonals of the n_q x n_k matrix grow up to min(n_q, n_k)
  // pairs, keep this length, and become shorter again
  const auto up_to = [n_q = static_cast<double>(n_q), n_k = static_cast<double>(n_k)](double l) {
    const double rising = std::clamp(l + n_q, 0.0, n_q + n_k - 1), shorter = std::min(n_q, n_k);
    const double flat = std::max(rising - shorter, 0.0), falling = std::max(rising - std::max(n_q, n_k), 0.0);
    return rising * (rising + 1) / 2 - flat * (flat + 1) / 2 - falling * (falling + 1) / 2;
  };
  if (range.size() == 0 || n_q == 0 || n_k == 0) return 0;
  return up_to(static_cast<double>(range.last)) - up_to(static_cast<double>(range.first - 1));
}

/// The lags of the near field. Its pairs are those of tokens that are less than `width` apart: along the sequence, or
/// on a grid in each of the two dimensions. Attention computes the weights of these pairs exactly. Lags are differences
/// of slots, and include the offset of the queries.
struct NearLags {
  Index width = 0;   // 0: none
  Index pitch = 0;   // of a grid: the difference of the slots of one cell and of the one below it; 0: no grid
  Index offset = 0;  // the lag of a token to itself

  NPRF_HOST_DEVICE bool contains(Index lag) const {
    Index distance = magnitude(lag - offset);
    if (pitch == 0) return distance < width;
    // the nearest multiple of the pitch
    const Index rows = (distance + pitch / 2) / pitch;
    distance = magnitude(distance - rows * pitch);
    return rows < width && distance < width;
  }

  /// The range from the first near lag to the last. On a grid it may contain other lags, too.
  NPRF_HOST_DEVICE LagRange range() const {
    if (width == 0) return {0, -1};
    const Index most = (width - 1) * (pitch + 1);
    return {offset - most, offset + most};
  }

 private:
  NPRF_HOST_DEVICE static Index magnitude(Index x) { return x < 0 ? -x : x; }
};

/// A view of a LagBias (lag_bias.hpp), in the caller's storage. It needs no matrix library.
template <Real T>
struct LagBiasView {
  Index first = 0;           // lag of table[0]
  const T* table = nullptr;  // (size), at least one scalar
  Index size = 0;
  T slope_before = 0;  // b[first - k] = table[0]   + k slope_before
  T slope_after = 0;   // b[last  + k] = table[end] + k slope_after

  Index last() const { return first + size - 1; }

  /// b[lag], computed in double: the lines lose little precision even far from the table.
  double operator[](Index lag) const {
    if (lag < first) return table[0] + static_cast<double>(first - lag) * slope_before;
    if (lag > last()) return table[size - 1] + static_cast<double>(lag - last()) * slope_after;
    return table[lag - first];
  }

  /// b[lag] - b[from]. If both lags are on the same line, the difference is computed from the slope and not from two
  /// large numbers, so that its rounding error is relative to the difference. -infinity if b[lag] is -infinity; b[from]
  /// must not be -infinity.
  double difference(Index lag, Index from) const {
    constexpr double minus_infinity = -std::numeric_limits<double>::infinity();
    if (lag < first && from < first)
      return table[0] > minus_infinity ? static_cast<double>(from - lag) * slope_before : minus_infinity;
    if (lag > last() && from > last())
      return table[size - 1] > minus_infinity ? static_cast<double>(lag - from) * slope_after : minus_infinity;
    return (*this)[lag] - (*this)[from];
  }

  /// Sets b (range.size()) to the biases of a range of lags.
  void fill(LagRange range, double* b) const {
    for (Index lag = range.first; lag <= range.last; ++lag) b[lag - range.first] = (*this)[lag];
  }
  /// Sets d (range.size()) to difference(lag, from) for the lags of a range.
  void fill_differences(LagRange range, Index from, double* d) const {
    for (Index lag = range.first; lag <= range.last; ++lag) d[lag - range.first] = difference(lag, from);
  }

  /// The lag of a range that has the largest b, the first if there are several; range.first if the range is empty.
  Index largest(LagRange range) const {
    Index best = range.first;
    if (range.size() == 0) return best;
    const auto consider = [&](Index lag) {
      if ((*this)[lag] > (*this)[best]) best = lag;
    };
    // beyond the table b is monotone, so the ends of the range suffice there
    const Index from = std::max(range.first, first), to = std::min(range.last, last());
    for (Index lag = from; lag <= to; ++lag) consider(lag);
    consider(range.last);
    return best;
  }

  /// The largest b of a range; -infinity if the range is empty.
  double max(LagRange range) const {
    return range.size() == 0 ? -std::numeric_limits<double>::infinity() : (*this)[largest(range)];
  }
};

/// The tails of a table of weights c of the lags first..last: at each end, the number of weights that continue a
/// geometric sequence outwards, and the logarithm of its ratio. With e = first + before and f = last - after:
///     c[e - k] = c[e] exp(k slope_before)  for k = 1..before,    c[f + k] = c[f] exp(k slope_after)  for k = 1..after
struct Tails {
  Index before = 0, after = 0;
  double slope_before = 0, slope_after = 0;
};

/// How much an engine may change the weights of attention, relative to each, so that with positive features a row of y
/// changes by at most half of the tolerance, relative to the largest |v|.
inline double deviation_within(double tolerance) { return std::min(tolerance / 4, 0.0025); }

/// A view of the weights c[lag] of a Toeplitz matrix C[i,j] = c[j-i]. A lag outside the table has weight 0.
template <Real T>
struct LagWeightsView {
  Index first = 0;            // lag of values[0]
  const T* values = nullptr;  // c[first], c[first + 1], ...
  Index size = 0;
  Tails tails = {};          // before + after < size, unless both are 0
  double max_deviation = 0;  // an engine may change a weight c by at most c * max_deviation
  // (size)  c times a function of the lag that must be represented as well as c is, for gradients; null: none
  const T* tangents = nullptr;

  Index last() const { return first + size - 1; }

  T operator[](Index lag) const { return lag < first || lag > last() ? T(0) : values[lag - first]; }

  /// The smallest range of lags that contains all non-zero weights.
  LagRange support() const {
    LagRange range{first, last()};
    while (range.size() > 0 && (*this)[range.first] == T(0)) ++range.first;
    while (range.size() > 0 && (*this)[range.last] == T(0)) --range.last;
    return range;
  }

  /// The lags between the tails.
  LagRange middle() const { return {first + tails.before, last() - tails.after}; }

  /// The same weights. Each tail of slope 0 is extended inwards as far as the weights are equal.
  LagWeightsView with_equal_ends() const {
    LagWeightsView c = *this;
    Tails& t = c.tails;
    if (t.slope_before == 0)
      while (t.before + t.after + 1 < size && values[t.before + 1] == values[t.before]) ++t.before;
    if (t.slope_after == 0)
      while (t.before + t.after + 1 < size && values[size - 2 - t.after] == values[size - 1 - t.after]) ++t.after;
    return c;
  }
};

/// The tails of the weights of a range of lags: the lags beyond the table of the bias, where the bias is linear. A bias
/// that rises outwards gives no tail: the recurrence would start from an innermost weight that may have underflowed.
template <Real T>
Tails tails(const LagBiasView<T>& bias, LagRange range) {
  if (range.size() == 0) return {};
  const auto tail = [](T slope, Index lags, Index most) { return slope > 0 ? 0 : std::clamp<Index>(lags, 0, most); };
  const Index before = tail(bias.slope_before, bias.first - range.first, range.size() - 1);
  const Index after = tail(bias.slope_after, range.last - bias.last(), range.size() - 1 - before);
  return {before, after, before > 0 ? bias.slope_before : 0.0, after > 0 ? bias.slope_after : 0.0};
}

}  // namespace nprf
