// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "nprf/attention/batch/head.hpp"
#include "nprf/attention/batch/saved_storage.hpp"
#include "nprf/attention/exact/exact_pairs.hpp"
#include "nprf/attention/exact/softmax_difference.hpp"
#include "nprf/attention/fallback/non_finite.hpp"
#include "nprf/attention/fallback/row_error_bound.hpp"
#include "nprf/attention/fallback/row_outcomes.hpp"
#include "nprf/attention/fallback/row_recompute.hpp"
#include "nprf/attention/options.hpp"
#include "nprf/attention/saved.hpp"
#include "nprf/attention/scaling/key_log_scales.hpp"
#include "nprf/attention/scaling/value_scaling.hpp"
#include "nprf/core/lag_problem.hpp"
#include "nprf/core/lags.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/power_of_two.hpp"
#include "nprf/core/resize.hpp"
#include "nprf/core/row_quotient.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/engines.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf {

/// One head's attention over one sequence, y (n_q,d_v) = N / D with [N D] = W [v 1], W = (A B^T) o C, in stages:
///
///     compute_features    A = phi(q), B = phi(k), with zeros for non-finite keys
///     scale_values        v divided by a power of two, with zeros for non-finite values
///     contract            N and D by the engine, and bounds of its rounding errors
///     add_fields          adds attention sinks and the near field to N and D, if there are any
///     normalize           y = N / D for the rows whose error bound is within half of the tolerance; NaN for non-finite
///                         queries and for those that attend to a non-finite key
///     recompute_rows      the other rows, by tiles or in double; or by exact softmax, if their features underflow, if
///                         there are exact pairs, or if the feature map is a series
///     propagate           non-finite values to the rows that attend to them
///     compare             compares some rows with those of exact softmax, if requested
///     save_for_backward   if requested
///
/// The other half of the tolerance is for the rounding errors that any engine has.
template <Real T>
class ForwardPass {
 public:
  /// If `saved` is not null, run() saves in it what backward needs.
  ForwardPass(const Head<T>& head, const SequenceInputs<T>& x, MatrixRef<T> y, SavedSequence<T>* saved,
              const Team& team)
      : m_head(head),
        m_position(*head.position),
        m_x(x),
        m_y(y),
        m_saved(saved),
        m_team(team),
        m_workspace(team.workspace()),
        m_scope(m_workspace),
        m_keys(m_position.keys(x.mask, x.length, m_workspace)),
        m_n_q(x.q.rows()),
        m_n_k(m_keys.count()),
        m_product(m_position.products().product(m_keys, m_workspace)),
        m_storage(saved, m_workspace),
        m_A(m_storage.matrix(&SavedSequence<T>::A, m_n_q, head.features.output_dim())),
        m_B(m_storage.matrix(&SavedSequence<T>::B, m_n_k, head.features.output_dim())),
        m_q_scale(m_storage.vector(&SavedSequence<T>::q_scale, m_n_q)),
        m_k_scale(m_storage.vector(&SavedSequence<T>::k_scale, m_n_k)),
        m_denominator(m_storage.vector(&SavedSequence<T>::denominator, m_n_q)),
        m_q(head.normalize(x.q, m_q_scale, team)),
        m_k(head.normalize(rows_of(m_keys, x.k, team), m_k_scale, team)),
        m_v(rows_of(m_keys, x.v, team)),
        m_attends(m_workspace.template take<bool>(m_n_q)),
        m_rows(m_n_q, m_workspace) {}

  /// Sets y, adds to the report, and returns how the rows that were requested for comparison differ from exact softmax.
  SoftmaxDifference run(Report& report) {
    compute_features();
    scale_values();
    contract();
    // N and D are in m_y and m_denominator
    if (has_exact_pairs()) exact_pairs().add_fields({m_A, m_y, m_denominator.data(), m_row_log_scales}, *m_errors);
    normalize(report);
    recompute_rows(report);
    m_non_finite->propagate(m_v, m_head.features.is_positive(), m_y, m_team);
    if (m_n_q > 0 && m_n_k > 0) report.engine = m_product.engine();
    const SoftmaxDifference comparison = compare();
    if (m_saved) save_for_backward();
    if (m_values->scale() != 1) m_y *= m_values->scale();
    return comparison;
  }

 private:
  using Rounding = toeplitz::Rounding;
  static constexpr T nan = std::numeric_limits<T>::quiet_NaN();

