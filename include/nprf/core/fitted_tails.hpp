// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/lag_weights.hpp"

namespace nprf {

/// Tails that a table of biases comes near, and by how much they are off at most: a weight becomes exp(+-deviation)
/// times what it is.
struct FittedTails {
  Tails tails;
  double deviation = 0;
};

namespace detail {

struct FittedLine {
  Index lags = 0;  // beyond its edge
  double slope = 0, deviation = 0;
};

// One end: b(k) is the bias k lags inwards, k < lags. From the outermost weight that is not lost the slopes of all
// lines that keep within most / 2 of every bias are an interval, which the next bias inwards can only narrow; through
// the bias at the edge such a line keeps within `most`.
template <class B>
FittedLine fitted_line(Index lags, double lost, double most, B&& b) {
  Index end = 0;
  for (; end < lags && b(end) < lost; ++end)
    if (b(end) == -std::numeric_limits<double>::infinity()) return {};
  double least = 0, largest = std::numeric_limits<double>::infinity();
  Index edge = end;
  for (Index k = end + 1; k < lags; edge = k++) {
    const double rise = b(k) - b(end), steps = static_cast<double>(k - end);
    const double above = std::max(least, (rise - most / 2) / steps),
                 below = std::min(largest, (rise + most / 2) / steps);
    if (!(above <= below)) break;
    least = above, largest = below;
  }
  if (edge == end) return {};
  FittedLine line{edge, 0};
  if (least > 0) line.slope = -std::clamp((b(edge) - b(end)) / static_cast<double>(edge - end), least, largest);
  const auto at = [&](Index k) { return b(edge) + static_cast<double>(edge - k) * line.slope; };
  if (end > 0 && !(at(end - 1) < lost + most)) return {};  // what is lost would come back
  for (Index k = end; k < edge; ++k) line.deviation = std::max(line.deviation, std::abs(b(k) - at(k)));
  return line;
}

}  // namespace detail

/// The longest ends of a range whose biases keep within `most` of a straight line that does not rise outwards, such as
/// those of ALiBi written out as a table. Weights exp(b - largest) that are below the normal numbers of T may stay
/// there, and no line hides a lag whose b is -infinity. O(range).
template <Real T>
FittedTails fitted_tails(const LagBias<T>& bias, LagRange range, double largest, double most) {
  if (range.size() == 0 || !(largest > -std::numeric_limits<double>::infinity())) return {};
  const double lost = largest + std::log(static_cast<double>(std::numeric_limits<T>::min()));
  const detail::FittedLine before =
      detail::fitted_line(range.size(), lost, most, [&](Index k) { return bias[range.first + k]; });
  const detail::FittedLine after =
      detail::fitted_line(range.size() - before.lags, lost, most, [&](Index k) { return bias[range.last - k]; });
  return {{before.lags, after.lags, before.slope, after.slope}, std::max(before.deviation, after.deviation)};
}

}  // namespace nprf
