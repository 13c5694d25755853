// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "nprf/attention/heads_view.hpp"
#include "nprf/attention/options.hpp"
#include "nprf/attention/saved.hpp"
#include "nprf/core/compiled_flags.hpp"
#include "nprf/core/index.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/feature_map_view.hpp"
#include "nprf/position/position_view.hpp"

namespace nprf {

/// The feature maps and the positions of all heads, one for all heads or one for each, as type-erased references. The
/// member functions require at least one map and one position.
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

  std::size_t num_feature_maps() const { return m_num_features; }
  FeatureMapView<T> feature_map(Index h) const {
    return m_feature_map(m_features, m_num_features == 1 ? 0 : static_cast<std::size_t>(h));
  }

  std::size_t num_positions() const { return m_num_positions; }
  /// The index of head h's position among the positions.
  std::size_t position_of(Index h) const { return m_num_positions == 1 ? 0 : static_cast<std::size_t>(h); }
  PositionView<T> position(std::size_t index) const { return m_position(m_positions, index); }

  /// The rank of the positions' vectors of lags (QueryBiased): how many channels more than keys the queries have.
  Index rank() const { return position(0).rank(); }

  /// The number of feature maps or of positions, whichever is larger: 1, or the number of heads.
  Index count() const { return static_cast<Index>(std::max(m_num_features, m_num_positions)); }

  const AttentionOptions& options() const { return m_options; }
  /// That of head h; null if the queries of each sequence choose its salient keys.
  const SalientRule* salient_rule(Index h) const {
    const std::vector<SalientRule>& rules = m_options.salient_rules;
    return rules.empty() ? nullptr : &rules[rules.size() == 1 ? 0 : static_cast<std::size_t>(h)];
  }

 private:
  const void *m_features, *m_positions;
  std::size_t m_num_features, m_num_positions;
  FeatureMapView<T> (*m_feature_map)(const void*, std::size_t);
  PositionView<T> (*m_position)(const void*, std::size_t);
  const AttentionOptions& m_options;
};

template <Real T>
class BatchPool;

/// The part of an attention that does not depend on the types of its feature maps and positions: the checks of a call,
/// scratch memory, and the work. Copies share the scratch memory and the identity, by which check_saved() recognises
/// what forward has saved.
template <Real T>
class AttentionCore {
 public:
  explicit AttentionCore(CompiledFlags<T> = {});

  /// Throws InvalidArgument unless all of this holds: there is one feature map or one for each head; there is one
  /// position or one for each head; all maps have the same dimensions; the maps support the options; vectors of lags
  /// fit the near field.
  static void check(const HeadModels<T>& heads);

  /// Computes y as MultiHeadAttention::operator() does; if `saved` is not null, it also saves, as
  /// MultiHeadAttention::forward does.
  void forward(const HeadModels<T>& heads, const HeadsView<const T>& q, const HeadsView<const T>& k,
               const HeadsView<const T>& v, const HeadsView<T>& y, const CallOptions& call, Saved<T>* saved,
               Lengths lengths = Lengths::of_keys) const;
  /// Computes the gradients as MultiHeadAttention::backward does.
  void backward(const HeadModels<T>& heads, const Saved<T>& saved, const HeadsView<const T>& dy, const HeadsView<T>& dq,
                const HeadsView<T>& dk, const HeadsView<T>& dv, std::vector<Matrix<T>>& dbias,
                std::vector<Matrix<T>>* dextra, GradientReport* report, std::vector<Matrix<T>>* dlag_vectors) const;
  /// Throws InvalidArgument unless forward of this attention filled `saved`.
  void check_saved(const Saved<T>& saved) const;

  /// Normalises the queries, or the keys, x (n,d) of the first head and returns their features phi (n,r).
  static Matrix<T> query_features(const HeadModels<T>& heads, const MatrixView<T>& x);
  static Matrix<T> key_features(const HeadModels<T>& heads, const MatrixView<T>& x);

  void share_scratch_memory(const AttentionCore& other) { m_pool = other.m_pool; }
  void free_scratch_memory() const;

 private:
  std::shared_ptr<BatchPool<T>> m_pool;
  std::shared_ptr<const char> m_identity = std::make_shared<const char>();
};

}  // namespace nprf

#if !NPRF_SEPARATE
#include "nprf/attention/batch/attention_core_definition.hpp"
#endif
