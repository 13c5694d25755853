// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "nprf/attention/weights/prepared_position.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/row_quotient.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/toeplitz/bordered_product.hpp"

namespace nprf {

/// The error of a sum after k roundings, in units of eps / 2: at most k. Independent roundings add up to a multiple of
/// sqrt(k), but the roundings of equal terms are correlated: the most that was measured for them is k / 8.
inline double growth_of_roundings(Index k) {
  const double all = static_cast<double>(k);
  return std::min(all, 1.5 * std::sqrt(all) + all / 8);
}

/// The rounding error of a row's sums over r features and over `keys` keys that are added without compensation
/// (long_sums.hpp), relative to the sum of the terms' magnitudes.
template <Real T>
double error_of_sums(Index r, Index keys) {
  // numerator and denominator have the same scores, which count once, but each has sums over runs of keys of its own
  const Index terms = std::min(keys, run_keys) + 4 * keys / run_keys;
  const double roundings = growth_of_roundings(r) + 2 * growth_of_roundings(terms) + 4;
  return static_cast<double>(std::numeric_limits<T>::epsilon()) / 2 * roundings;
}

/// The relative error of the weights exp(b - max b) because b - max b is rounded. This difference is computed in
/// double, so this error counts as 0 if T is float. A row whose biases are all farther from the maximum than
/// row_keeps_precision() allows is recomputed.
template <Real T>
double error_of_weights(double bias_spread) {
  // -ln(sqrt(min)), where sqrt(min) is the smallest denominator that keeps its precision (row_quotient.hpp)
  constexpr double max_spread = 354;
  return sizeof(T) == sizeof(double) ? std::numeric_limits<double>::epsilon() / 2 * std::min(bias_spread, max_spread)
                                     : 0;
}

/// A weight exp(-largest_exponent) is negligible beside 1.
template <Real T>
inline constexpr double largest_exponent = sizeof(T) == sizeof(float) ? 104 : 745;

/// The rounding error of rows of exact softmax over `keys` keys, relative to the largest |v|. It has two parts: the
/// error of the weights exp(q.k + b), for d channels, and the error of the sums over runs of `run` keys. `norms` is the
/// product of the norms of q and k. The biases are up to `bias_spread` apart; each row attends to a key whose bias is
/// within largest_exponent of the largest bias.
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
/// where fft_error_i is the bound of quotient_error() (row_quotient.hpp), and the second term bounds all other errors.
///
/// With positive features the condition is 1: |y_i| <= v_max(i), and an error e of all weights changes y by at most e
/// v_max(i), because the mean distance of values from their mean is at most v_max(i). With features of both signs it is
/// (|A_i| sum_j c_ij |B_j|) / |D_i| * (1 + max(1, |y_i| / v_max(i))). O((n_q + n_k) r).
template <Real T>
class RowErrorBound {
 public:
  /// For the product of x with values v (n_k,d_v), of which `value_maxima` (n_k) has the largest |v| of each key.
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
      set_norms(a.data(), x.A);
      set_norms(b.data(), x.B);
      product.contract({a, b, none, x.queries, x.keys, x.key_log_scales}, nothing, team, m_terms);
    }
  }

  /// The bound of the FFT's error in row i, from its numerators and its denominator; infinity if it is NaN.
  double fft_error(Index i, std::span<const T> N, T D) const {
    if (!m_fft_errors.Y || m_fft_errors.sums[i] == 0) return 0;
    const double d = std::abs(static_cast<double>(D)), v_max = static_cast<double>(m_largest_values[i]);
    const double error =
        quotient_error(m_fft_errors.Y[i], m_fft_errors.sums[i], d, v_max, m_terms ? magnitude(i, N, d) : 1);
    return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
  }

  /// v_max(i) of each row (n_q).
  const T* largest_values() const { return m_largest_values; }

  /// A bound of the terms of row i, the sum of the magnitudes of what is added up in its denominator: it includes the
  /// bound of the FFT's error.
  double size_of_terms(Index i, T D) const {
    return std::abs(static_cast<double>(m_terms ? m_terms[i] : D)) + (m_fft_errors.Y ? m_fft_errors.sums[i] : 0);
  }
  /// Multiplies the terms of row i and the bounds of its FFT errors by a factor, by which N_i and D_i are multiplied
  /// too.
  void scale(Index i, T factor) {
    if (m_terms) m_terms[i] *= factor;
    if (m_fft_errors.Y)
      m_fft_errors.Y[i] *= static_cast<double>(factor), m_fft_errors.sums[i] *= static_cast<double>(factor);
  }
  /// Adds `terms`, a sum of positive weights that is computed without an FFT, to the terms of row i.
  void add_exact(Index i, T terms) {
    if (m_terms) m_terms[i] = std::abs(m_terms[i]) + terms;
  }

  /// The condition of row i, from its numerators and its denominator.
  double condition(Index i, std::span<const T> N, T D) const {
    if (!m_terms) return 1;
    const double d = std::abs(static_cast<double>(D)), error = m_fft_errors.Y ? m_fft_errors.sums[i] : 0;
    return (std::abs(static_cast<double>(m_terms[i])) + error) / d * (1 + magnitude(i, N, d));
  }
  /// The condition of row i, from y and from terms = (|A_i| sum_j c_ij |B_j|) / |D_i|.
  double condition_of(Index i, std::span<const T> y, double terms) const {
    return m_terms ? terms * (1 + magnitude(i, y, 1)) : 1;
  }

 private:
  double magnitude(Index i, std::span<const T> N, double d) const {
    const double v_max = static_cast<double>(m_largest_values[i]);
    return relative_size(v_max == 0 ? 0 : static_cast<double>(largest_magnitude(N)), d, v_max);
  }

  toeplitz::RowErrorBounds m_fft_errors{nullptr, nullptr};  // null if the engine's rounding is per row
  T* m_largest_values;                                      // (n_q)
  T* m_terms = nullptr;  // (n_q)  |A_i| sum_j c_ij |B_j|; null if features are positive
};

}  // namespace nprf
