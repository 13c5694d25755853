// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "examples/support/feature_maps.hpp"
#include "examples/support/heads.hpp"
#include "examples/support/measure.hpp"
#include "examples/support/progress.hpp"

namespace demo {

/// Attention over a user's own .npy files.
struct OwnFiles {
  std::filesystem::path queries, keys, values, bias, out;
  std::string map = "orf", normalization = "unit";
  Index features = 64, near = 0, sinks = 0;
  bool causal = false;
  std::uint64_t seed = 0;

  bool given() const { return !(queries.empty() && keys.empty() && values.empty()); }
};

/// One position a head: a table (2R+1) for all of them, or (heads, 2R+1); no file stands for a bias of zero.
inline std::vector<nprf::RelativePosition<float>> read_positions(const std::filesystem::path& path, Index heads) {
  const auto count = static_cast<std::size_t>(heads);
  if (path.empty()) return {count, nprf::RelativePosition<float>(nprf::Vector<float>::Zero(1))};

  const npy::Array<float> array = npy::read<float>(path);
  const bool shared = array.shape.size() == 1;
  require(shared || (array.shape.size() == 2 && array.shape[0] == count), path.string(),
          ": expected a bias of shape (2R+1,) or (", heads, ", 2R+1), got ", shape_text(array.shape));
  const auto scalars = static_cast<Index>(array.shape.back());
  require(scalars % 2 == 1, path.string(), ": expected an odd number of scalars, 2R+1 for the lags -R..R, got ",
          scalars);

  std::vector<nprf::RelativePosition<float>> positions;
  for (Index h = 0; h < heads; ++h) {
    const Eigen::Map<const nprf::Vector<float>> b(array.values.data() + (shared ? 0 : h * scalars), scalars);
    try {
      positions.emplace_back(b);
    } catch (const nprf::InvalidArgument& error) {
      throw nprf::InvalidArgument(path.string() + ": " + error.what());
    }
  }
  return positions;
}

/// What the calls for all heads did together.
struct Summary {
  std::map<std::string, Index> engines;  // how many heads each one ran
  Index repaired_rows = 0, indefinite_rows = 0, empty_rows = 0, rows_not_finite = 0;
  std::size_t workspace_bytes = 0;  // the largest
  double seconds = 0;
  std::vector<double> errors;  // against softmax, one a head, where they were computed

