// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>

#include "nprf/attention/batch/forward_rows.hpp"
#include "nprf/attention/batch/head.hpp"
#include "nprf/attention/fallback/row_error_bound.hpp"
#include "nprf/attention/saved.hpp"
#include "nprf/attention/scaling/key_log_scales.hpp"
#include "nprf/attention/scaling/value_scaling.hpp"
#include "nprf/core/row_quotient.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/types.hpp"
#include "nprf/toeplitz/engines.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf {

/// The numerators N (n_q,d_v) and denominators D (n_q) of all rows of a sequence, [N D] = W [v 1], by the engine, and
/// bounds of its rounding errors.
template <Real T>
class ForwardProduct {
 public:
  /// Computes N and D. D is a member of `saved`, unless that is null. May multiply rows.B by the factors of its
  /// log-scales (merge_close_log_scales()). With exact pairs, adds the log-scales of D to rows.row_log_scales.
  ForwardProduct(ForwardRows<T>& rows, const SequenceInputs<T>& x, MatrixRef<T> N, SavedSequence<T>* saved)
      : m_rows(rows),
        m_product(rows.position.products().product(rows.keys, workspace())),
        m_tolerance(x.tolerance),
        m_N(N),
        m_D(rows.storage.vector(rows.n_q(), &SavedSequence<T>::denominator)),
        m_v(rows_of(rows.keys, x.v, rows.team)),
        m_values(scaled_values()),
        m_attends(workspace().template take<bool>(rows.n_q())),
        m_factors(merged_factors()),
        m_errors(rows.position, m_product, m_factors, m_values.maxima(), is_positive(), rows.team) {
    rows.position.attendance().attending_queries(rows.keys, m_attends, workspace());
    // With positive features the denominators alone decide which rows fail their error bound. If more than half do, the
    // direct engine computes all rows; but not if backward is to use the engine's denominators, nor with rounding per
    // block, where no row may depend on later ones
    if (m_product.rounding() == toeplitz::Rounding::global && is_positive() && !saved && !rows.has_exact_pairs()) {
      contract(m_product, workspace().template matrix<T>(rows.n_k(), 0), workspace().template matrix<T>(rows.n_q(), 0),
               m_D.data());
      m_all_direct = 2 * count_failed_bounds() > rows.n_q();
      if (m_all_direct)
        contract(rows.position.products().direct_product(rows.A.cols(), x.v.cols(), rows.team), m_values.rows(), N,
                 m_D.data());
      else
        contract(m_product, m_values.rows(), N, nullptr);
    } else {
      contract(m_product, m_values.rows(), N, m_D.data());
    }
  }

  const toeplitz::BorderedProduct<T>& product() const { return m_product; }
  /// v without padding.
  const MatrixView<T>& v() const { return m_v; }
  /// v() divided by a power of two, by which N is divided too, with zeros for non-finite values.
  const ScaledValues<T>& values() const { return m_values; }
  const toeplitz::Factors<T>& factors() const { return m_factors; }
  RowErrorBound<T>& errors() { return m_errors; }
  /// Whether the direct engine computed all rows.
  bool is_all_direct() const { return m_all_direct; }

  Eigen::Ref<Vector<T>>& D() { return m_D; }
  /// Whether query i attends to any key.
  bool attends(Index i) const { return m_attends[i]; }
  /// The bound of the FFT's error in row i.
  double fft_error(Index i) const { return m_all_direct ? 0 : m_errors.fft_error(i, row_of(m_N, i), m_D[i]); }
  bool within_tolerance(double fft_error) const { return passes_error_bound(fft_error, m_tolerance); }

  /// Whether the formula gives NaN, because the query is non-finite or attends to a non-finite key. If all weights
  /// underflow, D is 0 even for a non-finite query.
  bool is_non_finite(Index i) const {
    return m_rows.non_finite.attends_to_non_finite_key(i) ||
           ((!std::isfinite(m_D[i]) || m_D[i] == 0) && !is_finite(row_of(m_rows.A, i)));
  }

 private:
  Workspace& workspace() const { return m_rows.team.workspace(); }
  bool is_positive() const { return m_rows.head.features.is_positive(); }

  ScaledValues<T> scaled_values() {
    auto maxima = workspace().template vector<T>(m_rows.n_k());
    const MatrixView<T> finite = m_rows.non_finite.finite_values(m_v, maxima.data(), m_rows.team);
    // With rounding per block the scale is 1, because no bit of a row may depend on later values. m_product.rounding()
    // would be per row if all pairs are near
    const bool per_block = toeplitz::properties_of(m_product.engine()).rounding == toeplitz::Rounding::per_block;
    return {finite, maxima, !per_block, m_rows.team};
  }

  toeplitz::Factors<T> merged_factors() {
    ForwardRows<T>& x = m_rows;
    const bool accepts_log_scales = m_product.accepts_key_log_scales();
    if (x.has_exact_pairs())
      add_largest_log_scales(x.position.problem(), x.keys, x.key_log_scales, accepts_log_scales, x.row_log_scales);
    if (!accepts_log_scales) x.key_log_scales = merge_close_log_scales<T>(x.B, x.key_log_scales, x.team);
    const bool multiplies_log_scales = x.key_log_scales && !accepts_log_scales;
    const MatrixView<T> B =
        multiplies_log_scales ? with_log_scales<T>(x.B, x.key_log_scales, x.team) : MatrixView<T>(x.B);
    return {x.A, B, m_values.rows(), x.position.queries(), x.keys, accepts_log_scales ? x.key_log_scales : nullptr};
  }

  void contract(const toeplitz::BorderedProduct<T>& product, const MatrixView<T>& values, MatrixRef<T> N, T* D) const {
    product.contract(m_factors.with_values(values), N, m_rows.team, D);
  }

  Index count_failed_bounds() const {
    Index failed = 0;
    for (Index i = 0; i < m_rows.n_q(); ++i)
      failed += m_attends[i] && !is_non_finite(i) && !within_tolerance(fft_error(i));
    return failed;
  }

  ForwardRows<T>& m_rows;
  const toeplitz::BorderedProduct<T>& m_product;
  double m_tolerance;
  MatrixRef<T> m_N;
  Eigen::Ref<Vector<T>> m_D;
  MatrixView<T> m_v;
  ScaledValues<T> m_values;
  bool* m_attends;  // (n_q)
  toeplitz::Factors<T> m_factors;
  RowErrorBound<T> m_errors;
  bool m_all_direct = false;
};

}  // namespace nprf
