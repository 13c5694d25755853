// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>

#include "nprf/attention/batch/forward_product.hpp"
#include "nprf/attention/batch/forward_rows.hpp"
#include "nprf/attention/batch/head.hpp"
#include "nprf/attention/exact/exact_pairs.hpp"
#include "nprf/attention/exact/softmax_difference.hpp"
#include "nprf/attention/fallback/row_error_bound.hpp"
#include "nprf/attention/fallback/row_outcomes.hpp"
#include "nprf/attention/fallback/row_recompute.hpp"
#include "nprf/attention/options.hpp"
#include "nprf/attention/saved.hpp"
#include "nprf/attention/scaling/value_scaling.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/resize.hpp"
#include "nprf/core/row_quotient.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/engines.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf {

/// One head's attention over one sequence, y (n_q,d_v) = N / D with [N D] = W [v 1], W = (A B^T) o C. The constructor
/// computes the features (ForwardRows), and N and D by the engine (ForwardProduct). The other stages:
///
///     add_fields          adds attention sinks, salient keys and the near field to N and D, if there are any
///     normalize           y = N / D for the rows whose error bound is within half of the tolerance; NaN for non-finite
///                         queries and for those that attend to a non-finite key
///     recompute_rows      computes the other rows by tiles or in double; or by exact softmax, if their features
///                         underflow, if there are exact pairs, or if the feature map is a series
///     propagate           carries non-finite values to the rows that attend to them
///     compare             compares some rows with those of exact softmax, if requested
///     save_for_backward   saves what backward needs, if requested
///
/// The other half of the tolerance is for the rounding errors that any engine has. Until the end of run(), y is divided
/// by the scale of the values.
template <Real T>
class ForwardPass {
 public:
  /// If `saved` is not null, run() saves in it what backward needs.
  ForwardPass(const Head<T>& head, const SequenceInputs<T>& x, MatrixRef<T> y, SavedSequence<T>* saved,
              const Team& team)
      : m_x(x),
        m_y(y),
        m_saved(saved),
        m_team(team),
        m_workspace(team.workspace()),
        m_scope(m_workspace),
        m_rows(head, x, saved, team),
        m_product(m_rows, x, y, saved),
        m_outcomes(m_rows.n_q(), m_workspace) {}

  /// Sets y, adds to the report, and returns how the rows that were requested for comparison differ from exact softmax.
  SoftmaxDifference run(Report& report) {
    // N and D are in m_y and m_product.D()
    if (m_rows.has_exact_pairs())
      exact_pairs().add_fields({m_rows.A, m_y, m_product.D().data(), m_rows.row_log_scales}, m_product.errors());
    normalize(report);
    recompute_rows(report);
    m_rows.non_finite.propagate(m_product.v(), features().is_positive(), m_y, m_team);
    if (m_rows.n_q() > 0 && m_rows.n_k() > 0) report.engine = m_product.product().engine();
    const SoftmaxDifference comparison = compare();
    if (m_saved) save_for_backward();
    if (const T scale = m_product.values().scale(); scale != 1) m_y *= scale;
    return comparison;
  }

 private:
  static constexpr T nan = std::numeric_limits<T>::quiet_NaN();

  // without the error of an FFT, of rows of condition 1: by the engine; recomputed from features; by exact softmax
  struct RowErrors {
    double by_engine = 0, by_features = 0, by_softmax = 0;
  };

  const FeatureMapView<T>& features() const { return m_rows.head.features; }

