// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "nprf/core/long_sums.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// One row of attention by itself, in double, its weights relative to the largest that it sees: what remains of a row
/// when the common scale leaves it no digits. O(n_k (r + d_v)).
///
///     w_j = (a.B_j) e_j,  e_j = exp(b_j - max b),  D = sum_j w_j,  y = sum_j w_j v_j / D
///
/// b(j) is the row's bias for key j, -infinity for a key that it does not see.
template <class Bias>
class DirectRow {
 public:
  DirectRow(Index n_k, Bias b) : m_n_k(n_k), m_b(std::move(b)) {
    for (Index j = 0; j < n_k; ++j) m_largest = std::max<double>(m_largest, m_b(j));
  }

  /// Writes y (d_v) and returns D; `scratch` (3 d_v).
  template <class RowA, class MatrixB, class MatrixV, class RowY>
  double forward(const RowA& a, const MatrixB& B, const MatrixV& v, VectorMap<double> scratch, RowY&& y) const {
    const Index d_v = v.cols();
    auto numerator = scratch.head(d_v), lost = scratch.segment(d_v, d_v), term = scratch.tail(d_v);
    numerator.setZero();
    lost.setZero();
    double denominator = 0, denominator_lost = 0;
    for (Index j = 0; j < m_n_k; ++j) {
      if (e(j) == 0) continue;  // a key of weight 0 leaves the row alone, whatever it holds
      const double weight = dot(a, B.row(j)) * e(j);
      if (weight == 0) continue;
      term = weight * v.row(j).transpose().template cast<double>();
      add_compensated(d_v, term.data(), numerator.data(), lost.data());
      add_compensated(Index{1}, &weight, &denominator, &denominator_lost);
    }
    add_compensation(d_v, lost.data(), numerator.data());
    add_compensation(Index{1}, &denominator_lost, &denominator);
    y = (numerator / denominator).transpose().template cast<typename std::remove_reference_t<RowY>::Scalar>();
    return denominator;
  }

  // forward: y = sum_j w_j v_j / D; so with h_j = (dy.v_j - dy.y) / D
  //     da = sum_j h_j e_j B_j    dB_j = h_j e_j a    dv_j = (w_j / D) dy    db_j = h_j w_j
  /// Adds to da (r), and times a factor to dB (n_k,r) and the first d_v columns of dU; calls db(j, gradient) for that
  /// times the factor too. `sum` (r) is scratch.
  template <class RowA, class MatrixB, class MatrixV, class RowY, class RowDa, class MatrixDb, class MatrixDu, class Db>
  void backward(const RowA& a, const MatrixB& B, const MatrixV& v, const RowY& y, const RowY& dy, double factor,
                VectorMap<double> sum, RowDa&& da, MatrixDb& dB, MatrixDu& dU, Db&& db) const {
    using T = typename MatrixDb::Scalar;
    const double dy_y = dot(dy, y);
    double denominator = 0;
    for (Index j = 0; j < m_n_k; ++j)
      if (e(j) > 0) denominator += dot(a, B.row(j)) * e(j);
    sum.setZero();
    for (Index j = 0; j < m_n_k; ++j) {
      if (e(j) == 0) continue;
      const double weight = dot(a, B.row(j)) * e(j), h = (dot(dy, v.row(j)) - dy_y) / denominator;
      sum += h * e(j) * B.row(j).transpose().template cast<double>();
      dB.row(j) += (factor * h * e(j) * a.template cast<double>()).template cast<T>();
      dU.row(j).head(dy.size()) += (factor * weight / denominator * dy.template cast<double>()).template cast<T>();
      db(j, factor * h * weight);
    }
    da += sum.transpose().template cast<T>();
  }

 private:
  double e(Index j) const { return std::exp(m_b(j) - m_largest); }

  template <class X, class Y>
  static double dot(const X& x, const Y& y) {
    return x.template cast<double>().dot(y.template cast<double>());
  }

  Index m_n_k;
  Bias m_b;
  double m_largest = -std::numeric_limits<double>::infinity();
};

}  // namespace nprf
