// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <type_traits>
#include <vector>

#include "nprf/core/error.hpp"
#include "nprf/cuda/device/arithmetic.cuh"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/feature_map/constants.cuh"
#include "nprf/cuda/feature_map/tensor_projection.cuh"
#include "nprf/cuda/model.hpp"

/// The constants of feature maps in the layouts that device code reads.
namespace nprf::cuda {

/// Sizes of the rows w_f of all projections. `longest` is the largest |w_f|. `from_mean` is the largest |w_f - mean| +
/// |mean|, where `mean` is the mean of the rows of a map, or 0 for features in pairs, which are functions of w_f and of
/// -w_f. Both are 0 without projections. O(m d) for each map.
struct ProjectionSizes {
  double longest = 0, from_mean = 0;
};
inline ProjectionSizes projection_sizes(const AttentionModel& model) {
  ProjectionSizes sizes;
  for (const FeatureModel& one : model.features) {
    const auto m = static_cast<std::size_t>(one.m), d = static_cast<std::size_t>(one.d);
    const auto w = [&](std::size_t f, std::size_t k) { return static_cast<double>(one.projection[f * d + k]); };
    std::vector<double> mean(d, 0.0);
    for (std::size_t f = 0; f < m && !traits_of(one.kind).has_pairs; ++f)
      for (std::size_t k = 0; k < d; ++k) mean[k] += w(f, k) / static_cast<double>(m);
    double square_of_mean = 0, most = 0;
    for (const double x : mean) square_of_mean += x * x;
    for (std::size_t f = 0; f < m; ++f) {
      double square = 0, from_mean = 0;
      for (std::size_t k = 0; k < d; ++k) {
        square += w(f, k) * w(f, k);
        from_mean += (w(f, k) - mean[k]) * (w(f, k) - mean[k]);
      }
      sizes.longest = std::max(sizes.longest, std::sqrt(square));
      most = std::max(most, std::sqrt(from_mean));
    }
    sizes.from_mean = std::max(sizes.from_mean, most + std::sqrt(square_of_mean));
  }
  return sizes;
}

/// How keys far from a query contribute to its row: by tiles of keys, or by states of chunks of keys (toeplitz/banded).
enum class FarKeys { in_tiles, in_states };

/// Whether features that do not depend on the largest log-scale of the keys can be stored in half, multiplied by 2^14
/// (device/scales.cuh): whether the features are below 4, and the error bound of weights is below that of weights
/// from features in bfloat16.
///
/// In half a feature has a relative error of up to 2^-11, or an absolute one of up to 2^-39. Exponential features of
/// rows of norm R are A_f = exp(w_f.q - max_g w_g.q) and B_f = exp(w_f.k - R W), with W = max |w_f|. They are at most
/// 1, so that the absolute errors change a product of r features by up to 2^-38 r. The product is at least
///
///     sum_f A_f B_f >= r exp(mean.(q + k) - max_g w_g.q - R W) >= r exp(-R (max_f |w_f - mean| + |mean| + W))
///
/// by the inequality of the arithmetic and the geometric mean. Let X be minus the last exponent: X = R (max_f |w_f -
/// mean| + |mean| + W). Relative to the product the absolute errors of features are up to 2^-38 exp(X). States are
/// rounded to half, too; their absolute errors are up to 2^-39 exp(X). With the relative errors, of up to 4 * 2^-11,
/// the error of a weight is below the 3 * 2^-8 of bfloat16 if X <= 21. If weights of a tail fall with the distance, the
/// features of 128 keys are rounded in proportion to the largest weight, and their errors may all be 2^-38: for X <= 16
/// these errors are below 2^-7 together. These are worst cases, of rows that are parallel to some w_f. X is about 20
/// for 64 dimensions and R = 1, where features of keys are 2^-14 on average.
///
/// Elu features of rows of norm R are from exp(-R) to 1 + R. Errors of trigonometric features, which are at most 1, are
/// relative to |phi(q)| |phi(k)| for any type.
inline bool features_fit_half(const AttentionModel& model, FarKeys far_keys) {
  const FeatureModel& map = model.features.front();
  const double radius = model.radius;
  if (!(radius > 0) || !map.centring.is_empty()) return false;
  if (const FeatureTraits traits = traits_of(map.kind); !traits.is_exponential)
    return radius <= traits.largest_half_radius;
  const auto [longest, from_mean] = projection_sizes(model);
  // a key of norm 0 has features exp(R^2 / 2 - R W), which are at most 1 if R <= 2 W
  const bool weights_fall = far_keys == FarKeys::in_states && model.positions.front().linear;
  return radius <= 2 * longest && radius * (from_mean + longest) <= (weights_fall ? 16 : 21);
}

/// The projections of a model in the parts that tensor cores multiply (feature_map/tensor_projection.cuh), on the
/// device, for tokens of one type. There may be no parts: then tensor cores do not compute projections.
class ProjectionParts {
 public:
  ProjectionParts() = default;

  /// The parts for tokens of type T. There are none if the device has no instruction for T or the kernels were not
  /// compiled for such a device, if the features have no projections or a centring, if d is not a multiple of 16, or if
  /// features are in pairs and m is not a multiple of 8. Waits for the stream. Throws BackendError if CUDA reports an
  /// error. O(m d) for each map.
  template <MmaFactor T>
  static ProjectionParts of(const std::vector<FeatureModel>& maps, const Device& device, cudaStream_t stream) {
    constexpr int least = std::is_same_v<T, __half> ? 75 : 80;
    ProjectionParts parts;
    if (!are_whole_groups(maps.front()) || device.capability < least || compiled_for(subnormal_kernel<0>) < least)
      return parts;
    ProjectionFragments& fragments = std::is_same_v<T, __half> ? parts.m_half : parts.m_bfloat16;
    fragments.unit = unit_of_parts<T>(largest_entry(maps));
    fragments.stride = maps.size() == 1 ? 0 : ProjectionFragments::size(maps.front().m, maps.front().d);
    std::vector<uint4> all;
    for (const FeatureModel& one : maps) append_fragments<T>(all, one.projection.data(), one.m, one.d, fragments.unit);
    parts.m_memory = DeviceMemory(all.size() * sizeof(uint4));
    check(
        cudaMemcpyAsync(parts.m_memory.data(), all.data(), all.size() * sizeof(uint4), cudaMemcpyHostToDevice, stream),
        "copying projections");
    check(cudaStreamSynchronize(stream), "copying projections");
    fragments.values = static_cast<const uint4*>(parts.m_memory.data());
    return parts;
  }

  /// The parts for tokens of type S; null if there are none or they are for another type.
  template <Storage S>
  ProjectionFragments fragments() const {
    if constexpr (MmaFactor<S>)
      return std::is_same_v<S, __half> ? m_half : m_bfloat16;
    else
      return {};
  }

 private:
  static bool are_whole_groups(const FeatureModel& map) {
    const FeatureTraits traits = traits_of(map.kind);
    return traits.has_projections && map.centring.is_empty() && map.d % ProjectionFragments::step == 0 &&
           (!traits.has_pairs || map.m % ProjectionFragments::features_of_lane == 0);
  }
  static float largest_entry(const std::vector<FeatureModel>& maps) {
    float largest = 0;
    for (const FeatureModel& one : maps)
      for (const float entry : one.projection) largest = std::max(largest, std::abs(entry));
    return largest;
  }

  DeviceMemory m_memory;
  ProjectionFragments m_half, m_bfloat16;
};

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

/// The constants of quadratic features in the layout of DeviceQuadratic: for each map log_scale, mean_square
/// (FeatureModel::second numbers) and curvature (d). Empty for other features.
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