  // until here m_y has the numerators: divides them by the denominators, and finds the rows to recompute
  void normalize(Report& report) {
    set_row_errors();
    // Backward divides all values by one scale. The gradients of a row that only attends to far smaller values would
    // fail their error bound in an FFT, so such a row is recomputed
    m_saved_scale = m_saved ? scale_above(m_product.values().largest()) : T(0);
    const bool is_per_row = m_product.product().rounding() == toeplitz::Rounding::per_row;
    const T least_value = is_per_row ? T(0) : m_saved_scale / max_scale_ratio<T>;
    m_team.run_tiles(m_rows.n_q(), [&](Index i0, Index count, Workspace&) {
      for (Index i = i0; i < i0 + count; ++i) normalize_row(i, least_value);
    });
    const Index empty_rows = m_outcomes.count(RowState::empty);
    report.empty_rows += empty_rows;
    report.indefinite_rows += m_outcomes.count(RowState::indefinite);
    if (m_product.is_all_direct()) report.repaired_rows += m_rows.n_q() - empty_rows;
  }

  void set_row_errors() {
    const Head<T>& head = m_rows.head;
    const PreparedPosition<T>& position = m_rows.position;
    const double q_norm = head.largest_norm(m_rows.q.rows()), k_norm = head.largest_norm(m_rows.k.rows()),
                 spread = position.problem().bias_spread();
    const Index r = m_rows.A.cols(), n_k = m_rows.n_k();
    m_row_errors.by_softmax = error_of_softmax<T>(m_x.q.cols() + m_x.r.cols(),
                                                  q_norm * k_norm + position.bound_of_query_biases(m_x.r), spread, n_k);
    const double of_inputs = error_of_weights<T>(spread) + position.products().deviation(m_product.product()) +
                             features().relative_error(q_norm) + features().relative_error(k_norm) +
                             (m_rows.has_exact_pairs() ? m_row_errors.by_softmax : 0);
    m_row_errors.by_features = of_inputs + error_of_sums<T>(r, longest_plain_sum(n_k));
    m_row_errors.by_engine = m_product.is_all_direct()
                                 ? m_row_errors.by_features
                                 : of_inputs + error_of_sums<T>(r, m_product.product().longest_plain_sum(n_k));
  }

  void normalize_row(Index i, T least_value) {
    RowOutcome& row = m_outcomes[i];
    const std::span<T> y = writable_row(m_y, i);
    T& D = m_product.D()[i];
    const double fft_error = m_product.fft_error(i);
    row = {state_of(i, fft_error, largest_value(i) < least_value)};
    switch (row.state) {
      case RowState::empty:
        std::ranges::fill(y, T(0));
        D = 0;
        return;
      case RowState::non_finite:
        std::ranges::fill(y, nan);
        D = nan;
        return;
      case RowState::to_recompute:
      case RowState::recomputed: return;
      case RowState::normalized:
      case RowState::indefinite: break;
    }
    row.fft_error = fft_error;
    row.condition = m_product.errors().condition(i, y, D);
    row.other_error = m_row_errors.by_engine * row.condition;
    set_quotient(y, y, D);
  }

  RowState state_of(Index i, double fft_error, bool has_tiny_values) {
    const T D = m_product.D()[i];
    if (!m_product.attends(i)) return RowState::empty;
    if (m_product.is_non_finite(i)) return RowState::non_finite;
    const bool keeps_precision =
        row_keeps_precision(D, largest_value(i), static_cast<T>(m_rows.n_k()), features().is_positive());
    if (!keeps_precision || !m_product.within_tolerance(fft_error) || has_tiny_values || cancels(i))
      return RowState::to_recompute;
    return D <= 0 ? RowState::indefinite : RowState::normalized;
  }

  // whether exact softmax replaces the row because the products of features in its denominator cancel, or their sum is
  // not positive
  bool cancels(Index i) {
    const T D = m_product.D()[i];
    return m_rows.is_exact_fallback() && terms_cancel(static_cast<double>(D), m_product.errors().size_of_terms(i, D));
  }

  // the largest |v| that query i attends to
  T largest_value(Index i) { return m_product.errors().largest_values()[i]; }

