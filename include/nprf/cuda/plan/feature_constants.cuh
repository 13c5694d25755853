// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "nprf/core/error.hpp"
#include "nprf/cuda/feature_map/centring.cuh"
#include "nprf/cuda/feature_map/quadratic.cuh"
#include "nprf/cuda/model.hpp"

/// The constants of feature maps in the layouts that device code reads.
namespace nprf::cuda {

/// Throws InvalidArgument if the constants of quadratic features or of a centring do not fit the map's d.
inline void check_constants(const FeatureModel& one) {
  const auto check_size = [&](const std::vector<float>& x, int expected, const char* name) {
    require(static_cast<std::ptrdiff_t>(x.size()) == expected, name, ": expected ", expected, " scalars, got ",
            x.size());
  };
  if (traits_of(one.kind).is_quadratic) {
    require(0 <= one.second && one.second <= one.first && one.first <= one.d,
            "first and second: expected 0 <= second <= first <= ", one.d, " (input_dim), got ", one.first, " and ",
            one.second);
    check_size(one.mean_square, one.second, "mean_square");
    if (!one.curvature.empty()) check_size(one.curvature, one.d, "curvature");
  }
  if (one.centring.is_empty()) return;
  require(traits_of(one.kind).estimates_exp, "centring: expected a feature map that estimates exp, got elu");
  check_size(one.centring.query_mean, one.d, "query_mean");
  check_size(one.centring.key_mean, one.d, "key_mean");
  check_size(one.centring.query_axes, one.d * one.d, "query_axes");
  check_size(one.centring.key_axes, one.d * one.d, "key_axes");
}

/// Appends the d values of a row, then zeros: d_padded values in all.
inline void append_padded(std::vector<float>& all, std::vector<float>::const_iterator row, int d, int d_padded) {
  all.insert(all.end(), row, row + d);
  all.resize(all.size() + static_cast<std::size_t>(d_padded - d), 0.0f);
}

/// Appends the rows of the projection of one map, transposed in groups of 8 rows: [group, d_padded, 8]. Copies of the
/// last row fill up the last group.
inline void append_groups(std::vector<float>& all, const FeatureModel& one, int d_padded) {
  constexpr int group = 8;
  for (int first = 0; first < one.m; first += group)
    for (int k = 0; k < d_padded; ++k)
      for (int i = 0; i < group; ++i) {
        const auto row = static_cast<std::size_t>(std::min(first + i, one.m - 1)), d = static_cast<std::size_t>(one.d);
        all.push_back(k < one.d ? one.projection[row * d + static_cast<std::size_t>(k)] : 0.0f);
      }
}

/// The constants of all centrings in the layout of DeviceCentring: [map, queries then keys, DeviceCentring::size(..)].
/// Empty without a centring.
inline std::vector<float> centring_values(const std::vector<FeatureModel>& maps, int d_padded) {
  std::vector<float> all;
  for (const FeatureModel& one : maps)
    for (const bool queries : {true, false}) {
      const CentringModel& from = one.centring;
      if (from.is_empty()) return {};
      const std::vector<float>&mean = queries ? from.query_mean : from.key_mean,
            &linear = queries ? from.key_mean : from.query_mean, &axes = queries ? from.query_axes : from.key_axes;
      const std::size_t end = all.size() + DeviceCentring::size(one.d, d_padded);
      for (auto row = axes.begin(); row != axes.end(); row += one.d) append_padded(all, row, one.d, d_padded);
      append_padded(all, mean.begin(), one.d, d_padded);
      append_padded(all, linear.begin(), one.d, d_padded);
      all.push_back(queries ? 0.0f : -std::inner_product(mean.begin(), mean.end(), linear.begin(), 0.0f));
      all.resize(end, 0.0f);
    }
  return all;
}

/// The constants of quadratic features in the layout of DeviceQuadratic: for each map log_scale, mean_square (second)
/// and curvature (d). Empty for other features.
inline std::vector<float> quadratic_values(const std::vector<FeatureModel>& maps) {
  std::vector<float> all;
  for (const FeatureModel& one : maps) {
    if (!traits_of(one.kind).is_quadratic) continue;
    all.push_back(one.log_scale);
    all.insert(all.end(), one.mean_square.begin(), one.mean_square.end());
    all.insert(all.end(), one.curvature.begin(), one.curvature.end());
    if (one.curvature.empty()) all.resize(all.size() + static_cast<std::size_t>(one.d), 0.0f);
  }
  return all;
}

/// The up to two coordinates that each quadratic feature depends on (r), in the order of feature_map/quadratic_row.hpp;
/// QuadraticConstants::none stands for no coordinate. Empty for other features.
inline std::vector<uint2> quadratic_coordinates(const FeatureModel& one) {
  constexpr unsigned none = QuadraticConstants::none;
  std::vector<uint2> all;
  if (!traits_of(one.kind).is_quadratic) return all;
  const unsigned first = static_cast<unsigned>(one.first), second = static_cast<unsigned>(one.second);
  all.push_back({none, none});
  for (unsigned l = 0; l < first; ++l) all.push_back({l, none});
  for (unsigned l = 0; l < second; ++l)
    for (unsigned k = l; k < second; ++k) all.push_back({l, k});
  return all;
}

}  // namespace nprf::cuda
