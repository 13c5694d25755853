// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/attention/weights/prepared_position.hpp"
#include "nprf/core/row_quotient.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/toeplitz/bordered_product.hpp"

namespace nprf {

/// What sums of a few features and keys, added up in turn, are off by, relative to the sum of their terms' sizes. Of k
/// roundings, k eps / 2 at most; rounding that does not know of each other goes with sqrt(k), but that of equal terms
/// is alike, and an eighth of them was seen to add up.
template <Real T>
double error_of_sums(Index r, Index keys) {
  const auto growth = [](Index k) {
    const double all = static_cast<double>(k);
    return std::min(all, 1.5 * std::sqrt(all) + all / 8);
  };
  // scores, which numerators and denominators share, and sums over tiles of 64 keys, which they do not
  const double roundings = growth(r) + 2 * growth(std::min<Index>(keys, 64) + keys / 16) + 4;
  return static_cast<double>(std::numeric_limits<T>::epsilon()) / 2 * roundings;
}

/// What the weights exp(b - max b) are off by, relative to themselves: in double, b may be as far from its maximum as
/// leaves a row its digits.
template <Real T>
double error_of_weights(double bias_spread) {
  constexpr double digits = 354;  // -ln sqrt(min): the smallest denominator that keeps its precision (row_quotient.hpp)
  return sizeof(T) == sizeof(double) ? std::numeric_limits<double>::epsilon() / 2 * std::min(bias_spread, digits) : 0;
}

/// How far off the rows y = N / D of one product may be, relative to the largest |v| that a row sees.
///
///     bound_i = fft_error_i + error condition_i (1 + |y_i| / v_max(i))
///
/// where fft_error_i is the rounding error of an FFT (row_quotient.hpp), and the second term is the row's own rounding.
///
/// With weights of one sign |y_i| <= v_max(i), the condition is 1 and an error in all weights moves y by no more than
/// that: the mean distance of values from their mean is at most v_max. With features of both signs the condition is
/// |A_i| sum_j c_ij |B_j| / |D_i|. O((n_q + n_k) r) to build, in the team's workspace.
template <Real T>
class RowErrors {
 public:
  /// For the product of factors whose values are v (n_k,d_v), the largest |v| of each row in `sizes` (n_k).
  RowErrors(const PreparedPosition<T>& weights, const toeplitz::BorderedProduct<T>& product,
            const toeplitz::Factors<T>& x, const T* sizes, bool all_positive, const Team& team) {
    Workspace& workspace = team.workspace();
    const Index n_q = x.queries.count(), n_k = x.keys.count();
    if (product.rounding() != toeplitz::Rounding::per_row)
      m_noise = {workspace.take<double>(n_q), workspace.take<double>(n_q)};
    m_seen = workspace.take<T>(n_q);
    if (!all_positive) m_terms = workspace.take<T>(n_q);
    const Workspace::Scope scope(workspace);
    weights.attendance().largest_attended(sizes, x.keys, m_seen, workspace);
    if (m_noise.Y) product.row_error_bounds(x, sizes, m_noise, team);
    if (m_terms) {
      auto a = workspace.template matrix<T>(n_q, 1), b = workspace.template matrix<T>(n_k, 1),
           none = workspace.template matrix<T>(n_k, 0), nothing = workspace.template matrix<T>(n_q, 0);
      a = x.A.rowwise().norm();
      b = x.B.rowwise().norm();
      product.contract({a, b, none, x.queries, x.keys, x.key_log_scales}, nothing, team, m_terms);
    }
  }

  /// Of row i, from its numerators and its denominator; infinity where nothing is known.
  template <class RowN>
  double fft_error(Index i, const RowN& N, T D) const {
    if (!m_noise.Y || m_noise.sums[i] == 0) return 0;
    const double d = std::abs(static_cast<double>(D)), v_max = static_cast<double>(m_seen[i]);
    const double error = quotient_error(m_noise.Y[i], m_noise.sums[i], d, v_max, m_terms ? size(i, N, d) : 1);
    return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
  }

  /// (n_q)  the largest |v| that each row sees.
  const T* largest_values() const { return m_seen; }

  /// How many times the error of its weights a row may be off, from the same.
  template <class RowN>
  double condition(Index i, const RowN& N, T D) const {
    if (!m_terms) return 1;
    const double d = std::abs(static_cast<double>(D)), lost = m_noise.Y ? m_noise.sums[i] : 0;
    return (std::abs(static_cast<double>(m_terms[i])) + lost) / d * (1 + size(i, N, d));
  }
  /// The same from the row itself and the sum of its terms' sizes over |D|.
  template <class RowY>
  double condition_of(Index i, const RowY& y, double terms) const {
    return m_terms ? terms * (1 + size(i, y, 1)) : 1;
  }

 private:
  template <class RowN>
  double size(Index i, const RowN& N, double d) const {
    const double v_max = static_cast<double>(m_seen[i]);
    return relative_size(v_max == 0 ? 0 : static_cast<double>(N.cwiseAbs().maxCoeff()), d, v_max);
  }

  toeplitz::RowErrorBounds m_noise{nullptr, nullptr};
  T *m_seen, *m_terms = nullptr;  // (n_q)
};

}  // namespace nprf
