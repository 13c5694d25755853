// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "examples/support/feature_maps.hpp"
#include "examples/support/heads.hpp"
#include "examples/support/measure.hpp"
#include "examples/support/progress.hpp"

namespace demo {

struct QualityPlan {
  std::vector<Index> nums_features;
  std::uint64_t seeds, first_seed;
};

/// Softmax attention of all heads under one normalization, and how far others are from it.
class Target {
 public:
  Target(const Arrays& arrays, nprf::Normalization normalization) : m_arrays(arrays), m_normalization(normalization) {
    for (Index h = 0; h < arrays.queries.size(); ++h)
      m_softmax.push_back(nprf::reference::softmax_attention<float>(arrays.queries[h], arrays.keys[h], arrays.values[h],
                                                                    nprf::NoPosition<float>{},
                                                                    nprf::Direction::bidirectional, normalization));
  }

  /// Mean over the heads of error(h, softmax attention of head h).
  template <class Error>
  double mean(Error&& error) const {
    double sum = 0;
    for (std::size_t h = 0; h < m_softmax.size(); ++h) sum += error(static_cast<Index>(h), m_softmax[h]);
    return sum / static_cast<double>(m_softmax.size());
  }

  /// The error of a feature map; rows whose denominator is not positive are added to indefinite_rows.
  template <class F>
  double error_of(const F& features, Index& indefinite_rows) const {
    const nprf::Attention attention(features, nprf::NoPosition<float>{}, {.normalization = m_normalization});
    return mean([&](Index h, const Matrix<float>& softmax) {
      nprf::Report report;
      const Matrix<float> y = attention(m_arrays.queries[h], m_arrays.keys[h], m_arrays.values[h], {.report = &report});
      indefinite_rows += report.indefinite_rows;
      return relative_error(y, softmax);
    });
  }

  /// The error of no attention at all: every row the mean of v.
  double error_of_mean_value() const {
    return mean([&](Index h, const Matrix<float>& softmax) {
      const Matrix<float> y = m_arrays.values[h].colwise().mean().replicate(softmax.rows(), 1);
      return relative_error(y, softmax);
    });
  }

  double distance(const Target& other) const {
    return mean([&](Index h, const Matrix<float>& softmax) {
      return relative_error(other.m_softmax[static_cast<std::size_t>(h)], softmax);
    });
  }

 private:
  const Arrays& m_arrays;
  nprf::Normalization m_normalization;
  std::vector<Matrix<float>> m_softmax;  // (n_q,d_v) a head
};

inline double mean_norm(const Heads& x) {
  double sum = 0;
  for (Index h = 0; h < x.size(); ++h) sum += static_cast<double>(x[h].rowwise().norm().mean());
  return sum / static_cast<double>(x.size());
}

/// The relative errors of all maps under one normalization.
struct Errors {
  std::vector<std::vector<double>> of_map;  // (map, m), in the order of random_maps and of the plan
  double mean_value;
  double best = std::numeric_limits<double>::infinity();
  std::string best_name;
  Index indefinite_rows = 0, rows_of_trf = 0;
};

inline Errors measure_quality(const Target& target, const Arrays& arrays, const QualityPlan& plan, Progress& progress) {
  Errors errors{.of_map = {}, .mean_value = target.error_of_mean_value(), .best_name = {}};
  for (const std::string& map : random_maps) {
    std::vector<double>& row = errors.of_map.emplace_back();
    for (const Index m : plan.nums_features) {
      double sum = 0;
      for (std::uint64_t s = 0; s < plan.seeds; ++s)
        sum += with_feature_map(map, arrays.queries.channels(), m, plan.first_seed + s, [&](const auto& features) {
          return target.error_of(features, errors.indefinite_rows);
        });
      row.push_back(sum / static_cast<double>(plan.seeds));
      if (row.back() < errors.best) {
        errors.best = row.back();
        errors.best_name = fmt::format("{}, m = {}", map, m);
      }
      progress.step();
    }
  }
  errors.rows_of_trf = arrays.queries.size() * arrays.queries.tokens() * static_cast<Index>(plan.seeds) *
                       static_cast<Index>(plan.nums_features.size());
  return errors;
}

inline void print_errors(const Errors& own, const Errors& unit, const QualityPlan& plan) {
  const std::size_t width = 9 * plan.nums_features.size();
  fmt::print("{:<12}{:>{}}    {:>{}}\n", "", "at the model's own norms", width, "q and k of length 1", width);

  std::string head;
  for (const Index m : plan.nums_features) head += fmt::format("{:>9}", fmt::format("m = {}", m));
  fmt::print("{:<12}{}    {}\n", "map", head, head);

  const auto cells = [](const std::vector<double>& errors) {
    std::string row;
    for (const double error : errors) row += fmt::format("{:>9.1f}", 100 * error);
    return row;
  };
  for (std::size_t i = 0; i < random_maps.size(); ++i)
    fmt::print("{:<12}{}    {}\n", random_maps[i], cells(own.of_map[i]), cells(unit.of_map[i]));
  fmt::print("{:<12}{:>{}.1f}    {:>{}.1f}\n\n", "mean of v", 100 * own.mean_value, width, 100 * unit.mean_value,
             width);
}

/// Prints how far each feature map is from softmax attention, at the arrays' own norms and normalised.
inline void print_quality(const Arrays& arrays, const QualityPlan& plan) {
  fmt::print(
      "1. Random features against exact softmax\n\n"
      "Relative error of the output in per cent, mean over {} heads and {} seeds. trf and hyperbolic make two "
      "features\n"
      "of each of the m random vectors. Mean of v: no attention at all, the same row for every query.\n\n",
      arrays.queries.size(), plan.seeds);
  const Target own_target(arrays, nprf::Normalization::none()), unit_target(arrays, nprf::Normalization::unit(1));
  Progress progress("feature maps", static_cast<Index>(2 * random_maps.size() * plan.nums_features.size()));
  const Errors own = measure_quality(own_target, arrays, plan, progress);
  const Errors unit = measure_quality(unit_target, arrays, plan, progress);
  progress.erase();

  print_errors(own, unit, plan);
  fmt::print(
      "At the model's own norms (|q| {:.1f}, |k| {:.1f} on average) the best map ({}) has an error of {:.1f} %\n"
      "and the mean of v one of {:.1f} %; with q and k of length 1 the best ({}) has {:.1f} %, the mean of v {:.1f} "
      "%.\n",
      mean_norm(arrays.queries), mean_norm(arrays.keys), own.best_name, 100 * own.best, 100 * own.mean_value,
      unit.best_name, 100 * unit.best, 100 * unit.mean_value);
  if (unit.best / unit.mean_value < own.best / own.mean_value)
    fmt::print(
        "So random features need normalised q and k, as Luo et al. (2021) find. A model has to be trained with them:\n"
        "normalising these moves their exact attention by {:.0f} %.\n",
        100 * own_target.distance(unit_target));
  if (own.indefinite_rows + unit.indefinite_rows > 0)
    fmt::print(
        "The signed features of trf gave a denominator that is not positive to {} of {} rows at their own norms, and\n"
        "to {} normalised ones; their errors count as they are.\n",
        own.indefinite_rows, own.rows_of_trf, unit.indefinite_rows);
  fmt::print("\n");
}

}  // namespace demo
