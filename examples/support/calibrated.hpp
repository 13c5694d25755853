// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/core.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "examples/support/head_arrays.hpp"
#include "examples/support/heads.hpp"
#include "examples/support/measure.hpp"
#include "examples/support/progress.hpp"
#include "examples/support/speed.hpp"

namespace demo {

struct CalibratedPlan {
  Index near;    // the width of the near field; the last row has twice as much
  Index length;  // of the sequence whose attention is timed
  std::uint64_t seed;
};

/// Attention over the second half of the text, at one normalization, against exact softmax.
class SecondHalf {
 public:
  SecondHalf(const Arrays& arrays, nprf::Normalization normalization)
      : m_arrays(arrays), m_normalization(normalization), m_first(arrays.queries.tokens() / 2) {}

  nprf::Normalization normalization() const { return m_normalization; }

  /// Maps for all heads, with constants from the first half.
  std::vector<nprf::CalibratedFeatures<float>> calibrated(Index num_features, Index near) const {
    const nprf::RelativePosition<float> position = falling_bias();
    return nprf::calibrate_heads<float>(view(m_arrays.queries, 0), view(m_arrays.keys, 0), view(m_arrays.values, 0),
                                        std::span(&position, 1),
                                        {.num_features = num_features, .near = near, .normalization = m_normalization})
        .features;
  }

  /// The error over all heads of one map, or of one for each head.
  template <class F>
  double error(std::vector<F> features, Index near) const {
    const nprf::MultiHeadAttention attention(std::move(features), falling_bias(),
                                             {.normalization = m_normalization, .near = near});
    const auto q = view(m_arrays.queries, m_first), k = view(m_arrays.keys, m_first),
               v = view(m_arrays.values, m_first);
    std::vector<float> y(static_cast<std::size_t>(q.heads * q.tokens * v.channels));
    nprf::Report report;
    attention(q, k, v, {y.data(), 1, q.heads, q.tokens, v.channels}, {.report = &report, .softmax_samples = q.tokens});
    return report.softmax_error;
  }

  /// That of no attention at all: every row the mean of the values.
  double error_of_mean_value() const {
    double difference = 0, size = 0;
    for (Index h = 0; h < m_arrays.queries.size(); ++h) {
      const auto half = [&](const Heads& x) { return x[h].bottomRows(x.tokens() - m_first); };
      const Matrix<float> exact =
          nprf::reference::softmax_attention<float>(half(m_arrays.queries), half(m_arrays.keys), half(m_arrays.values),
                                                    falling_bias(), nprf::Direction::bidirectional, m_normalization);
      const Matrix<float> mean = half(m_arrays.values).colwise().mean().replicate(exact.rows(), 1);
      difference += static_cast<double>((mean - exact).squaredNorm()), size += static_cast<double>(exact.squaredNorm());
    }
    return std::sqrt(difference / size);
  }

 private:
  // the tokens from `first` on
  static nprf::HeadsView<const float> view(const Heads& x, Index first) {
    const Index d = x.channels(), n = x.tokens();
    return {x[0].data() + first * d, 1, x.size(), n - first, d, {d, n * d, x.size() * n * d}};
  }

  const Arrays& m_arrays;
  nprf::Normalization m_normalization;
  Index m_first;
};

/// Prints how close calibrated maps with a near field are to softmax attention, beside random features.
inline void print_calibrated(const Arrays& arrays, const CalibratedPlan& plan) {
  const Index d = arrays.queries.channels();
  fmt::print(
      "2. Calibrated features and a near field\n\n"
      "Relative error in per cent over all heads for the second half of the text; calibrated maps and means are from\n"
      "the first half. The bias falls by 0.08 a token up to a distance of 40. Near: pairs of tokens less than so far\n"
      "apart are exact. ms: one head of {} tokens, one thread.\n\n"
      "{:<24}{:>9}{:>6}{:>9}{:>12}{:>9}\n",
      plan.length, "map", "features", "near", "norm 1", "own norms", "ms");

  const SecondHalf unit(arrays, nprf::Normalization::unit(1)), own(arrays, nprf::Normalization::none());
  const Matrix<float> q = repeated(arrays.queries[0], plan.length, plan.seed + 1),
                      k = repeated(arrays.keys[0], plan.length, plan.seed + 2),
                      v = repeated(arrays.values[0], plan.length, plan.seed + 3);
  const auto milliseconds = [&](const auto& features, Index near) {
    const nprf::Attention attention(features, falling_bias(), {.near = near});
    return 1e3 * median_seconds([&] { attention(q, k, v); });
  };
  Progress progress("calibrated maps", 7);
  const auto print = [&](const std::string& map, std::optional<Index> features, Index near, double unit_error,
                         double own_error, double ms) {
    progress.erase();
    fmt::print("{:<24}{:>9}{:>6}{:>9.2f}{:>12.1f}{:>9.2f}\n", map, features ? fmt::format("{}", *features) : "", near,
               100 * unit_error, 100 * own_error, ms);
    progress.step();
  };
  const auto random = [&](Index m) {
    const std::vector features{nprf::orf<float>(d, m, plan.seed)};
    print("orf", m, 0, unit.error(features, 0), own.error(features, 0), milliseconds(features[0], 0));
  };
  const auto calibrated = [&](Index num_features, Index near) {
    const auto features = unit.calibrated(num_features, near);
    print("calibrated", features[0].output_dim(), near, unit.error(features, near),
          own.error(own.calibrated(num_features, near), near), milliseconds(features[0], near));
  };
  random(d);
  random(4 * d);
  const std::vector taylor{nprf::TaylorFeatures<float>({.input_dim = d})};
  print("taylor", d + 1, plan.near, unit.error(taylor, plan.near), own.error(taylor, plan.near),
        milliseconds(taylor[0], plan.near));
  const Index second_order = 1 + d + 36;  // of 8 directions
  calibrated(d + 1, 0);
  calibrated(d + 1, plan.near);
  calibrated(second_order, plan.near);
  calibrated(second_order, 2 * plan.near);
  progress.erase();
  const double softmax_ms =
      1e3 * median_seconds([&] {
        nprf::reference::softmax_attention<float>(q, k, v, falling_bias(), nprf::Direction::bidirectional,
                                                  nprf::Normalization::unit(1));
      });
  fmt::print("{:<24}{:>9}{:>6}{:>9.2f}{:>12.1f}\n", "mean of v", "", "", 100 * unit.error_of_mean_value(),
             100 * own.error_of_mean_value());
  fmt::print("{:<24}{:>9}{:>6}{:>9}{:>12}{:>9.2f}\n\n", "exact softmax", "", "", "", "", softmax_ms);
}

}  // namespace demo