  void recompute_rows(Report& report) {
    const std::span<const Index> rows = m_outcomes.rows_of(RowState::to_recompute, m_workspace);
    if (!m_product.is_all_direct()) report.repaired_rows += static_cast<Index>(rows.size());
    if (!rows.empty() && !m_rows.is_exact_fallback()) recompute_by_features(rows, report);
    const std::span<const Index> left = m_outcomes.rows_of(RowState::to_recompute, m_workspace);
    if (!left.empty()) recompute_by_softmax(left);
    if (m_saved) {
      const std::span<const Index> by_features = m_outcomes.rows_of(RowState::recomputed, m_workspace);
      m_saved->recomputed_rows.assign(by_features.begin(), by_features.end());
      m_saved->softmax_rows.assign(left.begin(), left.end());
    }
    report.error_bound = std::max(report.error_bound, m_outcomes.largest(&RowOutcome::error));
  }

  // a row that is left to exact softmax keeps the state to_recompute
  void recompute_by_features(std::span<const Index> rows, Report& report) {
    const PreparedPosition<T>& position = m_rows.position;
    const toeplitz::Factors<T> factors{m_rows.A,           m_rows.B,    m_product.values().rows(),
                                       position.queries(), m_rows.keys, m_rows.key_log_scales};
    auto* outcomes = m_workspace.template take<typename RowRecompute<T>::Outcome>(static_cast<Index>(rows.size()));
    RowRecompute<T>(rows, position.problem(), factors, features(), m_team)
        .forward(m_product.errors().largest_values(), m_saved_scale, m_y, m_product.D(), outcomes);
    for (std::size_t at = 0; at < rows.size(); ++at) {
      const Index i = rows[at];
      if (outcomes[at].is_left) continue;
      report.indefinite_rows += !outcomes[at].positive;
      RowOutcome& row = m_outcomes[i];
      row.state = RowState::recomputed;
      row.condition = m_product.errors().condition_of(i, row_of(m_y, i), outcomes[at].terms);
      row.other_error = m_row_errors.by_features * row.condition;
    }
  }

  void recompute_by_softmax(std::span<const Index> rows) {
    if (!m_rows.row_log_scales) m_rows.row_log_scales = m_rows.zero_log_scales();
    exact_pairs().for_each_softmax_row(rows, [this](Index i, std::span<T> y, double log_scale) {
      std::ranges::copy(y, writable_row(m_y, i).begin());
      m_product.D()[i] = 1;
      m_rows.row_log_scales[i] = log_scale;
      m_outcomes[i].other_error = m_row_errors.by_softmax;
      m_outcomes[i].condition = 1;
    });
  }

  // built when first needed. normalized_queries() and normalized_keys() also save these rows, if anything is saved
  const ExactPairs<T>& exact_pairs() {
    if (!m_exact_pairs)
      m_exact_pairs.emplace(m_rows.position.problem(), m_rows.keys, m_rows.exact_keys, m_rows.normalized_queries(),
                            m_rows.normalized_keys(), m_product.values().rows(), m_rows.position.query_biases(m_x.r),
                            m_team);
    return *m_exact_pairs;
  }

  SoftmaxDifference compare() {
    if (m_x.compared_rows == 0) return {};
    const Index n_q = m_rows.n_q(), count = std::min(m_x.compared_rows, n_q);
    const std::span<Index> rows(m_workspace.template take<Index>(count), static_cast<std::size_t>(count));
    draw_rows(n_q, m_x.seed, m_x.stream, rows);
    const auto unusable = std::ranges::remove_if(
        rows, [this](Index i) { return !m_outcomes[i].has_numbers() || !is_finite(row_of(m_y, i)); });
    SoftmaxDifference compared = exact_pairs().difference({rows.begin(), unusable.begin()}, m_y);
    compared.exponent = std::ilogb(m_product.values().scale());
    return compared;
  }

