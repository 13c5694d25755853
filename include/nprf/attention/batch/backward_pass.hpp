// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

#include "nprf/attention/batch/head.hpp"
#include "nprf/attention/exact/exact_pairs.hpp"
#include "nprf/attention/exact/softmax_rows.hpp"
#include "nprf/attention/fallback/non_finite.hpp"
#include "nprf/attention/fallback/row_error_bound.hpp"
#include "nprf/attention/fallback/row_recompute.hpp"
#include "nprf/attention/saved.hpp"
#include "nprf/attention/scaling/gradient_scaling.hpp"
#include "nprf/attention/scaling/key_log_scales.hpp"
#include "nprf/attention/weights/key_subset.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/power_of_two.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/normalize/lifted_rows.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf {

/// The gradients with respect to queries, keys and values of one sequence, in the caller's storage.
template <Real T>
struct SequenceGradients {
  MatrixRef<T> dq, dk, dv;  // (n_q,d+rank) (n_k,d) (n_k,d_v)
};

/// The gradients of a ForwardPass for dy (n_q,d_v), in stages:
///
///     scale                    G = [dy  -dy.y] / D, the gradient of [N D], divided by powers of two, with zeros for
///                              non-finite entries (in the constructor)
///     contract                 dA, dB, dU and dc of the product for G by the engine; those that fail their error bound
///                              are recomputed
///     recompute_rows           dA of the rows that forward recomputed from features, and what these rows add to dB, dU
///                              and db
///     add_exact_pairs          adds the gradients of sinks, salient keys, the near field and the rows by exact softmax
///     add_bias_gradients       adds db, multiplied by the scales of the values and of dy, to the caller's
///     compute_input_gradients  dq and dk
///     propagate                sets the gradients that depend on a non-finite entry of G to NaN
///     write_key_gradients      dk and dv, with zeros for padding
template <Real T>
class BackwardPass {
 public:
  BackwardPass(const Head<T>& head, const SavedSequence<T>& saved, const MatrixView<T>& dy, double tolerance,
               const Team& team)
      : m_head(head),
        m_position(*head.position),
        m_saved(saved),
        m_dy(dy),
        m_tolerance(tolerance),
        m_team(team),
        m_scope(workspace()),
        m_keys(m_position.keys({saved.padding.mask.data(), static_cast<std::size_t>(saved.padding.mask.size())},
                               saved.padding.length, workspace())),
        m_log_scales(saved.key_log_scales.size() > 0 ? saved.key_log_scales.data() : nullptr),
        // if forward's engine used log-scales, it divided the denominators by factors that only the same engine
        // reproduces
        m_product(saved.engine_used_log_scales ? m_position.products().product()
                                               : m_position.products().product(m_keys, workspace())),
        m_scaled(saved, dy, m_product.rounding(), m_position, m_keys, team),
        m_non_finite(
            m_position, m_keys, m_scaled.G(), [this](Index i) { return m_scaled.is_finite(i); }, team),
        m_factors{workspace().template matrix<T>(n_q(), saved.A.cols()),
                  workspace().template matrix<T>(n_k(), saved.A.cols()),
                  workspace().template matrix<T>(n_k(), dy.cols() + 1)},
        m_exact{workspace().template matrix<T>(has_exact_pairs() ? n_q() : 0, saved.queries.normalized.cols()),
                workspace().template matrix<T>(has_exact_pairs() ? n_k() : 0, saved.queries.normalized.cols()),
                workspace().template matrix<T>(n_q(), saved.r.cols())} {}

  /// Sets dq, dk and dv; adds to db and to the report.
  void run(SequenceGradients<T> out, const BiasGradient& db, GradientReport& report) {
    const BiasGradient scaled{zeros(db.lags.size()), zeros(db.border.size()), zeros(db.lag_vectors.size())};
    const toeplitz::GradientChecks checks = contract(scaled);
    if (!m_saved.recomputed_rows.empty()) recompute_rows(scaled);
    if (has_exact_pairs()) add_exact_pairs(scaled);
    add_bias_gradients(scaled, db);
    auto compact = workspace().template matrix<T>(has_gaps(out) ? n_k() : 0, out.dk.cols());
    MatrixRef<T> dk = has_gaps(out) ? MatrixRef<T>(compact) : out.dk;
    compute_input_gradients(out.dq.leftCols(dk.cols()), dk);
    set_query_vector_gradients(out.dq.rightCols(m_saved.r.cols()));
    m_non_finite.propagate(out.dq, dk, m_factors.dU, db, m_team);
    write_key_gradients(dk, out);
    if (n_q() > 0 && n_k() > 0) add_to(report, checks);
  }

