// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "nprf/core/types.hpp"

namespace nprf::bench {

/// Nothing that takes longer is measured: its time is extrapolated from two smaller n, and printed as such.
constexpr double longest_measured = 2;

/// The time of one contender over n, by growing n.
class Curve {
 public:
  struct Point {
    Index n;
    double seconds;
    bool extrapolated;
  };

  void measured(Index n, double seconds) { m_points.push_back({n, seconds, false}); }

  /// Where n would take too long: its time by the power law through the last two points that were measured, which is
  /// noted. Nothing where it should be measured.
  std::optional<double> too_long(Index n) {
    const Point *before = nullptr, *last = nullptr;
    for (const Point& point : m_points)
      if (!point.extrapolated) before = last, last = &point;
    if (!before) return std::nullopt;
    const auto log_ratio = [](auto a, auto b) { return std::log(static_cast<double>(a) / static_cast<double>(b)); };
    const double power = log_ratio(last->seconds, before->seconds) / log_ratio(last->n, before->n);
    const double seconds = last->seconds * std::exp(power * log_ratio(n, last->n));
    if (seconds <= longest_measured) return std::nullopt;
    m_points.push_back({n, seconds, true});
    return seconds;
  }

  const std::vector<Point>& points() const { return m_points; }
  const Point& last() const { return m_points.back(); }

 private:
  std::vector<Point> m_points;
};

}  // namespace nprf::bench
