// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "nprf/core/lag_bias.hpp"

namespace nprf {

/// One row of attention by itself, in double, its weights relative to the largest that it sees: what remains of a row
/// when the common scale leaves it no digits. O(n_k (r + d_v)).
///
///     w_j = (a.B_j) e_j,  e_j = exp(b[j - position] - max),  D = sum_j w_j,  y = sum_j w_j v_j / D
template <Real T>
class DirectRow {
 public:
  DirectRow(const LagBias<T>& bias, Index position, Direction direction, Index n_k)
      : m_bias(bias), m_position(position) {
    m_end = direction == Direction::causal ? std::min(position + 1, n_k) : n_k;
    m_largest = bias.max({-position, m_end - 1 - position});
  }

  /// Writes y (d_v) and returns D.
  template <class Row>
  double forward(const Matrix<T>& A, Index i, const Matrix<T>& B, const MatrixView<T>& v, Row y) const {
    const Eigen::RowVectorXd a = A.row(i).template cast<double>();
    Eigen::RowVectorXd numerator = Eigen::RowVectorXd::Zero(v.cols());
    double denominator = 0;
    for (Index j = 0; j < m_end; ++j) {
      const double weight = a.dot(B.row(j).template cast<double>()) * e(j);
      if (weight == 0) continue;  // a key of weight 0 leaves the row alone, whatever its value holds
      numerator += weight * v.row(j).template cast<double>();
      denominator += weight;
    }
    y = (numerator / denominator).template cast<T>();
    return denominator;
  }

  // forward: y = sum_j w_j v_j / D; so with h_j = (dy.v_j - dy.y) / D
  //     da = sum_j h_j e_j B_j    dB_j = h_j e_j a    dv_j = (w_j / D) dy    db[j - position] = h_j w_j
  template <class RowY, class RowDy, class LagGradient>
  void backward(const Matrix<T>& A, Index i, const Matrix<T>& B, const MatrixView<T>& v, const RowY& y,
                const RowDy& dy_row, Matrix<T>& dA, Matrix<T>& dB, Matrix<T>& dU, LagGradient&& db) const {
    const Eigen::RowVectorXd a = A.row(i).template cast<double>(), dy = dy_row.template cast<double>();
    const double dy_y = dy.dot(y.template cast<double>());
    double denominator = 0;
    for (Index j = 0; j < m_end; ++j) denominator += a.dot(B.row(j).template cast<double>()) * e(j);
    Eigen::RowVectorXd da = Eigen::RowVectorXd::Zero(a.size());
    for (Index j = 0; j < m_end; ++j) {
      const Eigen::RowVectorXd b = B.row(j).template cast<double>();
      const double weight = a.dot(b) * e(j), h = (dy.dot(v.row(j).template cast<double>()) - dy_y) / denominator;
      if (e(j) == 0) continue;
      da += h * e(j) * b;
      dB.row(j) += (h * e(j) * a).template cast<T>();
      dU.row(j).head(dy.size()) += (weight / denominator * dy).template cast<T>();
      db(j - m_position, h * weight);
    }
    dA.row(i) += da.template cast<T>();
  }

 private:
  double e(Index j) const { return std::exp(m_bias[j - m_position] - m_largest); }

  const LagBias<T>& m_bias;
  Index m_position, m_end;
  double m_largest;
};

}  // namespace nprf