 private:
  using Rounding = toeplitz::Rounding;
  using Limits = std::numeric_limits<T>;

  struct FactorGradients {
    MatrixMap<T> dA, dB, dU;  // (n_q,r) (n_k,r) (n_k,d_v+1)
  };
  // of the scores of exact pairs; empty: there are no exact pairs
  struct ExactGradients {
    MatrixMap<T> dq, dk;  // (n_q,d) (n_k,d)
    MatrixMap<T> dr;      // (n_q,rank)
  };

  Index n_q() const { return m_saved.A.rows(); }
  Index n_k() const { return m_saved.B.rows(); }
  Workspace& workspace() const { return m_team.workspace(); }

  std::span<double> zeros(std::size_t size) const {
    double* x = workspace().template take<double>(static_cast<Index>(size));
    std::fill_n(x, size, 0.0);
    return {x, size};
  }

  // sets dA, dB, dU and db to the gradients through the rows that forward did not recompute
  toeplitz::GradientChecks contract(const BiasGradient& db) {
    const LagProblem<T>& problem = m_position.problem();
    const Index E = problem.border.count;
    auto border = workspace().template matrix<T>(E, E + 2);
    auto dc = workspace().template vector<T>(static_cast<Index>(db.lags.size()));
    border.setZero();
    const Rows rows = rows_of_engine();
    // as in forward: either the engine gets the log-scales (toeplitz::Factors), or the rows of B are multiplied by
    // their exponentials (with_log_scales)
    const double* accepted = m_saved.engine_used_log_scales ? m_log_scales : nullptr;
    const bool multiplies_log_scales = m_log_scales && !accepted;
    const MatrixView<T> B =
        multiplies_log_scales ? with_log_scales<T>(m_saved.B, m_log_scales, m_team) : MatrixView<T>(m_saved.B);
    const toeplitz::Factors<T> factors{rows.A, B, m_scaled.U(), m_position.queries(), m_keys, accepted};
    const toeplitz::GradientChecks checks = m_product.gradients(
        factors, rows.G, {rows.sizes, m_scaled.denominators(), m_head.features.is_positive(), m_tolerance},
        {m_factors.dA, m_factors.dB, m_factors.dU, dc}, border, m_team);
    if (multiplies_log_scales) scale_by_log_scales<T>(m_factors.dB, m_log_scales, m_factors.dB, m_team);
    // the weights of sinks and salient keys do not depend on features
    for (const Index j : m_saved.exact_keys) std::ranges::fill(writable_row(m_factors.dB, j), T(0));
    // c = exp(b - max b): db = c dc
    for (Index l = 0; l < dc.size(); ++l)
      db.lags[static_cast<std::size_t>(l)] =
          static_cast<double>(problem.weights[problem.lags.first + l]) * static_cast<double>(dc[l]);
    for (Index at = 0; at < border.size(); ++at)
      db.border[static_cast<std::size_t>(at)] =
          static_cast<double>(problem.border.values[at]) * static_cast<double>(border.data()[at]);
    return checks;
  }

  // the rows from which the product's gradients are computed: the scaled features A' and gradients G (GradientScaling),
  // and the magnitudes s_i that rounding errors are relative to (toeplitz::GradientMeasure)
  struct Rows {
    MatrixView<T> A, G;  // (n_q,r) (n_q,d_v+1)
    const T* sizes;      // (n_q)
  };
  // returns the Rows of all queries, with zeros where forward recomputed the row
  Rows rows_of_engine() const {
    if (m_saved.recomputed_rows.empty() && m_saved.softmax_rows.empty())
      return {m_scaled.A(), m_scaled.G(), m_scaled.sizes()};
    auto A = workspace().template matrix<T>(n_q(), m_saved.A.cols()),
         G = workspace().template matrix<T>(n_q(), m_dy.cols() + 1);
    auto sizes = workspace().template vector<T>(n_q());
    A = m_scaled.A();
    G = m_scaled.G();
    std::copy_n(m_scaled.sizes(), n_q(), sizes.data());
    for (const std::vector<Index>* rows : {&m_saved.recomputed_rows, &m_saved.softmax_rows})
      for (const Index i : *rows) {
        std::ranges::fill(writable_row(A, i), T(0));
        std::ranges::fill(writable_row(G, i), T(0));
        sizes[i] = 0;
      }
    return {A, G, sizes.data()};
  }

