// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>
#include <vector>

#include "bench/support/problem.hpp"

namespace nprf::bench {

enum class PositionKind { dense, smooth, spline, t5, alibi, none };

constexpr std::string_view name(PositionKind kind) {
  switch (kind) {
    case PositionKind::dense: return "dense";
    case PositionKind::smooth: return "smooth";
    case PositionKind::spline: return "spline";
    case PositionKind::t5: return "T5";
    case PositionKind::alibi: return "ALiBi";
    case PositionKind::none: return "no position";
  }
  return "unknown";
}

constexpr std::string_view name(Direction direction) {
  return direction == Direction::causal ? "causal" : "bidirectional";
}

/// A position of any kind: attention only needs its bias.
struct BiasPosition {
  using Scalar = float;
  const LagBias<float>& bias() const { return b; }

  LagBias<float> b;
};

/// A curve that falls about as fast as a power of the distance.
inline Spline falling_spline(Index n) {
  constexpr Index knots = 16;
  const Vector<double> noise = draw(knots, 1, 5).cast<double>();
  std::vector<double> values;
  for (Index k = 0; k < knots; ++k) values.push_back(-0.15 * static_cast<double>(k) + 0.1 * noise[k]);
  return {values, log_spaced_knots(knots, n - 1)};
}

/// dense: a N(0,1) bias of its own for every lag of n tokens; smooth: -log(1 + |lag|), which is KERPLE's; spline: of
/// 16 values at knots in equal steps of log distance, about -0.15 a knot and N(0,0.1); T5: 32
/// buckets up to distance 128, N(0,1); ALiBi: slope 1/16.
inline BiasPosition make_position(PositionKind kind, Direction direction, Index n) {
  switch (kind) {
    case PositionKind::dense: return {problem(n).position.bias()};
    case PositionKind::smooth: return {KerpleLogPosition<float>({1, 1}, n).bias()};
    case PositionKind::spline: return {SplinePosition<float>(falling_spline(n), n).bias()};
    case PositionKind::t5: return {t5_position<float>(draw(32, 1, 5), direction).bias()};
    case PositionKind::alibi: return {AlibiPosition<float>(1.0f / 16).bias()};
    case PositionKind::none: break;
  }
  return {};
}

}  // namespace nprf::bench