  void compute_features() {
    const FeatureMapView<T>& features = m_head.features;
    if (is_exact_fallback()) take_row_log_scales();
    if (has_exact_pairs()) {
      const Workspace::Scope scope(m_workspace);
      auto log_factors = m_workspace.template vector<T>(m_n_q);
      features.with_log_factors(m_q.rows(), Head<T>::as_span(m_q_scale), m_A, log_factors.data(), m_team);
      std::copy(log_factors.begin(), log_factors.end(), m_row_log_scales);
    } else {
      features.queries(m_q.rows(), Head<T>::as_span(m_q_scale), m_A, m_team);
    }
    m_log_scales = scaled_key_features<T>(features, m_k.rows(), Head<T>::as_span(m_k_scale), m_B, m_team);
    m_non_finite.emplace(m_position, m_keys, m_B, m_log_scales, m_team);
    // the weights of sinks are not those of features
    const Index sinks = m_position.problem().sinks_of(m_keys);
    for (Index j = 0; j < sinks; ++j) std::ranges::fill(writable_row(m_B, j), T(0));
    if (m_log_scales) std::fill_n(m_log_scales, sinks, -std::numeric_limits<double>::infinity());
  }

  void take_row_log_scales() {
    m_row_log_scales = m_workspace.template take<double>(m_n_q);
    std::fill_n(m_row_log_scales, m_n_q, 0.0);
  }

  void scale_values() {
    auto maxima = m_workspace.template vector<T>(m_n_k);
    const MatrixView<T> finite = m_non_finite->finite_values(m_v, maxima.data(), m_team);
    // y is divided by the scale of the values until the end of run(). With rounding per block the scale is 1, because
    // no bit of a row may depend on later values, even if the product is zero because all pairs are near
    const bool per_block = toeplitz::properties_of(m_product.engine()).rounding == Rounding::per_block;
    m_values.emplace(finite, maxima, !per_block, m_team);
  }

  void contract() {
    m_position.attendance().attending_queries(m_keys, m_attends, m_workspace);
    const bool accepts_log_scales = m_product.accepts_key_log_scales();
    if (has_exact_pairs())
      add_largest_log_scales(m_position.problem(), m_keys, m_log_scales, accepts_log_scales, m_row_log_scales);
    if (!accepts_log_scales) m_log_scales = merge_close_log_scales<T>(m_B, m_log_scales, m_team);
    const bool multiplies_log_scales = m_log_scales && !accepts_log_scales;
    const MatrixView<T> B = multiplies_log_scales ? with_log_scales<T>(m_B, m_log_scales, m_team) : MatrixView<T>(m_B);
    m_factors.emplace(toeplitz::Factors<T>{m_A, B, m_values->rows(), m_position.queries(), m_keys,
                                           accepts_log_scales ? m_log_scales : nullptr});
    m_errors.emplace(m_position, m_product, *m_factors, m_values->maxima(), m_head.features.is_positive(), m_team);
    const MatrixView<T>& v = m_values->rows();
    T* D = m_denominator.data();
    // With positive features the denominators alone decide which rows fail their error bound. If more than half do, the
    // direct engine computes all rows; but not if backward is to use the engine's denominators, nor with rounding per
    // block, where no row may depend on later ones
    if (m_product.rounding() == Rounding::global && m_head.features.is_positive() && !m_saved && !has_exact_pairs()) {
      contract(m_product, m_workspace.template matrix<T>(m_n_k, 0), m_workspace.template matrix<T>(m_n_q, 0), D);
      m_all_direct = 2 * count_failed_bounds() > m_n_q;
      if (m_all_direct)
        contract(m_position.products().direct_product(m_A.cols(), m_x.v.cols(), m_team), v, m_y, D);
      else
        contract(m_product, v, m_y, nullptr);
    } else {
      contract(m_product, v, m_y, D);
    }
  }
  void contract(const toeplitz::BorderedProduct<T>& product, const MatrixView<T>& values, MatrixRef<T> N, T* D) const {
    product.contract(m_factors->with_values(values), N, m_team, D);
  }

  Index count_failed_bounds() const {
    Index failed = 0;
    for (Index i = 0; i < m_n_q; ++i)
      failed += m_attends[i] && !is_non_finite(i) &&
                !within_tolerance(m_errors->fft_error(i, row_of(m_y, i), denominator(i)));
    return failed;
  }

