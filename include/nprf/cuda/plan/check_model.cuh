// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "nprf/core/engine.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/lags.hpp"
#include "nprf/cuda/model.hpp"
#include "nprf/cuda/plan/feature_constants.cuh"
#include "nprf/cuda/plan/options.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"

namespace nprf::cuda {

namespace detail {

inline void check_shape(const PlanShape& shape) {
  const auto& [batch, heads, n_q, n_k, d_v, offset, heads_k, packed] = shape;
  constexpr std::ptrdiff_t most = std::ptrdiff_t{1} << 28, most_blocks = 65535;
  for (const auto& [name, size] : {std::pair{"n_q", n_q}, {"n_k", n_k}})
    require(size >= 0 && size <= most, name, ": expected 0 to 2^28, got ", size);
  require(d_v >= 0 && d_v <= 16384, "d_v: expected 0 to 16384, got ", d_v);
  require(batch >= 0 && heads >= 1 && batch <= most_blocks && heads <= most_blocks &&
              batch * heads * TileShape::column_tiles(static_cast<int>(d_v)) <= most_blocks,
          "batch and heads: expected a batch of 0 or more, one head or more, and batch heads ceil(d_v / 64) of at "
          "most ",
          most_blocks, ", got ", batch, ", ", heads, " and d_v = ", d_v);
  require(heads_k >= 0 && (heads_k == 0 || heads % heads_k == 0), "heads_k: expected a divisor of ", heads,
          " (heads), or 0 for as many, got ", heads_k);
  require(offset >= -most && offset <= most, "offset: expected -2^28 to 2^28, got ", offset);
}

inline void check_grid(const PositionModel& one, const PlanShape& shape) {
  const std::size_t lags = 2 * static_cast<std::size_t>(std::max(one.slots.back(), 0)) + 1;
  require(one.outside >= 0 && one.slots.front() == 0 &&
              std::adjacent_find(one.slots.begin(), one.slots.end(), std::greater_equal<>()) == one.slots.end(),
          "slots: expected ascending numbers from 0 on");
  require(one.index.size() == lags && one.first == -static_cast<std::ptrdiff_t>(one.slots.back()) &&
              one.parameters.size() == lags + one.border_size(),
          "position: expected a parameter for each of the ", lags, " differences of two slots and for each of the ",
          one.border_size(), " entries of the border, got ", one.parameters.size());
  const auto tokens = static_cast<std::ptrdiff_t>(one.slots.size()) + one.outside;
  for (const auto& [name, size] : {std::pair{"queries", shape.n_q}, {"keys", shape.n_k}})
    require(size == tokens, name, ": expected ", tokens, " rows (the position's tokens), got ", size);
  require(shape.offset == 0, "offset: expected 0 for a position that assigns slots to tokens, got ", shape.offset);
}

inline void check_reach(const PositionModel& one, const LagRange& lags) {
  const std::ptrdiff_t last = one.first + static_cast<std::ptrdiff_t>(one.index.size()) - 1;
  require(lags.size() == 0 || (one.first <= lags.first && lags.last <= last),
          "position: expected a curve that reaches the lags ", lags.first, " to ", lags.last, ", got ", one.first,
          " to ", last);
}

}  // namespace detail

/// Throws InvalidArgument unless a plan of these sizes can compute the model: if a size is out of its range; if the
/// number of feature maps, or of positions, is neither 1 nor the number of heads; if the maps or the positions are not
/// all of one kind and shape; or if a map or a position is for other sizes. O(parameters of positions + constants of
/// maps).
inline void check_model(const AttentionModel& model, const PlanShape& shape) {
  detail::check_shape(shape);
  const auto& [direction, radius, features, positions, near, sinks] = model;
  check_direction(direction);
  const auto one_or_heads = [&](std::size_t count, const char* what) {
    require(count == 1 || static_cast<std::ptrdiff_t>(count) == shape.heads, what, ": expected 1 or ", shape.heads,
            " (heads), got ", count);
  };
  one_or_heads(features.size(), "feature maps");
  one_or_heads(positions.size(), "positions");
  const FeatureModel& map = features.front();
  const FeatureTraits traits = traits_of(map.kind);
  const PositionModel& position = positions.front();
  for (const FeatureModel& one : features)
    require(one.kind == map.kind && one.d == map.d && one.m == map.m && one.first == map.first &&
                one.second == map.second && one.centring.is_empty() == map.centring.is_empty(),
            "feature maps: expected all of one kind and shape");
  for (const PositionModel& one : positions)
    require(one.linear == position.linear && one.first == position.first && one.index == position.index &&
                one.parameters.size() == position.parameters.size() && one.slots == position.slots &&
                one.pitch == position.pitch && one.outside == position.outside && one.is_bounded == position.is_bounded,
            "positions: expected all of one kind and shape");
  require(map.d >= 1 && map.d <= 256, "input_dim: expected 1 to 256 on a GPU, got ", map.d);
  for (const FeatureModel& one : features)
    require(one.m >= 0 && static_cast<std::ptrdiff_t>(one.projection.size()) == std::ptrdiff_t{one.m} * one.d,
            "projection: expected ", one.m, " x ", one.d, " scalars, got ", one.projection.size());
  const std::size_t parameters = position.parameters.size();
  require(position.linear ? parameters == 1 && position.index.empty() : position.index.empty() == (parameters == 0),
          "position: expected parameters and an index for each lag, or one parameter and a linear bias, or none, got ",
          parameters, " and ", position.index.size());
  for (const std::int32_t at : position.index)
    require(at >= 0 && static_cast<std::size_t>(at) < parameters, "index: expected parameters 0 to ", parameters,
            " - 1, got ", at);
  if (position.is_grid()) detail::check_grid(position, shape);
  if (position.is_bounded) detail::check_reach(position, reachable_lags(shape.n_q, shape.n_k, shape.offset, direction));
  require(near == 0 || (near > 0 && traits.estimates_exp && (!position.is_grid() || position.pitch > 0)),
          "near: expected 0 or more, or 0 for elu features and for slots without a pitch, got ", near);
  require(sinks == 0 || (sinks > 0 && traits.estimates_exp), "sinks: expected 0 or more, or 0 for elu features, got ",
          sinks);
  require(traits.has_projections ? map.m >= 1 : map.m == 0,
          "num_features: expected 0 for elu and quadratic and at least 1 for others, got ", map.m);
  for (const FeatureModel& one : features) check_constants(one);
  require(map.features() <= 1024, "features: expected at most 1024 on a GPU, got ", map.features());
}

}  // namespace nprf::cuda