  void save_for_backward() {
    SavedSequence<T>& saved = *m_saved;
    const Index n_q = m_rows.n_q();
    if (!m_exact_pairs) {
      m_rows.normalized_queries();
      m_rows.normalized_keys();
    }
    save_row_log_scales();
    assign(saved.r, m_x.r);
    saved.exact_keys.resize(static_cast<std::size_t>(m_rows.exact_keys.count()));
    for (Index l = 0; l < m_rows.exact_keys.count(); ++l)
      saved.exact_keys[static_cast<std::size_t>(l)] = m_rows.exact_keys[l];
    saved.queries.short_rows.assign(m_rows.q.indices().begin(), m_rows.q.indices().end());
    saved.keys.short_rows.assign(m_rows.k.indices().begin(), m_rows.k.indices().end());
    saved.engine_used_log_scales = m_product.factors().key_log_scales != nullptr;
    const double* log_scales = m_rows.key_log_scales;
    assign(saved.key_log_scales, Eigen::Map<const Vector<double>>(log_scales, log_scales ? m_rows.n_k() : 0));
    saved.errors.condition = m_outcomes.largest(&RowOutcome::condition);
    saved.errors.other = m_outcomes.largest(&RowOutcome::other_error);
    saved.errors.fft = m_outcomes.largest(&RowOutcome::fft_error);
    resize(saved.padding.mask, static_cast<Index>(m_x.mask.size()));
    std::copy(m_x.mask.begin(), m_x.mask.end(), saved.padding.mask.data());
    saved.padding.length = m_x.length;
    clear_rows_without_gradient();
    const T inverse_scale = 1 / m_product.values().save(saved, m_team);
    resize(saved.y, n_q, m_y.cols());
    resize(saved.values.largest_attended, n_q);
    for (Index i = 0; i < n_q; ++i) {
      set_scaled(writable_row(saved.y, i), inverse_scale, row_of(m_y, i));
      saved.values.largest_attended[i] = largest_value(i) * inverse_scale;
    }
  }

  // the saved log-scale is infinity for a row whose exact pairs have no gradient
  void save_row_log_scales() {
    Vector<double>& saved = m_saved->row_log_scales;
    const double* log_scales = m_rows.row_log_scales;
    assign(saved, Eigen::Map<const Vector<double>>(log_scales, log_scales ? m_rows.n_q() : 0));
    for (Index i = 0; i < saved.size(); ++i)
      if (!m_outcomes[i].has_numbers() || !std::isfinite(saved[i])) saved[i] = std::numeric_limits<double>::infinity();
  }

  // A query that attends to no key has the gradient 0, even if it is non-finite. The features of a non-finite query are
  // set to zero, so that they change no gradient
  void clear_rows_without_gradient() {
    for (Index i = 0; i < m_rows.n_q(); ++i) {
      const RowState state = m_outcomes[i].state;
      if (state == RowState::empty)
        std::ranges::fill(writable_row(m_saved->queries.normalized, i), T(0)), m_rows.q_scale[i] = 0;
      if (state == RowState::empty || (state == RowState::non_finite && !is_finite(row_of(m_rows.A, i))))
        std::ranges::fill(writable_row(m_rows.A, i), T(0));
    }
    const Index n_k = m_rows.n_k();
    bool* attended = m_workspace.template take<bool>(n_k);
    m_rows.position.attendance().attended_keys(m_rows.keys, attended, m_workspace);
    m_saved->unattended_keys.clear();
    for (Index j = 0; j < n_k; ++j)
      if (!attended[j]) m_saved->unattended_keys.push_back(j);
  }

  const SequenceInputs<T>& m_x;
  MatrixRef<T> m_y;
  SavedSequence<T>* m_saved;
  const Team& m_team;
  Workspace& m_workspace;
  Workspace::Scope m_scope;

  ForwardRows<T> m_rows;
  ForwardProduct<T> m_product;
  T m_saved_scale = 0;  // the scale by which backward divides the values; 0 without backward
  std::optional<ExactPairs<T>> m_exact_pairs;
  RowOutcomes m_outcomes;
  RowErrors m_row_errors;
};

}  // namespace nprf