  // divides the numerators, which m_y has until here, by the denominators, and finds the rows to recompute
  void normalize(Report& report) {
    const Head<T>& head = m_head;
    const double q_norm = head.largest_norm(m_q.rows()), k_norm = head.largest_norm(m_k.rows()),
                 spread = m_position.problem().bias_spread();
    m_softmax_error = error_of_softmax<T>(m_x.q.cols(), q_norm * k_norm, spread, m_n_k);
    const double input_error = error_of_weights<T>(spread) + m_position.products().deviation() +
                               head.features.relative_error(q_norm) + head.features.relative_error(k_norm) +
                               (has_exact_pairs() ? m_softmax_error : 0);
    m_direct_error = input_error + error_of_sums<T>(m_A.cols(), longest_plain_sum(m_n_k));
    m_error =
        m_all_direct ? m_direct_error : input_error + error_of_sums<T>(m_A.cols(), m_product.longest_plain_sum(m_n_k));
    // Backward divides all values by one scale. The gradients of a row that only attends to far smaller values would
    // fail their error bound in an FFT, so such a row is recomputed
    m_saved_scale = m_saved ? scale_above(m_values->largest()) : T(0);
    const T least_value = m_product.rounding() != Rounding::per_row ? m_saved_scale / max_scale_ratio<T> : T(0);
    m_team.run_tiles(m_n_q, [&](Index i0, Index count, Workspace&) {
      for (Index i = i0; i < i0 + count; ++i) normalize_row(i, least_value);
    });
    const Index empty_rows = m_rows.count(RowState::empty);
    report.empty_rows += empty_rows;
    report.indefinite_rows += m_rows.count(RowState::indefinite);
    if (m_all_direct) report.repaired_rows += m_n_q - empty_rows;
  }

  void normalize_row(Index i, T least_value) {
    RowOutcome& row = m_rows[i];
    const std::span<T> y = writable_row(m_y, i);
    const T D = denominator(i), largest_value = m_errors->largest_values()[i];
    const double fft_error = m_all_direct ? 0 : m_errors->fft_error(i, y, D);
    row = {state_of(i, fft_error, largest_value < least_value)};
    switch (row.state) {
      case RowState::empty:
        std::ranges::fill(y, T(0));
        m_denominator[i] = 0;
        return;
      case RowState::non_finite:
        std::ranges::fill(y, nan);
        m_denominator[i] = nan;
        return;
      case RowState::to_recompute:
      case RowState::recomputed: return;
      case RowState::normalized:
      case RowState::indefinite: break;
    }
    row.fft_error = fft_error;
    row.condition = m_errors->condition(i, y, D);
    row.other_error = m_error * row.condition;
    set_quotient(y, y, D);
  }

  RowState state_of(Index i, double fft_error, bool has_tiny_values) const {
    const T D = denominator(i);
    if (!m_attends[i]) return RowState::empty;
    if (is_non_finite(i)) return RowState::non_finite;
    const bool keeps_precision =
        row_keeps_precision(D, m_errors->largest_values()[i], static_cast<T>(m_n_k), m_head.features.is_positive());
    if (!keeps_precision || !within_tolerance(fft_error) || has_tiny_values || cancels(i))
      return RowState::to_recompute;
    return D <= 0 ? RowState::indefinite : RowState::normalized;
  }

  // whether exact softmax replaces the row because the products of features in its denominator cancel, or their sum is
  // not positive
  bool cancels(Index i) const {
    return is_exact_fallback() &&
           terms_cancel(static_cast<double>(denominator(i)), m_errors->size_of_terms(i, denominator(i)));
  }

  // whether the formula gives NaN, because the query is non-finite or attends to a non-finite key. If all weights
  // underflow, D is 0 even for a non-finite query
  bool is_non_finite(Index i) const {
    const T D = denominator(i);
    return m_non_finite->attends_to_non_finite_key(i) || ((!std::isfinite(D) || D == 0) && !is_finite(row_of(m_A, i)));
  }

  bool within_tolerance(double fft_error) const { return passes_error_bound(fft_error, m_x.tolerance); }
  T denominator(Index i) const { return m_denominator[i]; }

