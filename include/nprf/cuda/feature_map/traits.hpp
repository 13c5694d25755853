// SPDX-License-Identifier: MIT
#pragma once

#include <limits>

namespace nprf::cuda {

enum class FeatureKind { positive, hyperbolic, trigonometric, elu, quadratic };

/// What plans and kernels know of a feature map, beside the formulas of projection.cuh and quadratic.cuh.
struct FeatureTraits {
  bool has_projections = false;    // features are functions of m projections w_f.x, else of the coordinates of x
  bool has_pairs = false;          // features f and m + f are functions of the same projection
  bool has_swapped_pairs = false;  // and the derivative of one of them is the other, up to the sign
  bool is_exponential = false;     // features are exponentials of projections
  bool is_positive = false;        // no feature is negative
  bool is_quadratic = false;       // features are those of a series (quadratic.cuh)
  bool estimates_exp = true;       // A B^T estimates exp(q.k)
  float sign_of_square = -1;       // of |x'|^2 / 2 in the logarithm of a row's factor; not for quadratic features
  double largest_half_radius = 0;  // up to this norm of tokens, features that are no exponentials fit half
};

constexpr FeatureTraits traits_of(FeatureKind kind) {
  switch (kind) {
    case FeatureKind::positive: return {.has_projections = true, .is_exponential = true, .is_positive = true};
    case FeatureKind::hyperbolic:
      return {.has_projections = true, .has_pairs = true, .is_exponential = true, .is_positive = true};
    case FeatureKind::trigonometric:
      return {.has_projections = true,
              .has_pairs = true,
              .has_swapped_pairs = true,
              .sign_of_square = 1,
              .largest_half_radius = std::numeric_limits<double>::infinity()};
    case FeatureKind::elu: return {.is_positive = true, .estimates_exp = false, .largest_half_radius = 2.9};
    case FeatureKind::quadratic: return {.is_quadratic = true};
  }
  return {};
}

}  // namespace nprf::cuda
