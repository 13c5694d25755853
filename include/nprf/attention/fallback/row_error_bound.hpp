// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/attention/weights/prepared_position.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/row_quotient.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/toeplitz/bordered_product.hpp"

namespace nprf {

/// The error of k roundings of a sum, in eps / 2. They are at most k. Independent ones grow with sqrt(k), but those of
/// equal terms are correlated: the most that was measured is k / 8.
inline double growth_of_roundings(Index k) {
  const double all = static_cast<double>(k);
  return std::min(all, 1.5 * std::sqrt(all) + all / 8);
}

/// The rounding error of a row's sums over r features and over `keys` keys that are summed plainly, relative to the sum
/// of the terms' magnitudes.
template <Real T>
double error_of_sums(Index r, Index keys) {
  // numerator and denominator share the scores, but not the sums over runs of keys
  const Index terms = std::min(keys, run_keys) + 4 * keys / run_keys;
  const double roundings = growth_of_roundings(r) + 2 * growth_of_roundings(terms) + 4;
  return static_cast<double>(std::numeric_limits<T>::epsilon()) / 2 * roundings;
}

/// The relative error of the weights exp(b - max b), of which b - max b is computed in double: 0 in float. A row whose
/// biases are all farther from the maximum than row_keeps_precision() allows is recomputed.
template <Real T>
double error_of_weights(double bias_spread) {
  // -ln sqrt(min): the smallest denominator that keeps its precision (row_quotient.hpp)
  constexpr double max_spread = 354;
  return sizeof(T) == sizeof(double) ? std::numeric_limits<double>::epsilon() / 2 * std::min(bias_spread, max_spread)
                                     : 0;
}

/// A weight exp(-largest_exponent) is negligible beside 1.
template <Real T>
inline constexpr double largest_exponent = sizeof(T) == sizeof(float) ? 104 : 745;

/// The rounding error of rows of exact softmax over `keys` keys, relative to the largest |v|: that of the weights
/// exp(q.k + b), for d channels, norms of q and k with the product `norms`, and biases up to `bias_spread` apart, of
/// which the row attends to one within largest_exponent of the largest; and that of the sums over runs of `run` keys.
template <Real T>
double error_of_softmax(Index d, double norms, double bias_spread, Index keys, Index run = softmax_run_keys) {
  const double scores = growth_of_roundings(d) * norms + 2 * (norms + std::min(bias_spread, largest_exponent<T>));
  const Index terms = std::min(keys, run) + keys / run;
  const double roundings = scores + 2 * growth_of_roundings(terms) + 8;
  return static_cast<double>(std::numeric_limits<T>::epsilon()) / 2 * roundings;
}

/// Bounds of the errors of the rows y = N / D of a product, relative to v_max(i), the largest |v| that query i attends
/// to. With the engine's row_error_bounds() E(N_i) and E(D_i), and a relative error e of weights and sums,
///
///     bound_i = fft_error_i + e condition_i
///
/// where fft_error_i is the bound of quotient_error() (row_quotient.hpp), and the second term that of other errors.
///
/// With positive features the condition is 1: |y_i| <= v_max(i), and an error e of all weights changes y by at most e
/// v_max(i), because the mean distance of values from their mean is at most v_max(i). With features of both signs it is
/// |A_i| sum_j c_ij |B_j| / |D_i| (1 + max(1, |y_i| / v_max(i))). O((n_q + n_k) r).
template <Real T>
class RowErrorBound {
 public:
  /// For the product of x with values v (n_k,d_v), where `value_maxima` (n_k) are the largest |v| of each key.
  RowErrorBound(const PreparedPosition<T>& position, const toeplitz::BorderedProduct<T>& product,
                const toeplitz::Factors<T>& x, const T* value_maxima, bool all_positive, const Team& team) {
    Workspace& workspace = team.workspace();
    const Index n_q = x.queries.count(), n_k = x.keys.count();
    if (product.rounding() != toeplitz::Rounding::per_row)
      m_fft_errors = {workspace.take<double>(n_q), workspace.take<double>(n_q)};
    m_largest_values = workspace.take<T>(n_q);
    if (!all_positive) m_terms = workspace.take<T>(n_q);
    const Workspace::Scope scope(workspace);
    position.attendance().largest_attended(value_maxima, x.keys, m_largest_values, workspace);
    if (m_fft_errors.Y) product.row_error_bounds(x, value_maxima, m_fft_errors, team);
    if (m_terms) {
      auto a = workspace.template matrix<T>(n_q, 1), b = workspace.template matrix<T>(n_k, 1),
           none = workspace.template matrix<T>(n_k, 0), nothing = workspace.template matrix<T>(n_q, 0);
      a = x.A.rowwise().norm();
      b = x.B.rowwise().norm();
      product.contract({a, b, none, x.queries, x.keys, x.key_log_scales}, nothing, team, m_terms);
    }
  }

  /// The bound of the FFT's error in row i, from its numerators and its denominator; infinity if it is NaN.
  template <class RowN>
  double fft_error(Index i, const RowN& N, T D) const {
    if (!m_fft_errors.Y || m_fft_errors.sums[i] == 0) return 0;
    const double d = std::abs(static_cast<double>(D)), v_max = static_cast<double>(m_largest_values[i]);
    const double error =
        quotient_error(m_fft_errors.Y[i], m_fft_errors.sums[i], d, v_max, m_terms ? magnitude(i, N, d) : 1);
    return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
  }

  /// (n_q)  v_max(i).
  const T* largest_values() const { return m_largest_values; }

  /// The sum of the magnitudes of the terms of row i, and what an FFT may have added to it.
  double size_of_terms(Index i, T D) const {
    return std::abs(static_cast<double>(m_terms ? m_terms[i] : D)) + (m_fft_errors.Y ? m_fft_errors.sums[i] : 0);
  }
  /// Multiplies the terms of row i by a factor.
  void scale(Index i, T factor) {
    if (m_terms) m_terms[i] *= factor;
    if (m_fft_errors.Y)
      m_fft_errors.Y[i] *= static_cast<double>(factor), m_fft_errors.sums[i] *= static_cast<double>(factor);
  }
  /// Adds positive terms to row i that are computed without an FFT.
  void add_exact(Index i, T terms) {
    if (m_terms) m_terms[i] = std::abs(m_terms[i]) + terms;
  }

  /// The condition of row i, from its numerators and its denominator.
  template <class RowN>
  double condition(Index i, const RowN& N, T D) const {
    if (!m_terms) return 1;
    const double d = std::abs(static_cast<double>(D)), error = m_fft_errors.Y ? m_fft_errors.sums[i] : 0;
    return (std::abs(static_cast<double>(m_terms[i])) + error) / d * (1 + magnitude(i, N, d));
  }
  /// The condition of row i, from y and from terms = |A_i| sum_j c_ij |B_j| / |D_i|.
  template <class RowY>
  double condition_of(Index i, const RowY& y, double terms) const {
    return m_terms ? terms * (1 + magnitude(i, y, 1)) : 1;
  }

 private:
  template <class RowN>
  double magnitude(Index i, const RowN& N, double d) const {
    const double v_max = static_cast<double>(m_largest_values[i]);
    return relative_size(v_max == 0 ? 0 : static_cast<double>(N.cwiseAbs().maxCoeff()), d, v_max);
  }

  toeplitz::RowErrorBounds m_fft_errors{nullptr, nullptr};  // null if the engine's rounding is per row
  T* m_largest_values;                                      // (n_q)
  T* m_terms = nullptr;  // (n_q)  |A_i| sum_j c_ij |B_j|; null if features are positive
};

}  // namespace nprf