  void recompute_rows(Report& report) {
    const std::span<const Index> rows = m_rows.rows_of(RowState::to_recompute, m_workspace);
    if (!m_all_direct) report.repaired_rows += static_cast<Index>(rows.size());
    if (!rows.empty() && !is_exact_fallback()) recompute_by_features(rows, report);
    const std::span<const Index> left = m_rows.rows_of(RowState::to_recompute, m_workspace);
    if (!left.empty()) recompute_by_softmax(left);
    if (m_saved) {
      const std::span<const Index> by_features = m_rows.rows_of(RowState::recomputed, m_workspace);
      m_saved->recomputed_rows.assign(by_features.begin(), by_features.end());
      m_saved->softmax_rows.assign(left.begin(), left.end());
    }
    report.error_bound = std::max(report.error_bound, m_rows.largest(&RowOutcome::error));
  }

  // a row that is left to exact softmax keeps the state to_recompute
  void recompute_by_features(std::span<const Index> rows, Report& report) {
    const toeplitz::Factors<T> factors{m_A, m_B, m_values->rows(), m_position.queries(), m_keys, m_log_scales};
    auto* outcomes = m_workspace.template take<typename RowRecompute<T>::Outcome>(static_cast<Index>(rows.size()));
    RowRecompute<T>(rows, m_position.problem(), factors, m_head.features, m_team)
        .forward(m_errors->largest_values(), m_saved_scale, m_y, m_denominator, outcomes);
    for (std::size_t at = 0; at < rows.size(); ++at) {
      const Index i = rows[at];
      if (outcomes[at].is_left) continue;
      report.indefinite_rows += !outcomes[at].positive;
      m_rows[i].state = RowState::recomputed;
      m_rows[i].condition = m_errors->condition_of(i, row_of(m_y, i), outcomes[at].terms);
      m_rows[i].other_error = m_direct_error * m_rows[i].condition;
    }
  }

  bool has_exact_pairs() const { return m_position.problem().has_exact_pairs(); }
  bool is_exact_fallback() const { return has_exact_pairs() || m_head.features.is_series(); }

  // returns the normalised rows of x, in `saved`, or in the workspace if nothing is saved
  MatrixView<T> normalized_rows(const LiftedRows<T>& x, const Eigen::Ref<Vector<T>>& scale,
                                Matrix<T> SavedSequence<T>::*member) const {
    MatrixRef<T> rows = m_storage.matrix(member, scale.size(), m_x.q.cols());
    scale_rows<T>(x.rows(), Head<T>::as_span(scale), rows, m_team);
    return rows;
  }

  const ExactPairs<T>& exact_pairs() {
    if (!m_exact_pairs)
      m_exact_pairs.emplace(m_position.problem(), m_keys, normalized_rows(m_q, m_q_scale, &SavedSequence<T>::q),
                            normalized_rows(m_k, m_k_scale, &SavedSequence<T>::k), m_values->rows(), m_team);
    return *m_exact_pairs;
  }

  SoftmaxDifference compare() {
    if (m_x.compared_rows == 0) return {};
    const Index count = std::min(m_x.compared_rows, m_n_q);
    const std::span<Index> rows(m_workspace.template take<Index>(count), static_cast<std::size_t>(count));
    draw_rows(m_n_q, m_x.seed, m_x.stream, rows);
    const auto unusable = std::ranges::remove_if(
        rows, [this](Index i) { return !m_rows[i].has_numbers() || !is_finite(row_of(m_y, i)); });
    SoftmaxDifference compared = exact_pairs().difference({rows.begin(), unusable.begin()}, m_y);
    compared.exponent = std::ilogb(m_values->scale());
    return compared;
  }

  void recompute_by_softmax(std::span<const Index> rows) {
    if (!m_row_log_scales) take_row_log_scales();
    exact_pairs().for_each_softmax_row(rows, [this](Index i, std::span<T> y, double log_scale) {
      std::ranges::copy(y, writable_row(m_y, i).begin());
      m_denominator[i] = 1;
      m_row_log_scales[i] = log_scale;
      m_rows[i].other_error = m_softmax_error;
      m_rows[i].condition = 1;
    });
  }

