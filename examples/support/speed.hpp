// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "examples/support/heads.hpp"
#include "examples/support/measure.hpp"
#include "examples/support/progress.hpp"

namespace demo {

struct SpeedPlan {
  std::vector<Index> lengths;
  Index num_features;
  std::uint64_t seed;
};

struct SpeedRow {
  Index n;
  std::string position;
  double softmax_ms, ours_ms;
};

inline nprf::Vector<float> normal_vector(Index size, std::uint64_t seed) {
  return nprf::NormalDeviates(seed).matrix(size, 1).cast<float>();
}

/// n rows: those of x again and again, each entry with noise of its own.
inline Matrix<float> repeated(const Eigen::Ref<const Matrix<float>>& x, Index n, std::uint64_t seed) {
  Matrix<float> y = 0.05f * nprf::NormalDeviates(seed).matrix(n, x.cols()).cast<float>();
  for (Index i = 0; i < n; ++i) y.row(i) += x.row(i % x.rows());
  return y;
}

/// Times exact softmax and nprf on longer and longer sequences made of one head's tokens, and prints a row for each.
inline std::vector<SpeedRow> print_speed(const Arrays& arrays, const SpeedPlan& plan) {
  fmt::print(
      "3. Processor time for one head, one thread: d = {}, m = {}, float, q and k of length 1\n\n"
      "The tokens of head 0, repeated with a little noise. t5: 32 buckets; dense: a bias of its own for every lag.\n\n"
      "{:>7}{:>10}{:>14}{:>10}{:>9}{:>9}{:>9}{:>9}\n",
      arrays.queries.channels(), plan.num_features, "n", "position", "softmax ms", "ours ms", "ratio", "MiB", "engine",
      "error");

  const nprf::Normalization unit = nprf::Normalization::unit(1);
  std::vector<SpeedRow> rows;
  Progress progress("lengths", static_cast<Index>(2 * plan.lengths.size()));
  for (const Index n : plan.lengths) {
    const Matrix<float> q = repeated(arrays.queries[0], n, plan.seed + 1),
                        k = repeated(arrays.keys[0], n, plan.seed + 2),
                        v = repeated(arrays.values[0], n, plan.seed + 3);

    const auto measure = [&](const std::string& name, const auto& position) {
      const nprf::Attention attention(nprf::orf<float>(q.cols(), plan.num_features, plan.seed), position,
                                      {.normalization = unit});
      nprf::Report report;
      Matrix<float> ours, softmax;
      const double ours_ms = 1e3 * median_seconds([&] { ours = attention(q, k, v, {.report = &report}); });
      const double softmax_ms = 1e3 * median_seconds([&] {
                                  softmax = nprf::reference::softmax_attention<float>(
                                      q, k, v, position, nprf::Direction::bidirectional, unit);
                                });

      progress.erase();
      fmt::print("{:>7}{:>10}{:>14.2f}{:>10.2f}{:>9.2f}{:>9.1f}{:>9}{:>9.3f}\n", n, name, softmax_ms, ours_ms,
                 softmax_ms / ours_ms, static_cast<double>(report.workspace_bytes) / (1 << 20),
                 nprf::name(report.engine), relative_error(ours, softmax));
      rows.push_back({n, name, softmax_ms, ours_ms});
      progress.step();
    };

    measure("t5", nprf::t5_position<float>(normal_vector(32, plan.seed), nprf::Direction::bidirectional));
    measure("dense", nprf::RelativePosition<float>(normal_vector(2 * n - 1, plan.seed)));
  }

  progress.erase();
  const SpeedRow& last = rows.back();
  fmt::print("\nAt n = {} a dense bias takes {:.0f} ms, exact softmax {:.0f} ms: {:.1f} times {}.\n\n", last.n,
             last.ours_ms, last.softmax_ms, std::max(last.softmax_ms / last.ours_ms, last.ours_ms / last.softmax_ms),
             last.ours_ms < last.softmax_ms ? "faster" : "slower");
  return rows;
}

}  // namespace demo
