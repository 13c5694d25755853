// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "nprf/attention/heads_view.hpp"
#include "nprf/attention/multi_head_attention.hpp"
#include "nprf/attention/options.hpp"
#include "nprf/attention/saved.hpp"
#include "nprf/core/mixed_scalars.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/feature_map/feature_map.hpp"
#include "nprf/position/position.hpp"

namespace nprf {

/// Kernelized attention with a bias for the distance between tokens (Luo et al. 2021):
///
///     y_i = sum_j phi(q_i).phi(k_j) exp(b[j-i]) v_j / sum_j phi(q_i).phi(k_j) exp(b[j-i])
///
/// over all j (bidirectional) or the keys at or before query i (causal). The weight of an exact pair, that is
/// near, or has an attention sink or a salient key (AttentionOptions), is exp(q_i.k_j + b[j-i]). The object keeps the
/// scratch memory of its calls: a call of the same shapes as an earlier one allocates y alone. It is otherwise
/// immutable, and threads may share it.
///
///     Attention attention(orf<float>(64, 32), AlibiPosition<float>(0.1f), {.direction = Direction::causal});
///     Matrix<float> y = attention(q, k, v);
template <class F, class P>
class Attention {
  static_assert(FeatureMap<F>, "nprf: the first argument of Attention must model nprf::FeatureMap (feature_map.hpp)");
  static_assert(Position<P>, "nprf: the second argument of Attention must model nprf::Position (position.hpp)");
  static_assert(std::is_same_v<typename F::Scalar, typename P::Scalar>,
                "nprf: the feature map and the position of an Attention must have the same scalar, float or double");

 public:
  using Scalar = typename F::Scalar;
  using T = Scalar;

  /// Throws InvalidArgument if this build does not have the engine, if an option is not in its enumeration, if a bias
  /// of the position is NaN or +infinity, if the position is built for another direction (T5Position), or if `near`,
  /// `sinks` or `salient` is negative, or positive for a map that does not estimate exp or has no log-factors
  /// (feature_map.hpp), or `salient` is positive for causal attention without salient_rules, or these are for other
  /// numbers of heads or channels, or vectors of lags (QueryBiased) are not one for each lag of the near field.
  Attention(F features, P position, AttentionOptions options = {})
      : m_heads(std::move(features), std::move(position), options) {}

  /// Without a position bias.
  explicit Attention(F features, AttentionOptions options = {})
    requires std::is_same_v<P, NoPosition<Scalar>>
      : Attention(std::move(features), P(), options) {}

  const F& features() const { return m_heads.features()[0]; }
  const P& position() const { return m_heads.positions()[0]; }
  const AttentionOptions& options() const { return m_heads.options(); }

  /// q (n_q,d) k (n_k,d) v (n_k,d_v) -> y (n_q,d_v), on all threads; q (n_q,d+rank) with vectors of lags (QueryBiased).
  /// A row that attends to no key is zero. Throws InvalidArgument if the shapes do not match, and std::bad_alloc.
  /// Memory O(n (r + d_v)); the time depends on the engine (toeplitz/product.hpp).
  Matrix<T> operator()(const MatrixView<T>& q, const MatrixView<T>& k, const MatrixView<T>& v,
                       const CallOptions& call = {}) const {
    Matrix<T> y = result(q, k, v);
    m_heads(one_head(q), one_head(k), one_head(v), one_head(y), call);
    return y;
  }
  template <class Q, class K, class V>
    requires detail::MixedScalars<T, Q, K, V>
  void operator()(const Q&, const K&, const V&, const CallOptions& = {}) const {
    detail::reject_mixed_scalars<T, Q, K, V>();
  }

  /// Computes the same y as operator(), up to the tolerance (CallOptions), and saves in `saved` what backward needs.
  /// The result is bitwise equal to that of operator() if the engine is not automatic and no row is recomputed.
  Matrix<T> forward(const MatrixView<T>& q, const MatrixView<T>& k, const MatrixView<T>& v, Saved<T>& saved,
                    const CallOptions& call = {}) const {
    Matrix<T> y = result(q, k, v);
    m_heads.forward(one_head(q), one_head(k), one_head(v), one_head(y), saved, call);
    return y;
  }
  template <class Q, class K, class V>
    requires detail::MixedScalars<T, Q, K, V>
  void forward(const Q&, const K&, const V&, Saved<T>&, const CallOptions& = {}) const {
    detail::reject_mixed_scalars<T, Q, K, V>();
  }

  /// Returns the gradients for dy (n_q,d_v) = dL/dy, after the forward that filled `saved`. It takes two to three times
  /// forward's time, and memory O(n (r + d_v)). Throws InvalidArgument if another attention filled `saved`, or if dy
  /// has another shape.
  Gradients<T> backward(const Saved<T>& saved, const MatrixView<T>& dy) const {
    static_assert(LearnedPosition<P>, "nprf: backward needs a position with gradient() (position.hpp)");
    m_heads.m_core.check_saved(saved);
    const auto [n_q, n_k, d, d_v] = saved.m_sizes;
    require(dy.rows() == n_q && dy.cols() == d_v, "dy: expected ", n_q, " x ", d_v, ", got ", dy.rows(), " x ",
            dy.cols());
    Gradients<T> g{Matrix<T>(n_q, d + m_heads.rank()), Matrix<T>(n_k, d), Matrix<T>(n_k, d_v), {}, {}, {}, {}};
    std::vector<Matrix<T>> bias, extra, lag_vectors;
    m_heads.backward(saved, one_head(dy), one_head(g.queries), one_head(g.keys), one_head(g.values), bias, &extra,
                     &g.report, &lag_vectors);
    g.bias = std::move(bias[0]);
    g.extra = std::move(extra[0]);
    g.lag_vectors = std::move(lag_vectors[0]);
    return g;
  }

  /// Returns the same attention with a feature map that is drawn again, from another seed, as training does between
  /// steps. The map must have random vectors. Throws InvalidArgument if the caller gave these vectors. Queries and keys
  /// share the map. The new attention does not accept what the old one saved.
  [[nodiscard]] Attention redraw(std::uint64_t seed) const {
    static_assert(
        requires(const F& f) { redrawn(f, seed); }, "nprf: redraw needs a feature map with random vectors");
    return Attention(redrawn(features(), seed), position(), options());
  }

  /// Normalises the queries q (n_q,d) and returns their features phi (n_q,r), each row up to a positive factor of its
  /// own.
  Matrix<T> query_features(const MatrixView<T>& q) const {
    return AttentionCore<T>::query_features(m_heads.heads(), q);
  }

  /// Normalises the keys k (n_k,d) and returns their features phi (n_k,r), up to one positive factor for all rows.
  Matrix<T> key_features(const MatrixView<T>& k) const { return AttentionCore<T>::key_features(m_heads.heads(), k); }

 private:
  // checks the shapes, and returns a y that is not initialised
  Matrix<T> result(const MatrixView<T>& q, const MatrixView<T>& k, const MatrixView<T>& v) const {
    const Index input_dim = features().input_dim(), rank = m_heads.rank();
    check_query_channels(q.cols(), input_dim, rank);
    const AttentionShape shape = attention_shape<T>(q.leftCols(input_dim), k, v);
    return Matrix<T>(shape.n_q, shape.d_v);
  }

  MultiHeadAttention<F, P> m_heads;  // with one head
};

template <FeatureMap F>
Attention(F, AttentionOptions = {}) -> Attention<F, NoPosition<typename F::Scalar>>;

}  // namespace nprf
