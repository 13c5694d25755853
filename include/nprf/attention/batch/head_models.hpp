// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <span>

#include "nprf/attention/options.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/index.hpp"
#include "nprf/feature_map/feature_map_view.hpp"
#include "nprf/position/position_view.hpp"
#include "nprf/toeplitz/engines.hpp"

namespace nprf {

/// Type-erased references to the feature maps and the positions of all heads, one for all heads or one for each. Refers
/// to them and to the options.
template <Real T>
class HeadModels {
 public:
  template <FeatureMap F, Position P>
    requires std::same_as<typename F::Scalar, T> && std::same_as<typename P::Scalar, T>
  HeadModels(std::span<const F> features, std::span<const P> positions, const AttentionOptions& options)
      : m_features(features.data()),
        m_positions(positions.data()),
        m_num_features(features.size()),
        m_num_positions(positions.size()),
        m_feature_map(
            [](const void* all, std::size_t at) { return FeatureMapView<T>(static_cast<const F*>(all)[at]); }),
        m_position([](const void* all, std::size_t at) { return PositionView<T>(static_cast<const P*>(all)[at]); }),
        m_options(options) {}

  /// Throws InvalidArgument unless there is one feature map, or one for each head, and positions likewise; all maps
  /// have the same dimensions; and they support the options. The other functions require at least one of each.
  void check() const;

  /// The feature map of head h.
  FeatureMapView<T> feature_map(Index h) const {
    return m_feature_map(m_features, m_num_features == 1 ? 0 : static_cast<std::size_t>(h));
  }

  std::size_t num_positions() const { return m_num_positions; }
  /// The index of head h's position among the positions.
  std::size_t position_of(Index h) const { return m_num_positions == 1 ? 0 : static_cast<std::size_t>(h); }
  PositionView<T> position(std::size_t index) const { return m_position(m_positions, index); }

  const AttentionOptions& options() const { return m_options; }

 private:
  const void *m_features, *m_positions;
  std::size_t m_num_features, m_num_positions;
  FeatureMapView<T> (*m_feature_map)(const void*, std::size_t);
  PositionView<T> (*m_position)(const void*, std::size_t);
  const AttentionOptions& m_options;
};

template <Real T>
void HeadModels<T>::check() const {
  require(m_num_features > 0, "feature_maps: expected one, or one for each head, got none");
  require(m_num_positions > 0, "positions: expected one, or one for each head, got none");
  require(m_num_features == 1 || m_num_positions == 1 || m_num_features == m_num_positions, "positions: expected 1 or ",
          m_num_features, " (the number of feature maps), got ", m_num_positions);
  const FeatureMapView<T> map = feature_map(0);
  for (std::size_t h = 1; h < m_num_features; ++h) {
    const FeatureMapView<T> other = feature_map(static_cast<Index>(h));
    require(other.input_dim() == map.input_dim() && other.output_dim() == map.output_dim(), "feature_maps: expected ",
            map.input_dim(), " -> ", map.output_dim(), " of all heads, got ", other.input_dim(), " -> ",
            other.output_dim());
  }
  toeplitz::require_available(m_options.engine);
  const auto check_exact = [&](Index count, const char* name) {
    require(count >= 0, name, ": expected 0 or more, got ", count);
    require(count == 0 || (map.estimates_exp() && map.has_log_factors()), name,
            ": expected 0 for a feature map that does not estimate exp or has no log_factor, got ", count);
  };
  check_exact(m_options.near, "near");
  check_exact(m_options.sinks, "sinks");
}

}  // namespace nprf