  void save_for_backward() {
    SavedSequence<T>& saved = *m_saved;
    if (!m_exact_pairs) {  // otherwise exact_pairs() has saved q and k
      normalized_rows(m_q, m_q_scale, &SavedSequence<T>::q);
      normalized_rows(m_k, m_k_scale, &SavedSequence<T>::k);
    }
    save_row_log_scales();
    saved.short_queries.assign(m_q.indices().begin(), m_q.indices().end());
    saved.short_keys.assign(m_k.indices().begin(), m_k.indices().end());
    saved.engine_used_log_scales = m_factors->key_log_scales != nullptr;
    assign(saved.key_log_scales, Eigen::Map<const Vector<double>>(m_log_scales, m_log_scales ? m_n_k : 0));
    saved.condition = m_rows.largest(&RowOutcome::condition);
    saved.other_error = m_rows.largest(&RowOutcome::other_error);
    saved.fft_error = m_rows.largest(&RowOutcome::fft_error);
    resize(saved.mask, static_cast<Index>(m_x.mask.size()));
    std::copy(m_x.mask.begin(), m_x.mask.end(), saved.mask.data());
    saved.length = m_x.length;
    clear_rows_without_gradient();
    const T inverse_scale = 1 / m_values->save(saved, m_team);
    resize(saved.y, m_n_q, m_y.cols());
    resize(saved.largest_values, m_n_q);
    for (Index i = 0; i < m_n_q; ++i) {
      set_scaled(writable_row(saved.y, i), inverse_scale, row_of(m_y, i));
      saved.largest_values[i] = m_errors->largest_values()[i] * inverse_scale;
    }
  }

  // the saved log-scale is infinity for a row whose exact pairs have no gradient
  void save_row_log_scales() {
    Vector<double>& saved = m_saved->row_log_scales;
    assign(saved, Eigen::Map<const Vector<double>>(m_row_log_scales, m_row_log_scales ? m_n_q : 0));
    for (Index i = 0; i < saved.size(); ++i)
      if (!m_rows[i].has_numbers() || !std::isfinite(saved[i])) saved[i] = std::numeric_limits<double>::infinity();
  }

  // A query that attends to no key has the gradient 0, even if it is non-finite. The features of a non-finite query are
  // set to zero, so that they change no gradient
  void clear_rows_without_gradient() {
    for (Index i = 0; i < m_n_q; ++i) {
      const RowState state = m_rows[i].state;
      if (state == RowState::empty) std::ranges::fill(writable_row(m_saved->q, i), T(0)), m_q_scale[i] = 0;
      if (state == RowState::empty || (state == RowState::non_finite && !is_finite(row_of(m_A, i))))
        std::ranges::fill(writable_row(m_A, i), T(0));
    }
    bool* attended = m_workspace.template take<bool>(m_n_k);
    m_position.attendance().attended_keys(m_keys, attended, m_workspace);
    m_saved->unattended_keys.clear();
    for (Index j = 0; j < m_n_k; ++j)
      if (!attended[j]) m_saved->unattended_keys.push_back(j);
  }

  const Head<T>& m_head;
  const PreparedPosition<T>& m_position;
  const SequenceInputs<T>& m_x;
  MatrixRef<T> m_y;
  SavedSequence<T>* m_saved;
  const Team& m_team;
  Workspace& m_workspace;
  Workspace::Scope m_scope;

  Placement m_keys;  // without padding
  Index m_n_q, m_n_k;
  const toeplitz::BorderedProduct<T>& m_product;
  SavedStorage<T> m_storage;
  MatrixRef<T> m_A, m_B;                                      // (n_q,r) (n_k,r)
  Eigen::Ref<Vector<T>> m_q_scale, m_k_scale, m_denominator;  // (n_q) (n_k) (n_q)
  LiftedRows<T> m_q, m_k;
  MatrixView<T> m_v;  // (n_k,d_v)
  double* m_log_scales = nullptr;
  double* m_row_log_scales = nullptr;  // (n_q), as SavedSequence has them; null: none
  std::optional<NonFinite<T>> m_non_finite;

  std::optional<ScaledValues<T>> m_values;
  T m_saved_scale = 0;  // by which backward divides m_values; 0 without backward
  std::optional<ExactPairs<T>> m_exact_pairs;

  bool* m_attends;  // (n_q)  whether a query attends to any key
  std::optional<toeplitz::Factors<T>> m_factors;
  std::optional<RowErrorBound<T>> m_errors;
  bool m_all_direct = false;  // the direct engine computed all rows

  RowOutcomes m_rows;
  // the error of a row of condition 1 without that of an FFT: if the engine computes the row, if it is recomputed from
  // its features, and if it is computed by exact softmax
  double m_error = 0, m_direct_error = 0, m_softmax_error = 0;
};

}  // namespace nprf
