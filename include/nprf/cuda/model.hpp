// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "nprf/core/engine.hpp"

/// A description of an attention in plain numbers. model_of (plan/model_of.hpp) makes it from a CPU attention, and an
/// AttentionPlan (plan/attention_plan.cuh) reads it. It includes no matrix library, so that device code compiles
/// without one.
namespace nprf::cuda {

enum class FeatureKind { positive, hyperbolic, trigonometric, elu, quadratic };

/// What plans and kernels know of a feature map, beside the formulas in feature_map (projection.cuh, constants.cuh).
struct FeatureTraits {
  bool has_projections = false;    // features are functions of m projections w_f.x, else of the coordinates of x
  bool has_pairs = false;          // features f and m + f are functions of the same projection
  bool has_swapped_pairs = false;  // and the derivative of one of them is the other, up to the sign
  bool is_exponential = false;     // features are exponentials of projections
  bool is_positive = false;        // no feature is negative
  bool is_quadratic = false;       // features are those of a series
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

/// The constants of centred queries and keys (feature_map/centred.hpp): query_mean is nu (d), key_mean is mu (d),
/// query_axes is A (d,d), and key_axes is A^-T (d,d), both row by row. All are empty if there is no centring.
struct CentringModel {
  std::vector<float> query_mean, key_mean, query_axes, key_axes;

  bool is_empty() const { return query_axes.empty(); }
};

/// The feature map of one head; see feature_map/.
struct FeatureModel {
  FeatureKind kind = FeatureKind::positive;
  int d = 0;                      // dimension of queries and keys
  int m = 0;                      // rows of the projection; 0 without one
  std::vector<float> projection;  // (m,d)
  // the members up to log_scale are for quadratic features (feature_map/quadratic_row.hpp)
  int first = 0, second = 0;         // coordinates with features of first and of second order
  std::vector<float> mean_square{};  // (second)
  std::vector<float> curvature{};    // (d), or empty for zeros
  float log_scale = 0;
  CentringModel centring{};  // applied to queries and keys before their features are computed

  /// r, the number of features of a token.
  int features() const {
    const FeatureTraits map = traits_of(kind);
    if (map.has_projections) return map.has_pairs ? 2 * m : m;
    return map.is_quadratic ? 1 + first + second * (second + 1) / 2 : d;
  }
};

/// The position of one head: b[lag] = parameters[index[lag - first]], or b[lag] = -parameters[0] |lag| if linear. A lag
/// beyond either end of `index` uses the index at that end, unless the position is bounded.
///
/// In a grid tokens have slots of their own, and lags are differences of slots. The first E = `outside` tokens have no
/// slot. The last E * (E + 2) parameters are the biases of the border, in the order of Border (core/slots.hpp).
struct PositionModel {
  std::vector<float> parameters;  // in any order, since `index` refers to them; empty: b = 0
  std::ptrdiff_t first = 0;
  std::vector<std::int32_t> index;       // index[k]: the parameter of lag first + k; empty if linear
  bool linear = false;                   // ALiBi: b = -parameters[0] |lag|
  std::vector<std::int32_t> slots = {};  // ascending, of tokens outside, outside + 1, ...; empty: token i has slot i
  int outside = 0;                       // the number of tokens without a slot
  std::int32_t pitch = 0;   // of a grid: the difference of the slots of one cell and of the one below it; 0: unknown
  bool is_bounded = false;  // whether only the lags of `index` have a bias; plans refuse shapes with others

  bool is_grid() const { return !slots.empty(); }
  std::size_t border_size() const { return static_cast<std::size_t>(outside) * static_cast<std::size_t>(outside + 2); }
};

/// An attention of one or more heads.
struct AttentionModel {
  Direction direction = Direction::bidirectional;
  double radius = 1;  // norm of queries and keys. 0: they are multiplied by d^(-1/4) instead, except for elu
  std::vector<FeatureModel> features;    // one for all heads, or one per head; all of the same kind and shape
  std::vector<PositionModel> positions;  // one for all heads, or one per head; all with the same number of parameters
  std::ptrdiff_t near = 0;               // the width of the near field (AttentionOptions::near); 0: none
  std::ptrdiff_t sinks = 0;              // the number of attention sinks (AttentionOptions::sinks)
};

}  // namespace nprf::cuda
