// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "nprf/attention/direct_row.hpp"
#include "nprf/attention/options.hpp"
#include "nprf/attention/saved.hpp"
#include "nprf/attention/visibility.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/feature_map/feature_map.hpp"
#include "nprf/position/position.hpp"
#include "nprf/toeplitz/contract.hpp"

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

  /// Throws InvalidArgument for an engine that this build does not have and for a position whose bias is NaN or
  /// +infinity somewhere.
  Attention(F features, P position, AttentionOptions options = {})
      : m_features(std::move(features)), m_position(std::move(position)), m_options(options) {
    toeplitz::require_available(options.engine);
    check_bias(m_position.bias());
  }

  const F& features() const { return m_features; }
  const P& position() const { return m_position; }
  const AttentionOptions& options() const { return m_options; }

  /// q (n_q,d) k (n_k,d) v (n_k,d_v) -> y (n_q,d_v). A row that sees no key is zero.
  /// Throws InvalidArgument for shapes that do not fit, std::bad_alloc. Memory O(n (r + d_v)), time by the engine
  /// (contract.hpp).
  Matrix<T> operator()(const MatrixView<T>& q, const MatrixView<T>& k, const MatrixView<T>& v,
                       const CallOptions& call = {}) const {
    return evaluate(q, k, v, call, nullptr);
  }

  /// The same, and keeps in `saved` what backward needs.
  Matrix<T> forward(const MatrixView<T>& q, const MatrixView<T>& k, const MatrixView<T>& v, Saved<T>& saved,
                    const CallOptions& call = {}) const {
    return evaluate(q, k, v, call, &saved);
  }

  /// The gradients of L for dy (n_q,d_v) = dL/dy of the forward that filled `saved`. About twice forward's time,
  /// memory O(n (r + d_v)). Throws InvalidArgument if another attention filled it, or dy has another shape.
  Gradients<T> backward(const Saved<T>& saved, const MatrixView<T>& dy) const {
    static_assert(LearnedPosition<P>, "nprf: backward needs a position with gradient() (position.hpp)");
    require(saved.m_attention == m_identity,
            "saved: expected what forward of this attention has filled, got another's");
    const Index n_q = saved.m_y.rows(), d_v = saved.m_y.cols(), n_k = saved.m_k.rows();
    require(dy.rows() == n_q && dy.cols() == d_v, "dy: expected ", n_q, " x ", d_v, ", got ", dy.rows(), " x ",
            dy.cols());

    // y = N / D with [N D] = Y; so dL/dN = dy / D and dL/dD = -(dy.y) / D
    Matrix<T> G = Matrix<T>::Zero(n_q, d_v + 1);
    for (Index i = 0; i < n_q; ++i) {
      if (saved.m_denominator[i] == 0) continue;
      G.row(i).head(d_v) = dy.row(i) / saved.m_denominator[i];
      G(i, d_v) = -dy.row(i).dot(saved.m_y.row(i)) / saved.m_denominator[i];
    }
    toeplitz::Gradients<T> product =
        toeplitz::gradients<T>(saved.m_engine, saved.m_c, saved.m_A, saved.m_B, saved.m_U, G);

    // c = exp(b - max b): db = c dc, at the distance l of the row difference l - offset
    const Index first = -(n_q - 1) - saved.m_offset;
    Vector<double> db(product.dc.size());
    for (Index l = 0; l < db.size(); ++l)
      db[l] = static_cast<double>(saved.m_c[l - (n_q - 1)]) * static_cast<double>(product.dc[l]);
    for (const Index i : saved.m_repaired)
      DirectRow<T>(m_position.bias(), i + saved.m_offset, m_options.direction, n_k)
          .backward(saved.m_A, i, saved.m_B, saved.m_U.leftCols(d_v), saved.m_y.row(i), dy.row(i), product.dA,
                    product.dB, product.dU, [&](Index lag, double gradient) { db[lag - first] += gradient; });

    const Normalization& normalization = m_options.normalization;
    return {.queries = normalization.backward<T>(saved.m_q, saved.m_q_scale,
                                                 m_features.backward(saved.m_q, saved.m_A, product.dA)),
            .keys = normalization.backward<T>(saved.m_k, saved.m_k_scale,
                                              m_features.backward(saved.m_k, saved.m_B, product.dB)),
            .values = product.dU.leftCols(d_v),
            .bias = m_position.gradient(first, db)};
  }

  /// phi of normalised queries (n_q,d) -> (n_q,r), up to a positive factor a row.
  Matrix<T> query_features(const MatrixView<T>& q) const {
    const Vector<T> scale = row_scale(q);
    if constexpr (requires { m_features.queries(q, RowScale<T>()); })
      return checked(m_features.queries(q, RowScale<T>(scale.data(), static_cast<std::size_t>(scale.size()))),
                     q.rows());
    else
      return checked(m_features.queries(scaled(q, scale)), q.rows());
  }

  /// phi of normalised keys (n_k,d) -> (n_k,r), up to one positive factor.
  Matrix<T> key_features(const MatrixView<T>& k) const {
    const Vector<T> scale = row_scale(k);
    if constexpr (requires { m_features.keys(k, RowScale<T>()); })
      return checked(m_features.keys(k, RowScale<T>(scale.data(), static_cast<std::size_t>(scale.size()))), k.rows());
    else
      return checked(m_features.keys(scaled(k, scale)), k.rows());
  }

 private:
  Vector<T> row_scale(const MatrixView<T>& x) const {
    return m_options.normalization.template row_scale<T>(x, estimates_exp<F>());
  }

  static Matrix<T> scaled(const MatrixView<T>& x, const Vector<T>& scale) { return scale.asDiagonal() * x; }

  // a user's own map may return anything
  Matrix<T> checked(Matrix<T> phi, Index rows) const {
    require(phi.rows() == rows && phi.cols() == m_features.output_dim(), "feature map: expected to return ", rows,
            " x ", m_features.output_dim(), ", got ", phi.rows(), " x ", phi.cols());
    return phi;
  }

  Matrix<T> evaluate(const MatrixView<T>& q, const MatrixView<T>& k, const MatrixView<T>& v, const CallOptions& call,
                     Saved<T>* saved) const {
    const auto [n_q, n_k, d, d_v] = attention_shape<T>(q, k, v);
    constexpr Index farthest = Index{1} << 40;
    require(-farthest <= call.offset && call.offset <= farthest, "offset: expected -2^40 to 2^40, got ", call.offset);
    require(d == m_features.input_dim(), "queries: expected ", m_features.input_dim(),
            " columns (the feature map's input_dim), got ", d);

    Matrix<T> A = query_features(q);  // (n_q,r)
    Matrix<T> B = key_features(k);    // (n_k,r)
    Matrix<T> U(n_k, d_v + 1);        // [v 1]: numerator and denominator come out together
    U.leftCols(d_v) = v;
    if (n_k > 0) U.col(d_v).setOnes();  // a column of no rows has no address

    const LagRange reachable = reachable_lags(n_q, n_k, call.offset, m_options.direction);
    LagWeights<T> c = exp_weights(m_position.bias(), reachable);
    const ProductShape shape{n_q, n_k, A.cols(), d_v + 1};
    Report report;
    c.first += call.offset;  // from distances to differences j - i of row numbers
    if (n_q > 0 && n_k > 0) report.engine = engine(c, shape);

    Matrix<T> Y(n_q, d_v + 1);
    report.workspace_bytes = toeplitz::contract<T>(report.engine, c, A, B, U, Y);
    report.workspace_bytes +=
        sizeof(T) * static_cast<std::size_t>(A.size() + B.size() + U.size() + Y.size() + c.values.size());

    Matrix<T> y = Matrix<T>::Zero(n_q, d_v);
    Vector<T> denominator(n_q);
    if (n_q > 0) denominator = Y.col(d_v);
    const std::vector<Index> repaired = divide(Y, Visibility(m_position.bias(), n_k, call.offset, reachable), A, B, v,
                                               call.offset, y, denominator, report);
    if (saved) {
      saved->m_attention = m_identity;
      saved->m_q_scale = row_scale(q);
      saved->m_k_scale = row_scale(k);
      saved->m_q = scaled(q, saved->m_q_scale);
      saved->m_k = scaled(k, saved->m_k_scale);
      saved->m_A = std::move(A);
      saved->m_B = std::move(B);
      saved->m_U = std::move(U);
      saved->m_y = y;
      saved->m_denominator = std::move(denominator);
      saved->m_repaired = repaired;
      saved->m_c = std::move(c);
      saved->m_engine = report.engine;
      saved->m_offset = call.offset;
    }
    if (call.report) *call.report = report;
    return y;
  }

  // causal weights are one-sided even where an offset hides it
  Engine engine(const LagWeights<T>& c, const ProductShape& shape) const {
    if (m_options.engine != Engine::automatic) return m_options.engine;
    return m_options.direction == Direction::causal ? Engine::direct : toeplitz::choose(c, shape);
  }

  // y_i = Y[i, values] / Y[i, ones]. A row whose denominator is lost to rounding or underflow is computed again; these
  // rows are returned, and their denominators set to 0, as are those of rows that see no key.
  std::vector<Index> divide(const Matrix<T>& Y, const Visibility& visible, const Matrix<T>& A, const Matrix<T>& B,
                            const MatrixView<T>& v, Index offset, Matrix<T>& y, Vector<T>& denominator,
                            Report& report) const {
    constexpr T smallest = std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon();
    std::vector<Index> repaired;
    for (Index i = 0; i < Y.rows(); ++i) {
      double D = denominator[i];
      if (visible.keys(i) == 0) {
        ++report.empty_rows;
        denominator[i] = 0;
        continue;
      }
      if (std::abs(D) < smallest || std::isinf(D) || (is_positive<F>() && D <= 0)) {
        const DirectRow<T> row(m_position.bias(), i + offset, m_options.direction, B.rows());
        D = row.forward(A, i, B, v, y.row(i));
        denominator[i] = 0;
        repaired.push_back(i);
      } else {
        y.row(i) = Y.row(i).head(v.cols()) / denominator[i];
      }
      if (D <= 0) ++report.indefinite_rows;
    }
    report.repaired_rows = static_cast<Index>(repaired.size());
    return repaired;
  }

  F m_features;
  P m_position;
  AttentionOptions m_options;
  std::shared_ptr<const char> m_identity = std::make_shared<const char>();  // shared by copies
};

}  // namespace nprf
