// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <limits>
#include <nprf/nprf.hpp>
#include <vector>

namespace demo {

/// |y - truth| / |truth| over all entries.
inline double relative_error(const nprf::Matrix<float>& y, const nprf::Matrix<float>& truth) {
  const double difference = (y - truth).cast<double>().norm(), size = truth.cast<double>().norm();
  if (size == 0) return difference == 0 ? 0 : std::numeric_limits<double>::infinity();
  return difference / size;
}

/// Seconds that work() takes: the median of what fits into the budget. The first call, which may plan and touches
/// memory for the first time, counts only if it alone exceeds the budget.
template <class Work>
double median_seconds(Work&& work, double budget = 0.2) {
  using Clock = std::chrono::steady_clock;
  const auto once = [&] {
    const auto start = Clock::now();
    work();
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const double first = once();
  if (first > budget) return first;

  std::vector<double> seconds;
  for (double spent = 0; spent < budget && seconds.size() < 25; spent += seconds.back()) seconds.push_back(once());
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

}  // namespace demo
