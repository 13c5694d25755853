// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <ctime>
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

/// Seconds of processor time that work() takes, of all threads together: unlike the time on the wall they hardly depend
/// on what else the machine does.
template <class Work>
double processor_seconds(Work&& work) {
  const std::clock_t start = std::clock();
  work();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

/// Calls use one thread while it lives.
class OneThread {
 public:
  OneThread() { nprf::set_num_threads(1); }
  ~OneThread() { nprf::set_num_threads(m_before); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  nprf::Index m_before = nprf::num_threads();
};

/// Seconds of processor time that work() takes on one thread: the median of what fits into the budget. The first call,
/// which may plan and touches memory for the first time, counts only if it alone exceeds the budget.
template <class Work>
double median_seconds(Work&& work, double budget = 0.2) {
  const OneThread one_thread;
  const auto once = [&] { return processor_seconds(work); };
  const double first = once();
  if (first > budget) return first;

  std::vector<double> seconds;
  for (double spent = 0; spent < budget && seconds.size() < 25; spent += seconds.back()) seconds.push_back(once());
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

}  // namespace demo
