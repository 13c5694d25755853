// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "nprf/attention/options.hpp"
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

  /// Throws InvalidArgument for an engine that this build does not have.
  Attention(F features, P position, AttentionOptions options = {})
      : m_features(std::move(features)), m_position(std::move(position)), m_options(options) {
    toeplitz::require_available(options.engine);
  }

  const F& features() const { return m_features; }
  const P& position() const { return m_position; }
  const AttentionOptions& options() const { return m_options; }

  /// q (n_q,d) k (n_k,d) v (n_k,d_v) -> y (n_q,d_v). A row that sees no key is zero.
  /// Throws InvalidArgument for shapes that do not fit, std::bad_alloc. Memory O(n (r + d_v)), time by the engine
  /// (contract.hpp).
  Matrix<T> operator()(const MatrixView<T>& q, const MatrixView<T>& k, const MatrixView<T>& v,
                       const CallOptions& call = {}) const {
    const auto [n_q, n_k, d, d_v] = attention_shape<T>(q, k, v);
    require(d == m_features.input_dim(), "queries: expected ", m_features.input_dim(),
            " columns (the feature map's input_dim), got ", d);

    Report report;
    Matrix<T> y = Matrix<T>::Zero(n_q, d_v);
    if (n_k == 0) report.empty_rows = n_q;
    if (n_q > 0 && n_k > 0) {
      const Matrix<T> A = query_features(q);  // (n_q,r)
      const Matrix<T> B = key_features(k);    // (n_k,r)
      Matrix<T> U(n_k, d_v + 1);              // [v 1]: numerator and denominator come out together
      U.leftCols(d_v) = v;
      U.col(d_v).setOnes();

      const LagRange reachable = reachable_lags(n_q, n_k, call.offset, m_options.direction);
      LagWeights<T> c = exp_weights(m_position.bias(), reachable);
      const ProductShape shape{n_q, n_k, A.cols(), d_v + 1};
      report.engine = m_options.engine == Engine::automatic ? toeplitz::choose(c, shape) : m_options.engine;
      c.first += call.offset;  // from distances to differences j - i of row numbers

      Matrix<T> Y(n_q, d_v + 1);
      report.workspace_bytes = toeplitz::contract<T>(report.engine, c, A, B, U, Y);
      report.workspace_bytes +=
          sizeof(T) * static_cast<std::size_t>(A.size() + B.size() + U.size() + Y.size() + c.values.size());
      divide(Y, Visibility(m_position.bias(), n_k, call.offset, reachable), A, B, v, call.offset, y, report);
    }
    if (call.report) *call.report = report;
    return y;
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

  // y_i = Y[i, values] / Y[i, ones]; a row whose denominator is lost to rounding or underflow is computed again
  void divide(const Matrix<T>& Y, const Visibility& visible, const Matrix<T>& A, const Matrix<T>& B,
              const MatrixView<T>& v, Index offset, Matrix<T>& y, Report& report) const {
    constexpr T smallest = std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon();
    const Index d_v = v.cols();
    for (Index i = 0; i < Y.rows(); ++i) {
      if (visible.keys(i) == 0) {
        ++report.empty_rows;
        continue;
      }
      T denominator = Y(i, d_v);
      if (std::abs(denominator) < smallest || (is_positive<F>() && denominator <= 0)) {
        ++report.repaired_rows;
        denominator = direct_row(i + offset, A.row(i), B, v, y.row(i));
      } else {
        y.row(i) = Y.row(i).head(d_v) / denominator;
      }
      if (denominator <= 0) ++report.indefinite_rows;
    }
  }

  // y_i alone, in double, its weights relative to the largest that it sees. Returns the denominator.
  template <class Features, class Row>
  T direct_row(Index position, const Features& a, const Matrix<T>& B, const MatrixView<T>& v, Row y) const {
    const LagBias<T>& b = m_position.bias();
    const Index n_k = B.rows();
    const Index end = m_options.direction == Direction::causal ? std::min(position + 1, n_k) : n_k;
    const double largest = b.max({-position, end - 1 - position});
    const Eigen::RowVectorXd a_double = a.template cast<double>();
    Eigen::RowVectorXd numerator = Eigen::RowVectorXd::Zero(v.cols());
    double denominator = 0;
    for (Index j = 0; j < end; ++j) {
      const double weight = a_double.dot(B.row(j).template cast<double>()) * std::exp(b[j - position] - largest);
      if (weight == 0) continue;  // a key of weight 0 leaves the row alone, whatever its value holds
      numerator += weight * v.row(j).template cast<double>();
      denominator += weight;
    }
    y = (numerator / denominator).template cast<T>();
    return static_cast<T>(denominator);
  }

  F m_features;
  P m_position;
  AttentionOptions m_options;
};

}  // namespace nprf
