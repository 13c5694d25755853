// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "nprf/attention/batch/batch.hpp"
#include "nprf/attention/batch/head_matrices.hpp"
#include "nprf/attention/batch/head_models.hpp"
#include "nprf/attention/head.hpp"
#include "nprf/attention/options.hpp"
#include "nprf/attention/saved.hpp"
#include "nprf/core/mixed_scalars.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/feature_map/feature_map.hpp"
#include "nprf/position/position.hpp"
#include "nprf/toeplitz/product.hpp"

namespace nprf {

/// Kernelized attention with a bias for the distance between tokens (Luo et al. 2021):
///
///     y_i = sum_j phi(q_i).phi(k_j) exp(b[j-i]) v_j / sum_j phi(q_i).phi(k_j) exp(b[j-i])
///
/// over all j (bidirectional) or the keys at or before query i (causal). An Attention is immutable; threads may share
/// it.
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

  /// Throws InvalidArgument for an engine that this build does not have, for options out of their enumerations and for
  /// a position whose bias is NaN or +infinity somewhere.
  Attention(F features, P position, AttentionOptions options = {})
      : m_features(std::move(features)), m_position(std::move(position)), m_options(options) {
    check_direction(options.direction);
    toeplitz::require_available(options.engine);
    check_bias(m_position.bias());
  }

  const F& features() const { return m_features; }
  const P& position() const { return m_position; }
  const AttentionOptions& options() const { return m_options; }

  /// q (n_q,d) k (n_k,d) v (n_k,d_v) -> y (n_q,d_v), by all threads. A row that sees no key is zero.
  /// Throws InvalidArgument for shapes that do not fit, std::bad_alloc. Memory O(n (r + d_v)), time by the engine
  /// (product.hpp).
  Matrix<T> operator()(const MatrixView<T>& q, const MatrixView<T>& k, const MatrixView<T>& v,
                       const CallOptions& call = {}) const {
    return evaluate(q, k, v, call, nullptr);
  }
  template <class Q, class K, class V>
    requires detail::MixedScalars<T, Q, K, V>
  void operator()(const Q&, const K&, const V&, const CallOptions& = {}) const {
    detail::refuse<T, Q, K, V>();
  }

  /// The same within the tolerance (CallOptions), and keeps in `saved` what backward needs. Bit for bit the same by any
  /// engine but the automatic one where no row is repaired.
  Matrix<T> forward(const MatrixView<T>& q, const MatrixView<T>& k, const MatrixView<T>& v, Saved<T>& saved,
                    const CallOptions& call = {}) const {
    Matrix<T> y = evaluate(q, k, v, call, &saved);
    saved.m_attention = m_identity;
    return y;
  }
  template <class Q, class K, class V>
    requires detail::MixedScalars<T, Q, K, V>
  void forward(const Q&, const K&, const V&, Saved<T>&, const CallOptions& = {}) const {
    detail::refuse<T, Q, K, V>();
  }

  /// The gradients of L for dy (n_q,d_v) = dL/dy of the forward that filled `saved`. About twice forward's time,
  /// memory O(n (r + d_v)). Throws InvalidArgument if another attention filled it, or dy has another shape.
  Gradients<T> backward(const Saved<T>& saved, const MatrixView<T>& dy) const {
    static_assert(LearnedPosition<P>, "nprf: backward needs a position with gradient() (position.hpp)");
    require(saved.m_attention && saved.m_attention == m_identity,
            "saved: expected one filled by forward of this attention, got another's");
    const auto [n_q, n_k, d, d_v] = saved.m_sizes;
    require(dy.rows() == n_q && dy.cols() == d_v, "dy: expected ", n_q, " x ", d_v, ", got ", dy.rows(), " x ",
            dy.cols());
    Gradients<T> g{Matrix<T>(n_q, d), Matrix<T>(n_k, d), Matrix<T>(n_k, d_v), {}, {}, {}};
    Batch<T> batch;
    g.report = batch.backward(heads(), saved, one_head(dy), one_head(g.queries), one_head(g.keys), one_head(g.values));
    g.bias = batch.dbias(0).template cast<T>();
    g.extra = batch.dextra(0).template cast<T>();
    return g;
  }

  /// The same attention with a feature map drawn from another seed, as training does between steps. Queries and keys
  /// share it: there is no way to redraw it for one of them. What the old one saved is not the new one's.
  [[nodiscard]] Attention redraw(std::uint64_t seed) const {
    return Attention(redrawn(m_features, seed), m_position, m_options);
  }

  /// phi of normalised queries (n_q,d) -> (n_q,r), up to a positive factor a row.
  Matrix<T> query_features(const MatrixView<T>& q) const {
    return features_of(q, [&](const Head<T>& head, auto&&... out) { head.query_features(q, out...); });
  }

  /// phi of normalised keys (n_k,d) -> (n_k,r), up to one positive factor.
  Matrix<T> key_features(const MatrixView<T>& k) const {
    return features_of(k, [&](const Head<T>& head, auto&&... out) { head.key_features(k, out...); });
  }

 private:
  HeadModels<T> heads() const { return {std::span(&m_features, 1), std::span(&m_position, 1), m_options}; }

  Matrix<T> evaluate(const MatrixView<T>& q, const MatrixView<T>& k, const MatrixView<T>& v, const CallOptions& call,
                     Saved<T>* saved) const {
    const AttentionShape shape = attention_shape<T>(q, k, v);
    Matrix<T> y(shape.n_q, shape.d_v);
    Batch<T>().forward(heads(), {1, 1, shape}, one_head(q), one_head(k), one_head(v), one_head(y), call, saved);
    return y;
  }

  template <class Use>
  Matrix<T> features_of(const MatrixView<T>& x, Use&& use) const {
    Vector<T> scale(x.rows());
    return filled<T>(x.rows(), m_features.output_dim(), [&](auto& phi, const Team& team) {
      use(Head<T>{m_features, m_options.normalization, nullptr}, scale, phi, team);
    });
  }

  F m_features;
  P m_position;
  AttentionOptions m_options;
  std::shared_ptr<const char> m_identity = std::make_shared<const char>();  // shared by copies
};

}  // namespace nprf
