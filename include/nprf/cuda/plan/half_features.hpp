// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "nprf/cuda/model.hpp"

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
/// (device/half_range.cuh): whether the features are below 4, and the error bound of weights is below that of weights
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

}  // namespace nprf::cuda
