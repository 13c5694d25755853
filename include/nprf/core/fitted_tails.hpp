// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <span>

#include "nprf/core/lags.hpp"

namespace nprf {

/// Tails fitted to a table of biases, and the largest |b - line| of their lags: using the tails changes a weight by a
/// factor between exp(-deviation) and exp(deviation).
struct FittedTails {
  Tails tails;
  double deviation = 0;
};

struct FittedLine {
  Index lags = 0;  // the number of lags of the line, without its innermost one
  double slope = 0, deviation = 0;
};

/// Fits a line that does not rise outwards to one end of a table: b(k) is the bias k lags inwards from the end, k <
/// lags. The line stays within `most` of every bias that it covers. The exception are the outermost biases, if they are
/// below `underflow`: there the line only has to be below `underflow` + `most`. O(lags).
///
/// Consider the lines through the outermost bias that is not below `underflow`. The slopes of those that stay within
/// most / 2 of every bias form an interval, and each further bias inwards can only narrow it. The parallel of such a
/// line through the innermost bias stays within `most` of every bias.
template <class B>
FittedLine fitted_line(Index lags, double underflow, double most, B&& b) {
  Index outermost = 0;
  for (; outermost < lags && b(outermost) < underflow; ++outermost)
    if (b(outermost) == -std::numeric_limits<double>::infinity()) return {};
  double least_slope = 0, largest_slope = std::numeric_limits<double>::infinity();
  Index innermost = outermost;
  for (Index k = outermost + 1; k < lags; innermost = k++) {
    const double rise = b(k) - b(outermost), steps = static_cast<double>(k - outermost);
    const double new_least = std::max(least_slope, (rise - most / 2) / steps),
                 new_largest = std::min(largest_slope, (rise + most / 2) / steps);
    if (!(new_least <= new_largest)) break;
    least_slope = new_least, largest_slope = new_largest;
  }
  if (innermost == outermost) return {};
  FittedLine line{innermost, 0};
  if (least_slope > 0)
    line.slope = -std::clamp((b(innermost) - b(outermost)) / static_cast<double>(innermost - outermost), least_slope,
                             largest_slope);
  const auto at = [&](Index k) { return b(innermost) + static_cast<double>(innermost - k) * line.slope; };
  // such a line would make an underflowed weight normal
  if (outermost > 0 && !(at(outermost - 1) < underflow + most)) return {};
  for (Index k = outermost; k < innermost; ++k) line.deviation = std::max(line.deviation, std::abs(b(k) - at(k)));
  return line;
}

template <Real T>
inline constexpr double log_smallest_normal = (std::numeric_limits<T>::min_exponent - 1) * std::numbers::ln2;

/// The longest tails of a range of lags that stay within `most` of a line that does not rise outwards; log_weights has
/// b - max b of each lag. An example is ALiBi given as a table. Where the outermost weights exp(b - max b) are below
/// the normal numbers of T, the line only has to give such weights, too, within a factor exp(most). No tail contains a
/// lag with b = -infinity. O(range).
template <Real T>
FittedTails fitted_tails(std::span<const double> log_weights, double most) {
  if (log_weights.empty()) return {};
  constexpr double underflow = log_smallest_normal<T>;
  const Index lags = static_cast<Index>(log_weights.size());
  const double *first = log_weights.data(), *last = first + lags - 1;
  const FittedLine before = fitted_line(lags, underflow, most, [=](Index k) { return first[k]; });
  const FittedLine after = fitted_line(lags - before.lags, underflow, most, [=](Index k) { return last[-k]; });
  return {{before.lags, after.lags, before.slope, after.slope}, std::max(before.deviation, after.deviation)};
}

}  // namespace nprf