  void add(const nprf::Report& report, const Eigen::Ref<const Matrix<float>>& y) {
    ++engines[std::string(nprf::name(report.engine))];
    repaired_rows += report.repaired_rows;
    indefinite_rows += report.indefinite_rows;
    empty_rows += report.empty_rows;
    workspace_bytes = std::max(workspace_bytes, report.workspace_bytes);
    for (Index i = 0; i < y.rows(); ++i) rows_not_finite += y.row(i).allFinite() ? 0 : 1;
  }
};

inline void print(const Summary& summary, const Heads& y, bool estimates_softmax) {
  std::vector<std::string> engines;
  for (const auto& [engine, heads] : summary.engines) engines.push_back(fmt::format("{} ({})", engine, heads));
  fmt::print("\nheads    {} in {:.1f} ms of processors, engine {}, workspace {:.2f} MiB\n", y.size(),
             1e3 * summary.seconds, fmt::join(engines, ", "), static_cast<double>(summary.workspace_bytes) / (1 << 20));
  fmt::print("rows     {}, of which recomputed {}, indefinite {}, empty {}, not finite {}\n", y.size() * y.tokens(),
             summary.repaired_rows, summary.indefinite_rows, summary.empty_rows, summary.rows_not_finite);
  if (summary.errors.empty()) {
    fmt::print("error    not computed: exact softmax would take too long\n");
  } else {
    const auto [least, most] = std::minmax_element(summary.errors.begin(), summary.errors.end());
    double mean = 0;
    for (const double error : summary.errors) mean += error / static_cast<double>(summary.errors.size());
    fmt::print("error    {:.3g} relative to exact softmax (heads: {:.3g} to {:.3g}){}\n", mean, *least, *most,
               estimates_softmax ? "" : "; elu has a kernel of its own and does not estimate it");
  }
}

/// In how many coordinates a Taylor map of at most m features, or of first order, has second-order features.
inline Index taylor_directions(Index channels, Index m) {
  Index s = 0;
  while (s < channels && 1 + channels + (s + 1) * (s + 2) / 2 <= m) ++s;
  return s;
}

inline std::string settings_of_map(const OwnFiles& files, Index channels) {
  if (files.map == "elu") return "";
  if (files.map == "taylor")
    return fmt::format(", to second order in {} coordinates", taylor_directions(channels, files.features));
  if (files.map == "calibrated")
    return fmt::format(" on the first half of the tokens, which the error includes; at most {} features",
                       files.features);
  return fmt::format(", m = {}, seed {}", files.features, files.seed);
}

inline void print(const OwnFiles& files, const Arrays& arrays, const nprf::RelativePosition<float>& position) {
  fmt::print("queries  {} {}\n", files.queries.string(), shape_text(arrays.queries.shape()));
  fmt::print("keys     {} {}\n", files.keys.string(), shape_text(arrays.keys.shape()));
  fmt::print("values   {} {}\n", files.values.string(), shape_text(arrays.values.shape()));
  fmt::print("bias     {}\n", files.bias.empty() ? "none"
                                                 : fmt::format("{}, lags {} to {}", files.bias.string(),
                                                               -position.reach(), position.reach()));
  fmt::print("map      {}{}; {}; {}\n", files.map, settings_of_map(files, arrays.queries.channels()),
             files.normalization == "unit" ? "q and k of length 1" : "q and k at their own norms",
             files.causal ? "causal" : "bidirectional");
  if (files.near > 0) fmt::print("near     keys less than {} tokens away have exact weights\n", files.near);
  if (files.sinks > 0) fmt::print("sinks    the first {} keys have exact weights\n", files.sinks);
}

inline nprf::AttentionOptions attention_options(const OwnFiles& files) {
  return {.direction = files.causal ? nprf::Direction::causal : nprf::Direction::bidirectional,
          .normalization = files.normalization == "unit" ? nprf::Normalization::unit(1) : nprf::Normalization::none(),
          .near = files.near,
          .sinks = files.sinks};
}

/// Calls use(h, map) with the feature map of each head.
template <class Use>
void with_map_of_each_head(const OwnFiles& files, const Arrays& arrays,
                           const std::vector<nprf::RelativePosition<float>>& positions, Use&& use) {
  const auto& [q, k, v] = arrays;
  if (files.map == "calibrated") {
    const nprf::AttentionOptions options = attention_options(files);
    for (Index h = 0; h < q.size(); ++h)
      use(h, nprf::calibrate<float>(q[h], k[h], v[h], positions[static_cast<std::size_t>(h)],
                                    {.num_features = files.features,
                                     .near = files.near,
                                     .sinks = files.sinks,
                                     .direction = options.direction,
                                     .normalization = options.normalization,
                                     .seed = files.seed})
                 .features);
    return;
  }
  const auto same_for_all = [&](const auto& features) {
    for (Index h = 0; h < q.size(); ++h) use(h, features);
  };
  if (files.map == "taylor")
    same_for_all(nprf::TaylorFeatures<float>(
        {.input_dim = q.channels(), .directions = taylor_directions(q.channels(), files.features)}));
  else
    with_feature_map(files.map, q.channels(), files.features, files.seed, same_for_all);
}

/// y = attention(q, k, v), head by head.
inline Summary attend(const OwnFiles& files, const Arrays& arrays,
                      const std::vector<nprf::RelativePosition<float>>& positions, Heads& y) {
  const auto& [q, k, v] = arrays;
  const nprf::AttentionOptions options = attention_options(files);
  constexpr double longest_comparison = 3e8;  // pairs of tokens
  const bool compares =
      static_cast<double>(q.size()) * static_cast<double>(q.tokens()) * static_cast<double>(k.tokens()) <=
      longest_comparison;

  Summary summary;
  Progress progress("heads", q.size());
  with_map_of_each_head(files, arrays, positions, [&](Index h, const auto& features) {
    const auto& position = positions[static_cast<std::size_t>(h)];
    const nprf::Attention attention(features, position, options);
    nprf::Report report;
    summary.seconds += processor_seconds([&] { y[h] = attention(q[h], k[h], v[h], {.report = &report}); });
    summary.add(report, y[h]);
    if (compares) {
      const Matrix<float> softmax = nprf::reference::softmax_attention<float>(q[h], k[h], v[h], position,
                                                                              options.direction, options.normalization);
      summary.errors.push_back(relative_error(y[h], softmax));
    }
    progress.step();
  });
  return summary;
}

inline void run_own_files(const OwnFiles& files) {
  std::vector<std::string> missing;
  if (files.queries.empty()) missing.push_back("--queries");
  if (files.keys.empty()) missing.push_back("--keys");
  if (files.values.empty()) missing.push_back("--values");
  require(missing.empty(), "--queries, --keys, --values: expected all three, got no ",
          fmt::format("{}", fmt::join(missing, " and no ")));
  if (!files.out.empty()) require_writable(files.out, "--out");

  const Arrays arrays = read_arrays(files.queries, files.keys, files.values);
  const auto& [q, k, v] = arrays;
  const auto positions = read_positions(files.bias, q.size());
  print(files, arrays, positions.front());

  Heads y(q.size(), q.tokens(), v.channels(), q.has_head_axis() || k.has_head_axis() || v.has_head_axis());
  const Summary summary = attend(files, arrays, positions, y);
  print(summary, y, files.map != "elu");
  if (files.out.empty()) return;
  y.write(files.out);
  fmt::print("wrote    {} {} float32\n", files.out.string(), shape_text(y.shape()));
}

}  // namespace demo
