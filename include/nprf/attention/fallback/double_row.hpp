// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/long_sums.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"

namespace nprf {

/// One row of attention in double, with weights relative to the largest of the row:
///
///     w_j = (a.B_j) e_j,  e_j = exp(b_j - max b) / c,  D = sum_j w_j,  y = sum_j w_j v_j / D
///
/// with the constant c that makes the largest |w_j| 1, so that w_j v_j does not underflow beside it. It is for rows
/// that lose their precision or underflow in T, even with weights relative to the row. O(n_k (r + d_v)).
template <Real T>
class DoubleRow {
 public:
  /// Refers to the features a (1,r) of the query and B (n_k,r) of the keys and to the values v (n_k,d_v). The biases b
  /// (n_k), -infinity for keys that the query does not attend to, are overwritten by e.
  DoubleRow(const MatrixView<T>& a, const MatrixView<T>& B, const MatrixView<T>& v, VectorMap<double> b)
      : m_a(a), m_B(B), m_v(v), m_e(b.data()) {
    double largest = -std::numeric_limits<double>::infinity();
    for (const double bias : b) largest = std::max(largest, bias);
    for (double& e : b) e = std::exp(e - largest);
    for (Index j = 0; j < b.size(); ++j)
      if (b[j] > 0) m_largest = std::max(m_largest, std::abs(score(j) * b[j]));
    if (m_largest > 0) b /= m_largest;
  }

  /// Sets y (1,d_v) and returns c D.
  double forward(MatrixRef<T> y, Workspace& scratch) const {
    const Workspace::Scope scope(scratch);
    const Index d_v = m_v.cols();
    auto numerator = scratch.vector<double>(d_v), compensation = scratch.vector<double>(d_v),
         term = scratch.vector<double>(d_v);
    numerator.setZero();
    compensation.setZero();
    double denominator = 0, denominator_compensation = 0;
    for (Index j = 0; j < m_B.rows(); ++j) {
      if (m_e[j] == 0) continue;  // 0 times a non-finite value must not count
      const double weight = score(j) * m_e[j];
      if (weight == 0) continue;
      term = weight * m_v.row(j).transpose().template cast<double>();
      add_compensated(d_v, term.data(), numerator.data(), compensation.data());
      add_compensated(Index{1}, &weight, &denominator, &denominator_compensation);
    }
    add_compensation(d_v, compensation.data(), numerator.data());
    add_compensation(Index{1}, &denominator_compensation, &denominator);
    y = (numerator / denominator).transpose().template cast<T>();
    return m_largest * denominator;
  }

  /// Where backward() writes. `scale` is a factor of dB, dU and db, but not of da.
  struct Gradients {
    double scale;
    MatrixRef<T> da, dB, dU;  // (1,r) (n_k,r) (n_k,d_v+1), added to; the last column of dU is left as it is
    double* db;               // (n_k), set
  };

  // forward: y = sum_j w_j v_j / D; so with h_j = (dy.v_j - dy.y) / D
  //     da = sum_j h_j e_j B_j    dB_j = h_j e_j a    dv_j = (w_j / D) dy    db_j = h_j w_j
  /// For y (1,d_v) of forward() and dy (1,d_v) = dL/dy.
  void backward(const MatrixView<T>& y, const MatrixView<T>& dy, Gradients out, Workspace& scratch) const {
    const Workspace::Scope scope(scratch);
    const Index d_v = m_v.cols();
    const double dy_y = dot(dy.row(0), y.row(0));
    double denominator = 0;
    for (Index j = 0; j < m_B.rows(); ++j)
      if (m_e[j] > 0) denominator += score(j) * m_e[j];
    auto da = scratch.vector<double>(m_a.cols());
    da.setZero();
    for (Index j = 0; j < m_B.rows(); ++j) {
      out.db[j] = 0;
      if (m_e[j] == 0) continue;
      const double weight = score(j) * m_e[j], h = (dot(dy.row(0), m_v.row(j)) - dy_y) / denominator;
      da += h * m_e[j] * m_B.row(j).transpose().template cast<double>();
      out.dB.row(j) += (out.scale * h * m_e[j] * m_a.row(0).template cast<double>()).template cast<T>();
      out.dU.row(j).head(d_v) +=
          (out.scale * weight / denominator * dy.row(0).template cast<double>()).template cast<T>();
      out.db[j] = out.scale * h * weight;
    }
    out.da += da.transpose().template cast<T>();
  }

 private:
  double score(Index j) const { return dot(m_a.row(0), m_B.row(j)); }

  template <class X, class Y>
  static double dot(const X& x, const Y& y) {
    return x.template cast<double>().dot(y.template cast<double>());
  }

  MatrixView<T> m_a, m_B, m_v;
  const double* m_e;     // (n_k)
  double m_largest = 0;  // c
};

}  // namespace nprf