  void recompute_rows(const BiasGradient& db) {
    auto y = workspace().template matrix<T>(n_q(), m_dy.cols()),
         dy = workspace().template matrix<T>(n_q(), m_dy.cols());
    for (const Index i : m_saved.recomputed_rows) {
      set_quotient(writable_row(y, i), row_of(m_saved.y, i), m_scaled.value_scale());
      set_quotient(writable_row(dy, i), row_of(m_dy, i), m_scaled.dy_scale(i));
    }
    const toeplitz::Factors<T> factors{m_scaled.A(),         m_saved.B, m_scaled.U(),
                                       m_position.queries(), m_keys,    m_log_scales};
    RowRecompute<T>(m_saved.recomputed_rows, m_position.problem(), factors, m_head.features, m_team)
        .backward({m_scaled.G(), y, dy, m_scaled.exponents(), m_saved.denominator.data()},
                  {m_factors.dA, m_factors.dB, m_factors.dU, db});
  }

  bool has_exact_pairs() const { return m_saved.row_log_scales.size() > 0; }

  void add_exact_pairs(const BiasGradient& db) {
    const Workspace::Scope scope(workspace());
    const MatrixView<T> q = finite_rows<T>(m_saved.queries.normalized, workspace()),
                        k = finite_rows<T>(m_saved.keys.normalized, workspace());
    const MatrixView<T> U = m_scaled.U();
    const double* log_scales = m_saved.row_log_scales.data();
    m_exact.dq.setZero();
    m_exact.dk.setZero();
    m_exact.dr.setZero();
    const LagProblem<T>& problem = m_position.problem();
    const MatrixView<T> G = rows_of_engine().G, r = finite_rows<T>(m_saved.r, workspace());
    const QueryBiases<T> query_biases = m_position.query_biases(r);
    const KeySubset exact_keys(m_keys, m_saved.exact_keys, m_team);
    for_each_field(
        problem, m_keys, exact_keys, q, k, query_biases, m_team, [&](const auto& field, const KeySubset& keys) {
          MatrixRef<T> dk = keys.sums_of<T>(m_exact.dk), dU = keys.sums_of<T>(m_factors.dU);
          field.add_gradients(keys.of<T>(U), G, log_scales, m_scaled.exponents(), {m_exact.dq, dk, dU, m_exact.dr, db});
          keys.add_to<T>(m_exact.dk, dk);
          keys.add_to<T>(m_factors.dU, dU);
        });
    if (!m_saved.softmax_rows.empty())
      SoftmaxRows<T>(m_saved.softmax_rows, problem, m_keys, q, k, query_biases, m_team)
          .backward(U, m_scaled.G(), log_scales, m_scaled.exponents(),
                    {m_exact.dq, m_exact.dk, m_factors.dU, m_exact.dr, db});
  }

  void add_bias_gradients(const BiasGradient& scaled, const BiasGradient& db) const {
    for (std::size_t l = 0; l < db.lags.size(); ++l) db.lags[l] += std::ldexp(scaled.lags[l], m_scaled.exponent());
    for (std::size_t at = 0; at < db.border.size(); ++at)
      db.border[at] += std::ldexp(scaled.border[at], m_scaled.exponent());
    for (std::size_t at = 0; at < db.lag_vectors.size(); ++at)
      db.lag_vectors[at] += std::ldexp(scaled.lag_vectors[at], m_scaled.exponent());
  }

  // sets dr (n_q,rank)
  void set_query_vector_gradients(MatrixRef<T> dr) const {
    dr = m_exact.dr;
    for (Index i = 0; i < n_q(); ++i)
      scale_by_power_of_two<T>(m_scaled.exponent() + m_scaled.exponents()[i], dr.row(i));
  }

  // whether some keys are padding
  bool has_gaps(const SequenceGradients<T>& out) const { return m_keys.token_indices || n_k() < out.dk.rows(); }

  // sets dq, and dk (n_k,d) of the keys that are not padding
  void compute_input_gradients(MatrixRef<T> dq, MatrixRef<T> dk) {
    m_head.features.backward(m_saved.queries.normalized, m_saved.A, m_factors.dA, dq, m_team);
    if (has_exact_pairs()) dq += m_exact.dq;
    through_normalization(m_saved.queries.normalized, m_saved.queries.scale, m_scaled.exponents(), dq);
    for (const Index i : m_saved.queries.short_rows) scale(writable_row(dq, i), LiftedRows<T>::lift);
    m_head.features.backward_keys(m_saved.keys.normalized, m_saved.B, m_factors.dB, dk, m_team);
    if (has_exact_pairs()) dk += m_exact.dk;
    through_normalization(m_saved.keys.normalized, m_saved.keys.scale, nullptr, dk);
    for (const Index j : m_saved.keys.short_rows) scale(writable_row(dk, j), LiftedRows<T>::lift);
  }

