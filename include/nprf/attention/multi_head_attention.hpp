// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "nprf/attention/attention_core.hpp"
#include "nprf/attention/heads_view.hpp"
#include "nprf/attention/options.hpp"
#include "nprf/attention/saved.hpp"
#include "nprf/core/mixed_scalars.hpp"
#include "nprf/feature_map/feature_map.hpp"
#include "nprf/position/position.hpp"

namespace nprf {

/// Attention (attention.hpp) for all heads of a batch of sequences, into the caller's arrays.
///
/// The work is divided over threads by sequence, head and, within a head, value column or row. Results are bitwise
/// reproducible for any thread count. All sequences of the batch share one table of weights for each position. The
/// object keeps the scratch memory of its calls, so that a call of the same shapes as an earlier one allocates nothing.
/// It is otherwise immutable, and threads may share it.
///
///     MultiHeadAttention attention(orf<float>(64, 32), positions, {.direction = Direction::causal});
///     attention(q, k, v, y);   // HeadsView<float>{data, batch, heads, tokens, channels}
template <class F, class P>
class MultiHeadAttention {
  static_assert(FeatureMap<F>,
                "nprf: the first argument of MultiHeadAttention must model nprf::FeatureMap, or be a "
                "std::vector of such (feature_map.hpp)");
  static_assert(Position<P>,
                "nprf: the second argument of MultiHeadAttention must model nprf::Position, or be a "
                "std::vector of such (position.hpp)");
  static_assert(std::is_same_v<typename F::Scalar, typename P::Scalar>,
                "nprf: the feature maps and the positions must have the same scalar, float or double");

 public:
  using Scalar = typename F::Scalar;
  using T = Scalar;

  /// features: one feature map for all heads, or one for each head. positions: one position for all heads, or one for
  /// each head. Throws InvalidArgument if one of the two lists is empty, if both have more than one element but not
  /// equally many, if feature maps differ in their dimensions, and in the cases in which Attention does.
  MultiHeadAttention(std::vector<F> features, std::vector<P> positions, AttentionOptions options = {})
      : m_features(std::move(features)), m_positions(std::move(positions)), m_options(options) {
    AttentionCore<T>::check(heads());
    for (const P& position : m_positions) check_position(position, options.direction);
  }
  MultiHeadAttention(F features, std::vector<P> positions, AttentionOptions options = {})
      : MultiHeadAttention(std::vector<F>{std::move(features)}, std::move(positions), options) {}
  MultiHeadAttention(std::vector<F> features, P position, AttentionOptions options = {})
      : MultiHeadAttention(std::move(features), std::vector<P>{std::move(position)}, options) {}
  MultiHeadAttention(F features, P position, AttentionOptions options = {})
      : MultiHeadAttention(std::vector<F>{std::move(features)}, std::vector<P>{std::move(position)}, options) {}

  /// Without a position bias.
  explicit MultiHeadAttention(std::vector<F> features, AttentionOptions options = {})
    requires std::is_same_v<P, NoPosition<Scalar>>
      : MultiHeadAttention(std::move(features), P(), options) {}
  explicit MultiHeadAttention(F features, AttentionOptions options = {})
    requires std::is_same_v<P, NoPosition<Scalar>>
      : MultiHeadAttention(std::move(features), P(), options) {}

  // declared so that there is no move: a moved-from object would have no scratch memory and no identity
  MultiHeadAttention(const MultiHeadAttention&) = default;
  MultiHeadAttention& operator=(const MultiHeadAttention&) = default;

  const std::vector<F>& features() const { return m_features; }
  const std::vector<P>& positions() const { return m_positions; }
  const AttentionOptions& options() const { return m_options; }
  /// The number of feature maps or of positions, whichever is larger; 1 if all heads share one of each.
  Index heads_of_model() const { return heads().count(); }
  /// The rank of the positions' vectors of lags (position/query_biased.hpp); 0 without.
  Index rank() const { return heads().rank(); }

  /// q [b,h,n_q,d] k [b,h_k,n_k,d] v [b,h_k,n_k,d_v] -> y [b,h,n_q,d_v], in arrays of any strides, where y must not
  /// overlap the inputs. With vectors of lags (QueryBiased) q has rank() more channels. h is a multiple of h_k: with
  /// fewer heads of keys and values than of queries (grouped queries), h / h_k consecutive heads of queries share one
  /// head of keys and values. key_mask has batch x n_k entries, and lengths one entry for each sequence; cumulative
  /// lengths apply to every sequence of the batch. Throws InvalidArgument if shapes or options do not match
  /// (CallOptions), and then writes nothing; throws std::bad_alloc. Time and memory are those of Attention for each
  /// head.
  void operator()(HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v, HeadsView<T> y,
                  const CallOptions& call = {}) const {
    m_core.forward(heads(), q, k, v, y, call, nullptr);
  }
  template <class Q, class K, class V, class Y>
    requires detail::MixedScalars<T, Q, K, V, Y>
  void operator()(const Q&, const K&, const V&, const Y&, const CallOptions& = {}) const {
    detail::reject_mixed_scalars<T, Q, K, V, Y>();
  }

