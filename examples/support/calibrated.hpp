// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "examples/support/heads.hpp"
#include "examples/support/measure.hpp"
#include "examples/support/progress.hpp"
#include "examples/support/second_half.hpp"
#include "examples/support/speed.hpp"

namespace demo {

struct CalibratedPlan {
  Index near;    // the width of the near field; the last row has twice as much
  Index length;  // of the sequence whose attention is timed
  std::uint64_t seed;
};

/// Prints how close calibrated maps with a near field are to softmax attention, beside random features.
inline void print_calibrated(const Arrays& arrays, const CalibratedPlan& plan) {
  const Index d = arrays.queries.channels();
  fmt::print(
      "2. Calibrated features and a near field\n\n"
      "Relative error in per cent over all heads for the second half of the text; calibrated maps and means are from\n"
      "the first half. The bias falls by 0.08 a token up to a distance of 40. Near: pairs of tokens less than so far\n"
      "apart are exact. ms: processor time of one head of {} tokens, one thread.\n\n"
      "{:<24}{:>9}{:>6}{:>9}{:>12}{:>9}\n",
      plan.length, "map", "features", "near", "norm 1", "own norms", "ms");

  const auto second_half = [&](nprf::Normalization normalization) {
    return SecondHalf(arrays.queries.view(), arrays.keys.view(), arrays.values.view(), normalization);
  };
  const SecondHalf unit = second_half(nprf::Normalization::unit(1)), own = second_half(nprf::Normalization::none());
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
    print("orf", m, 0, unit.report(features, 0).softmax_error, own.report(features, 0).softmax_error,
          milliseconds(features[0], 0));
  };
  const auto calibrated = [&](Index num_features, Index near) {
    const auto features = unit.calibrated(num_features, near);
    print("calibrated", features[0].output_dim(), near, unit.report(features, near).softmax_error,
          own.report(own.calibrated(num_features, near), near).softmax_error, milliseconds(features[0], near));
  };
  random(d);
  random(4 * d);
  const std::vector taylor{nprf::TaylorFeatures<float>({.input_dim = d})};
  print("taylor", d + 1, plan.near, unit.report(taylor, plan.near).softmax_error,
        own.report(taylor, plan.near).softmax_error, milliseconds(taylor[0], plan.near));
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
  const auto print_baseline = [](const char* name, double error, double own_error) {
    fmt::print("{:<24}{:>9}{:>6}{:>9.2f}{:>12.1f}\n", name, "", "", 100 * error, 100 * own_error);
  };
  print_baseline("bias alone, without q.k", unit.error_of_bias_alone(), own.error_of_bias_alone());
  print_baseline("mean of v", unit.error_of_mean_value(), own.error_of_mean_value());
  fmt::print("{:<24}{:>9}{:>6}{:>9}{:>12}{:>9.2f}\n\n", "exact softmax", "", "", "", "", softmax_ms);
}

}  // namespace demo
