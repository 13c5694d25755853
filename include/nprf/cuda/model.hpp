// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nprf/core/engine.hpp"

/// What an attention is, in plain numbers: of a CPU's attention by model_of (plan/model_of.hpp), for an AttentionPlan
/// (plan/attention_plan.cuh). It knows of no matrix library, so that device code is compiled without one.
namespace nprf::cuda {

enum class FeatureKind { positive, hyperbolic, trigonometric, elu };

/// A feature map of one head; see feature_map/.
struct FeatureModel {
  FeatureKind kind = FeatureKind::positive;
  int d = 0;                      // of queries and keys
  int m = 0;                      // rows of the projection; none for elu
  std::vector<float> projection;  // (m,d)

  /// r: features of a token.
  int features() const { return kind == FeatureKind::positive ? m : kind == FeatureKind::elu ? d : 2 * m; }
};

/// A position of one head: b[lag] = factor(lag) parameters[index(lag)], of the lags from `first` on; lags beyond either
/// end take what stands there.
struct PositionModel {
  std::vector<float> parameters;  // of any shape; none for no position
  std::ptrdiff_t first = 0;
  std::vector<std::int32_t> index;  // of each lag, unless the bias is linear
  bool linear = false;              // ALiBi: b = -parameters[0] |lag|
};

/// The heads of an attention, one after another.
struct AttentionModel {
  Direction direction = Direction::bidirectional;
  double radius = 1;                     // of queries and keys, or 0: times d^(-1/4) where features estimate exp
  std::vector<FeatureModel> features;    // one, or one a head; their kinds and shapes are alike
  std::vector<PositionModel> positions;  // one, or one a head; with equally many parameters
};

}  // namespace nprf::cuda