  void write_key_gradients(const MatrixRef<T>& dk, SequenceGradients<T>& out) {
    if (has_gaps(out)) {
      out.dk.setZero();
      out.dv.setZero();
      for (Index j = 0; j < n_k(); ++j)
        std::ranges::copy(row_of(dk, j), writable_row(out.dk, m_keys.token_index(j)).begin());
    }
    m_team.run_tiles(n_k(), [&](Index j0, Index count, Workspace&) {
      for (Index j = j0; j < j0 + count; ++j) {
        const std::span<T> dv = writable_row(out.dv, m_keys.token_index(j));
        set_scaled(dv, m_scaled.dy_scale(), row_of(m_factors.dU, j).first(dv.size()));
      }
    });
    // a key that no query attends to has the gradient 0, even if it is non-finite
    for (const Index j : m_saved.unattended_keys) {
      std::ranges::fill(writable_row(out.dk, m_keys.token_index(j)), T(0));
      std::ranges::fill(writable_row(out.dv, m_keys.token_index(j)), T(0));
    }
  }

  // dx is the gradient by the normalised rows x; turns it into the gradient by the caller's rows. Also multiplies it by
  // 2^exponent() (GradientScaling), and row i by 2^exponents[i] if `exponents` is not null
  void through_normalization(const MatrixView<T>& x, const Vector<T>& scale, const int* exponents,
                             MatrixRef<T> dx) const {
    m_team.run_tiles(dx.rows(), [&](Index i0, Index rows, Workspace& scratch) {
      T* factors = scratch.take<T>(rows);
      int* rest = scratch.take<int>(rows);  // the part of an exponent that a factor cannot represent
      for (Index i = 0; i < rows; ++i) {
        const T row_scale = scale_above(scale[i0 + i]);
        const int exponent = exponent_of(row_scale) + m_scaled.exponent() + (exponents ? exponents[i0 + i] : 0);
        const int representable = std::clamp(exponent, Limits::min_exponent, Limits::max_exponent - 1);
        factors[i] = scale[i0 + i] / row_scale * power_of_two<T>(representable);
        rest[i] = exponent - representable;
      }
      m_head.normalization.template backward<T>(
          x.middleRows(i0, rows), RowScale<T>(factors, static_cast<std::size_t>(rows)), dx.middleRows(i0, rows));
      for (Index i = 0; i < rows; ++i) scale_by_power_of_two<T>(rest[i], dx.row(i0 + i));
    });
  }

  // Weights, denominators and y of forward have the error m_saved.errors.other each. `sums` is that of sums over
  // columns, features and tokens; an FFT adds only few tokens one after the other. The FFT errors of forward's rows
  // enter three times: twice by 1 / D and once by y
  void add_to(GradientReport& report, const toeplitz::GradientChecks& checks) const {
    report.engine = m_product.engine();
    report.recomputed_queries += checks.queries;
    report.recomputed_keys += checks.keys;
    report.recomputed_lags += checks.lags;
    const bool plain_sums = m_product.rounding() == Rounding::per_row || checks.queries + checks.keys + checks.lags > 0;
    const double sums =
        error_of_sums<T>(m_dy.cols() + m_factors.dA.cols(), plain_sums ? std::max(n_q(), n_k()) : plain_sum_of_fft);
    // forward may have used another product
    const double of_terms = sums + m_position.products().deviation(m_product);
    const double other_error = 6 * m_saved.errors.other + 2 * m_saved.errors.condition * of_terms;
    report.error_bound = std::max(report.error_bound, checks.error_bound + 3 * m_saved.errors.fft + other_error);
  }

  const Head<T>& m_head;
  const PreparedPosition<T>& m_position;
  const SavedSequence<T>& m_saved;
  const MatrixView<T>& m_dy;
  double m_tolerance;
  const Team& m_team;
  Workspace::Scope m_scope;

  Placement m_keys;  // without padding
  const double* m_log_scales;
  const toeplitz::BorderedProduct<T>& m_product;
  GradientScaling<T> m_scaled;
  NonFiniteGradients<T> m_non_finite;
  FactorGradients m_factors;
  ExactGradients m_exact;
};

}  // namespace nprf
