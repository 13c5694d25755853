// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <functional>
#include <vector>

namespace nprf::bench {

/// The middle value, or the mean of the two in the middle. Takes at least one value.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// Wall time of a call.
inline double seconds_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Processor time is that of all threads together: what other processes take does not count.
enum class Clock { processor, wall };

/// Seconds of a race.
struct RaceOptions {
  double budget;                // all rounds together, where more than the fewest fit
  double longest_repeated = 1;  // a call that takes longer is a measurement at once
  Clock clock = Clock::processor;
};

/// Times contenders in turn, round after round, so that a slower spell of the machine falls on all of them.
class Race {
 public:
  using Contender = std::function<void()>;

  /// Rounds: at least 3, at most 21, else as many as fit into the budget. The first call warms up; one that takes
  /// too long is a measurement, and not repeated.
  Race(const std::vector<Contender>& contenders, const RaceOptions& options)
      : m_clock(options.clock), m_samples(contenders.size()) {
    constexpr double shortest_sample = 2e-3;
    std::vector<int> calls(contenders.size());  // to fill a sample; 0: not repeated
    double round_seconds = 0;
    for (std::size_t c = 0; c < contenders.size(); ++c) {
      const double first = sample_of(contenders[c]);
      if (first > options.longest_repeated) {
        m_samples[c].push_back(first);
        continue;
      }
      const double again = first < shortest_sample ? sample_of(contenders[c]) : first;
      calls[c] = static_cast<int>(std::max(1.0, std::ceil(shortest_sample / std::max(again, 1e-6))));
      round_seconds += std::max(first, shortest_sample);
    }
    const int rounds = static_cast<int>(std::clamp(options.budget / std::max(round_seconds, 1e-9), 3.0, 21.0));
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t c = 0; c < contenders.size(); ++c) {
        if (calls[c] == 0) continue;
        const double sample = sample_of([&] {
          for (int call = 0; call < calls[c]; ++call) contenders[c]();
        });
        m_samples[c].push_back(sample / calls[c]);
      }
    }
  }

  /// Median seconds of one call.
  double seconds(std::size_t contender) const { return median(m_samples[contender]); }

  /// How many times longer `a` takes than `b`: the median over the rounds that both ran.
  double ratio(std::size_t a, std::size_t b) const {
    if (m_samples[a].size() != m_samples[b].size()) return seconds(a) / seconds(b);
    std::vector<double> ratios(m_samples[a].size());
    std::transform(m_samples[a].begin(), m_samples[a].end(), m_samples[b].begin(), ratios.begin(), std::divides<>());
    return median(ratios);
  }

 private:
  double sample_of(const Contender& run) const {
    if (m_clock == Clock::wall) return seconds_of(run);
    const std::clock_t start = std::clock();
    run();
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  }

  Clock m_clock;
  std::vector<std::vector<double>> m_samples;  // of each contender, one a round
};

}  // namespace nprf::bench