  /// Computes the same y as operator(), up to the tolerance (CallOptions), and saves in `saved` what backward needs.
  /// The result is bitwise equal to that of operator() if the engine is not automatic and no row is recomputed.
  void forward(HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v, HeadsView<T> y, Saved<T>& saved,
               const CallOptions& call = {}) const {
    m_core.forward(heads(), q, k, v, y, call, &saved);
  }
  template <class Q, class K, class V, class Y>
    requires detail::MixedScalars<T, Q, K, V, Y>
  void forward(const Q&, const K&, const V&, const Y&, Saved<T>&, const CallOptions& = {}) const {
    detail::reject_mixed_scalars<T, Q, K, V, Y>();
  }

  /// The gradients for dy [b,h,n_q,d_v]: dq, dk and dv have the shapes of q, k and v, and dbias gets one matrix for
  /// each head, of the shape of its position's parameters. The gradient of a position that all heads share is the sum
  /// of these matrices. `dextra` gets the gradients of the biases of a grid's extra tokens (Gradients::extra),
  /// `dlag_vectors` those of vectors of lags (Gradients::lag_vectors), and `report` a description of the computation;
  /// each of the three may be null. dq, dk and dv must not overlap each other
  /// or dy. Throws InvalidArgument if another attention filled `saved`, if shapes do not match, or if arrays overlap.
  void backward(const Saved<T>& saved, HeadsView<const T> dy, HeadsView<T> dq, HeadsView<T> dk, HeadsView<T> dv,
                std::vector<Matrix<T>>& dbias, std::vector<Matrix<T>>* dextra = nullptr,
                GradientReport* report = nullptr, std::vector<Matrix<T>>* dlag_vectors = nullptr) const {
    static_assert(LearnedPosition<P>, "nprf: backward needs a position with gradient() (position.hpp)");
    m_core.backward(heads(), saved, dy, dq, dk, dv, dbias, dextra, report, dlag_vectors);
  }

  /// Shares the pool of scratch memory of `other`, which may have another feature map and position. A training step
  /// that builds a new attention because a bias has changed then allocates no scratch memory. This function must not be
  /// called during another call of this attention.
  template <class F2, class P2>
    requires std::is_same_v<typename F2::Scalar, T>
  void share_scratch_memory(const MultiHeadAttention<F2, P2>& other) {
    m_core.share_scratch_memory(other.m_core);
  }
  /// Frees the scratch memory that finished calls have left for later ones. Attentions that share the pool lose it too.
  void free_scratch_memory() const { m_core.free_scratch_memory(); }

  /// Returns the same attention with feature maps that are drawn again, from another seed. If there are several maps,
  /// each gets a seed of its own, derived from this one. Queries and keys of a head share one map. The new attention
  /// does not accept what the old one saved. Throws InvalidArgument if the caller gave the random vectors.
  [[nodiscard]] MultiHeadAttention redraw(std::uint64_t seed) const {
    static_assert(
        requires(const F& f) { redrawn(f, seed); }, "nprf: redraw needs a feature map with random vectors");
    std::vector<F> features;
    for (std::size_t h = 0; h < m_features.size(); ++h)
      features.push_back(redrawn(m_features[h], seed * m_features.size() + h));
    return MultiHeadAttention(std::move(features), m_positions, m_options);
  }

 private:
  template <class F2, class P2>
  friend class Attention;
  template <class F2, class P2>
  friend class MultiHeadAttention;
  template <class F2, class P2>
  friend class DecoderModelOf;

  HeadModels<T> heads() const { return {std::span(m_features), std::span(m_positions), m_options}; }

  std::vector<F> m_features;
  std::vector<P> m_positions;
  AttentionOptions m_options;
  AttentionCore<T> m_core;
};

template <FeatureMap F>
MultiHeadAttention(std::vector<F>, AttentionOptions = {}) -> MultiHeadAttention<F, NoPosition<typename F::Scalar>>;
template <FeatureMap F>
MultiHeadAttention(F, AttentionOptions = {}) -> MultiHeadAttention<F, NoPosition<typename F::Scalar>>;

}  // namespace nprf
