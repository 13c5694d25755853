// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/attention/head_weights.hpp"
#include "nprf/attention/non_finite.hpp"
#include "nprf/attention/saved.hpp"
#include "nprf/attention/value_unit.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/panel.hpp"

namespace nprf {

/// What adds a row's share to the gradients of keys, values and biases.
enum class SummedBy : char { transforms, tiles };

/// The powers of two that backward computes in: relative to them no value that counts and no entry of dy is above 1,
/// and neither dy / D nor what comes of it overflows or underflows. A row's factor goes to its features:
///
///     A'_i = f_i A_i    G_i = [dy_i  -(dy_i.y_i)] / (D_i f_i)    dA_i = f_i dA'_i
///
/// G_i is at most 1 where transforms add up the rows. By tiles f_i is at most 1: where D_i is small because all weights
/// are, A'_i would be so large beside G_i that c[j-i] (G_i.U_j) underflows.
template <Real T>
class GradientUnits {
 public:
  /// Of the rows that have a gradient, and of the values that those attend to whose gradient is finite; other rows of
  /// values (n_k,d_v) become zero where they are far larger, and the unit is that of the values that are left. Refers
  /// to what was saved and to dy (n_q,d_v), and lies in the workspace. O((n_q + n_k) d_v), times log n where values are
  /// far apart.
  template <class Values>
  GradientUnits(const SavedSequence<T>& saved, const MatrixView<T>& dy, const HeadWeights<T>& weights,
                const Placement& keys, Values&& values, Workspace& workspace)
      : m_saved(saved), m_dy(dy), m_largest_dy(workspace.take<T>(dy.rows())) {
    const Workspace::Scope scope(workspace);
    const Index n_q = dy.rows(), n_k = values.rows();
    bool* counts = workspace.take<bool>(n_q);  // rows that have weights, then those with a finite gradient
    T largest = 0, largest_dy = 0;
    for (Index i = 0; i < n_q; ++i) counts[i] = saved.denominator[i] != 0 && std::isfinite(saved.denominator[i]);
    for (const Index i : saved.repaired) counts[i] = true;
    for (Index i = 0; i < n_q; ++i) {
      const T of_row = m_largest_dy[i] = largest_finite(dy.row(i));
      if (counts[i]) largest_dy = std::max(largest_dy, of_row);
      counts[i] = counts[i] && of_row > 0 && is_finite_row(dy.row(i)) && is_finite_row(saved.y.row(i));
      if (counts[i]) largest = std::max(largest, saved.largest_values[i]);
    }
    m_of_dy = unit_above(largest_dy);
    m_of_values = unit_of_all(values);
    if (m_of_values / most_apart<T> > largest) {
      auto seen = workspace.template matrix<double>(n_k, 1);
      weights.seen_by_any(
          keys, [&](Index i, auto&& x) { x[0] = counts[i] ? 1 : 0; }, seen, workspace);
      for (Index j = 0; j < n_k; ++j)
        if (seen(j, 0) == 0) values.row(j).setZero();
      m_of_values = unit_of_all(values);
    }
    if (m_of_values != 1) values /= m_of_values;
    m_exponent =
        toeplitz::exponent_of(m_of_values) + toeplitz::exponent_of(m_of_dy) + toeplitz::exponent_of(saved.unit);
  }

  T of_values() const { return m_of_values; }
  T of_dy() const { return m_of_dy; }
  /// The exponent of what is a product of values and dy, beside the unit that values were saved in.
  int exponent() const { return m_exponent; }

  /// log2 f_i; the size s_i that G_i is measured by; and sum_j c[j-i] A'_i.B_j = D_i f_i.
  struct Row {
    int factor;
    T size, sum;
  };

  /// Sets A'_i (r) and G_i (d_v+1), in these units. Rows without gradient are zero, and the factor of those that were
  /// computed one by one is dy's alone. Entries of G that are not finite have no part in what the others are measured
  /// by.
  template <class RowA, class RowG>
  Row scale(Index i, SummedBy by, RowA&& a, RowG&& g) const {
    const Index d_v = m_dy.cols();
    const T D = m_saved.denominator[i], of_dy = unit_above(m_largest_dy[i]);
    Row row{toeplitz::exponent_of(of_dy) - toeplitz::exponent_of(m_of_dy), 0, 0};
    a = m_saved.A.row(i);
    if (D == 0) {
      g.setZero();
      return row;
    }
    int exponent = 0;
    const T mantissa = std::isfinite(D) ? std::frexp(D, &exponent) : D;  // of 1/2 to 1
    auto dy = g.head(d_v);
    dy = m_dy.row(i) / of_dy;
    const T dy_y = dy.cwiseProduct(m_saved.y.row(i) / m_of_values).sum();
    g[d_v] = -dy_y;
    T sum = dy.cwiseAbs().sum(), of_ones = std::abs(dy_y), of_values = m_saved.largest_values[i] / m_of_values;
    if (!std::isfinite(sum + of_ones)) {
      sum = dy.array().isFinite().select(dy.array().abs(), T(0)).sum();
      of_values = 1;  // only dv is left, which knows of no values
      if (!std::isfinite(of_ones)) of_ones = 0;
    }
    const T largest = std::max(m_largest_dy[i] / of_dy, of_ones) / std::abs(mantissa);
    if (!(largest > 0) || !std::isfinite(largest)) {
      g /= mantissa;
      a.setZero();
      return row;
    }
    T unit = toeplitz::unit_of(largest);
    if (by == SummedBy::tiles)
      unit = std::ldexp(unit, -std::clamp(row.factor + toeplitz::exponent_of(unit) - exponent, 0, most_lifted));
    const T of_sum = std::abs(mantissa) * unit;
    g = (g / mantissa) / unit;
    row.size = std::max(sum / of_sum * of_values, of_ones / of_sum);
    row.sum = std::ldexp(of_sum, row.factor);
    row.factor += toeplitz::exponent_of(unit) - exponent;
    a *= std::ldexp(T(1), row.factor);
    return row;
  }

 private:
  static constexpr int most_lifted = std::numeric_limits<T>::max_exponent / 2;

  const SavedSequence<T>& m_saved;
  const MatrixView<T>& m_dy;
  T* m_largest_dy;  // (n_q)  among the finite entries of each row
  T m_of_values = 1, m_of_dy = 1;
  int m_exponent = 0;
};

}  // namespace nprf
