// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

#include "nprf/attention/fallback/non_finite_gradients.hpp"
#include "nprf/attention/fallback/row_error_bound.hpp"
#include "nprf/attention/fallback/row_recompute.hpp"
#include "nprf/attention/head.hpp"
#include "nprf/attention/saved.hpp"
#include "nprf/attention/scaling/gradient_scaling.hpp"
#include "nprf/attention/scaling/key_log_scales.hpp"
#include "nprf/core/power_of_two.hpp"
#include "nprf/core/team.hpp"
#include "nprf/normalize/lifted_rows.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf {

/// dL/db of one sequence, summed in double.
struct BiasGradient {
  std::span<double> lags;    // (LagProblem::lags); empty if not requested
  std::span<double> border;  // (E,E+2)
};

/// The gradients with respect to queries, keys and values of one sequence, in the caller's storage.
template <Real T>
struct SequenceGradients {
  MatrixRef<T> dq, dk, dv;  // (n_q,d) (n_k,d) (n_k,d_v)
};

/// The gradients of a ForwardPass for dy (n_q,d_v), in the stages of forward:
///
///     scale_gradients     G = [dy  -dy.y] / D, the gradient of [N D], with powers of two as scales
///     contract            dA, dB, dU and dc of W U for G, by the engine; those that fail their bound are recomputed
///     recompute_rows      the share of the rows that forward recomputed
///     find_input_gradients   dq, dk and dv
template <Real T>
class BackwardPass {
 public:
  /// Refers to all of them; scratch memory is the team's workspace.
  BackwardPass(const Head<T>& head, const SavedSequence<T>& saved, const MatrixView<T>& dy, double tolerance,
               const Team& team)
      : m_head(head),
        m_position(*head.position),
        m_saved(saved),
        m_dy(dy),
        m_tolerance(tolerance),
        m_team(team),
        m_workspace(team.workspace()),
        m_scope(m_workspace),
        m_keys(m_position.keys({saved.mask.data(), static_cast<std::size_t>(saved.mask.size())}, saved.length,
                               m_workspace)),
        m_n_q(saved.A.rows()),
        m_n_k(saved.B.rows()),
        m_log_scales(saved.exponents.size() > 0 ? saved.exponents.data() : nullptr),
        // the engine that accepted log-scales in forward
        m_product(saved.rows_have_exponents ? m_position.products().product()
                                            : m_position.products().product(m_keys, m_workspace)),
        m_units(saved, dy, m_product.rounding() != Rounding::per_row ? SummedBy::transforms : SummedBy::tiles,
                m_position, m_keys, team),
        m_non_finite(
            m_position, m_keys, m_units.G(), [this](Index i) { return m_units.is_finite(i); }, team),
        m_dA(m_workspace.template matrix<T>(m_n_q, saved.A.cols())),
        m_dB(m_workspace.template matrix<T>(m_n_k, saved.A.cols())),
        m_dU(m_workspace.template matrix<T>(m_n_k, dy.cols() + 1)),
        m_d_logs(m_workspace.template matrix<T>(saved.repaired.empty() ? 0 : m_n_k, saved.A.cols())) {}

  /// Computes dq, dk and dv; adds to db and to the report.
  void run(SequenceGradients<T> out, const BiasGradient& db, GradientReport& report) {
    const BiasGradient scaled{zeros(db.lags.size()), zeros(db.border.size())};
    const toeplitz::GradientChecks checks = contract(scaled);
    if (!m_saved.repaired.empty()) recompute_rows(scaled);
    for (std::size_t l = 0; l < db.lags.size(); ++l) db.lags[l] += std::ldexp(scaled.lags[l], m_units.exponent());
    for (std::size_t at = 0; at < db.border.size(); ++at)
      db.border[at] += std::ldexp(scaled.border[at], m_units.exponent());
    m_non_finite.spread(m_dA, m_dB, m_dU, db.lags, db.border, m_team);
    find_input_gradients(out);
    if (m_n_q > 0 && m_n_k > 0) add_to(report, checks);
  }

 private:
  using Rounding = toeplitz::Rounding;
  using Limits = std::numeric_limits<T>;

  std::span<double> zeros(std::size_t size) const {
    double* x = m_workspace.template take<double>(static_cast<Index>(size));
    std::fill_n(x, size, 0.0);
    return {x, size};
  }

  // of all rows but those that forward recomputed, into dA, dB, dU and db
  toeplitz::GradientChecks contract(const BiasGradient& db) {
    const LagProblem<T>& problem = m_position.problem();
    const Index E = problem.border.count, rows = m_saved.repaired.empty() ? 0 : m_n_q;
    auto border = m_workspace.template matrix<T>(E, E + 2);
    auto dc = m_workspace.template vector<T>(static_cast<Index>(db.lags.size()));
    border.setZero();
    MatrixView<T> A = m_units.A(), G = m_units.G();
    auto A_rest = m_workspace.template matrix<T>(rows, A.cols()),
         G_rest = m_workspace.template matrix<T>(rows, G.cols());
    auto sizes = m_workspace.template vector<T>(m_n_q);
    std::copy_n(m_units.sizes(), m_n_q, sizes.data());
    if (rows > 0) {
      A_rest = A, G_rest = G;
      for (const Index i : m_saved.repaired) A_rest.row(i).setZero(), G_rest.row(i).setZero(), sizes[i] = 0;
    }
    // as in forward, denominators are relative to the log-scales that a query attends to, or to the largest of all
    const double* accepted = m_saved.rows_have_exponents ? m_log_scales : nullptr;
    const bool multiplies_log_scales = m_log_scales && !accepted;
    const MatrixView<T> B =
        multiplies_log_scales ? with_log_scales<T>(m_saved.B, m_log_scales, m_team) : MatrixView<T>(m_saved.B);
    const toeplitz::Factors<T> factors{
        rows > 0 ? MatrixView<T>(A_rest) : A, B, m_units.U(), m_position.queries(), m_keys, accepted};
    const toeplitz::GradientChecks checks =
        m_product.gradients(factors, rows > 0 ? MatrixView<T>(G_rest) : G,
                            {sizes.data(), m_units.sums(), m_head.features.is_positive(), m_tolerance},
                            {m_dA, m_dB, m_dU, dc}, border, m_team);
    if (multiplies_log_scales) scale_by_log_scales<T>(m_dB, m_log_scales, m_dB, m_team);
    // c = exp(b - max b): db = c dc
    for (Index l = 0; l < dc.size(); ++l)
      db.lags[static_cast<std::size_t>(l)] =
          static_cast<double>(problem.weights[problem.lags.first + l]) * static_cast<double>(dc[l]);
    for (Index at = 0; at < border.size(); ++at)
      db.border[static_cast<std::size_t>(at)] =
          static_cast<double>(problem.border.values[at]) * static_cast<double>(border.data()[at]);
    return checks;
  }

  void recompute_rows(const BiasGradient& db) {
    m_d_logs.setZero();
    auto y = m_workspace.template matrix<T>(m_n_q, m_dy.cols()),
         dy = m_workspace.template matrix<T>(m_n_q, m_dy.cols());
    for (const Index i : m_saved.repaired) {
      y.row(i) = m_saved.y.row(i) / m_units.of_values();
      dy.row(i) = m_dy.row(i) / m_units.of_dy(i);
    }
    const MatrixView<T> q = m_saved.q, k = m_saved.k, A = m_units.A(), B = m_saved.B;
    const FeatureInputs<T> inputs{q, k, {}, {}};
    m_has_d_logs = RowRepair<T>(m_saved.repaired, m_position.problem(), m_keys, m_head.features, inputs, A, B,
                                m_log_scales, m_team)
                       .backward(m_units.U(), m_units.G(), y, dy, m_units.factors(), m_saved.denominator, m_dA, m_dB,
                                 m_d_logs, m_dU, db.lags, db.border);
  }

  void find_input_gradients(SequenceGradients<T>& out) {
    const Index d_v = m_dy.cols();
    m_head.features.backward(m_saved.q, m_saved.A, m_dA, out.dq, m_team);
    through_normalization(m_saved.q, m_saved.q_scale, m_units.factors(), out.dq);
    for (const Index i : m_saved.lifted_queries) out.dq.row(i) *= LiftedRows<T>::lift;
    const bool has_gaps = m_keys.numbers || m_n_k < out.dk.rows();
    auto compact = m_workspace.template matrix<T>(has_gaps ? m_n_k : 0, out.dk.cols());
    MatrixRef<T> dk = has_gaps ? MatrixRef<T>(compact) : out.dk;
    m_head.features.backward(m_saved.k, m_saved.B, m_dB, dk, m_team);
    if (m_has_d_logs) add_gradient_of_logs(dk);
    through_normalization(m_saved.k, m_saved.k_scale, nullptr, dk);
    for (const Index j : m_saved.lifted_keys) dk.row(j) *= LiftedRows<T>::lift;
    if (has_gaps) {
      out.dk.setZero();
      out.dv.setZero();
      for (Index j = 0; j < m_n_k; ++j) {
        out.dk.row(m_keys.number(j)) = dk.row(j);
        out.dv.row(m_keys.number(j)) = m_dU.row(j).head(d_v) * m_units.of_dy();
      }
    } else {
      m_team.run_tiles(m_n_k, [&](Index j0, Index count, Workspace&) {
        out.dv.middleRows(j0, count) = m_dU.block(j0, 0, count, d_v) * m_units.of_dy();
      });
    }
    // a key that no query attends to has no gradient, whatever it holds
    for (const Index j : m_saved.unseen) out.dk.row(m_keys.number(j)).setZero(), out.dv.row(m_keys.number(j)).setZero();
  }

  // rows from the logarithms of features have their gradient by those: with phi = 1, dL/dphi is dL/d(log phi)
  void add_gradient_of_logs(MatrixRef<T> dk) const {
    const Workspace::Scope scope(m_workspace);
    auto ones = m_workspace.template matrix<T>(m_dB.rows(), m_dB.cols()),
         more = m_workspace.template matrix<T>(dk.rows(), dk.cols());
    ones.setOnes();
    m_head.features.backward(m_saved.k, ones, m_d_logs, more, m_team);
    dk += more;
  }

  // dx of normalised rows x becomes that of the caller's rows, with its power-of-two scales multiplied in: those of all
  // rows, and 2^exponents of each row unless that is null
  void through_normalization(const MatrixView<T>& x, const Vector<T>& scale, const int* exponents,
                             MatrixRef<T> dx) const {
    m_team.run_tiles(dx.rows(), [&](Index i0, Index rows, Workspace& scratch) {
      T* factors = scratch.take<T>(rows);
      int* rest = scratch.take<int>(rows);  // the part of an exponent that a factor cannot represent
      for (Index i = 0; i < rows; ++i) {
        const T of_row = unit_above(scale[i0 + i]);
        const int exponent = exponent_of(of_row) + m_units.exponent() + (exponents ? exponents[i0 + i] : 0);
        const int own = std::clamp(exponent, Limits::min_exponent, Limits::max_exponent - 1);
        factors[i] = scale[i0 + i] / of_row * power_of_two<T>(own);
        rest[i] = exponent - own;
      }
      m_head.normalization.template backward<T>(
          x.middleRows(i0, rows), RowScale<T>(factors, static_cast<std::size_t>(rows)), dx.middleRows(i0, rows));
      for (Index i = 0; i < rows; ++i) scale_by_power_of_two<T>(rest[i], dx.row(i0 + i));
    });
  }

  // Weights, denominators and y have a relative error of own_bound each, and the terms of gradients are sums over
  // columns, features and tokens; an FFT adds only some of the tokens one after another. Where forward's rows have FFT
  // errors, those enter twice by 1 / D and once by y
  void add_to(GradientReport& report, const toeplitz::GradientChecks& checks) const {
    report.engine = m_product.engine();
    report.recomputed_queries += checks.queries;
    report.recomputed_keys += checks.keys;
    report.recomputed_lags += checks.lags;
    constexpr Index of_fft = 512;
    const bool plain_sums = m_product.rounding() == Rounding::per_row || checks.queries + checks.keys + checks.lags > 0;
    const double sums = error_of_sums<T>(m_dy.cols() + m_dA.cols(), plain_sums ? std::max(m_n_q, m_n_k) : of_fft);
    const double own = 6 * m_saved.own_bound + 2 * m_saved.condition * sums;
    report.error_bound = std::max(report.error_bound, checks.error_bound + 3 * m_saved.noise + own);
  }

  const Head<T>& m_head;
  const PreparedPosition<T>& m_position;
  const SavedSequence<T>& m_saved;
  const MatrixView<T>& m_dy;
  double m_tolerance;
  const Team& m_team;
  Workspace& m_workspace;
  Workspace::Scope m_scope;

  Placement m_keys;  // those that take part
  Index m_n_q, m_n_k;
  const double* m_log_scales;
  const toeplitz::BorderedProduct<T>& m_product;
  GradientUnits<T> m_units;
  NonFiniteGradients<T> m_non_finite;
  MatrixMap<T> m_dA, m_dB, m_dU, m_d_logs;  // (n_q,r) (n_k,r) (n_k,d_v+1) (n_k,r) by the logarithms of B
  bool m_has_d_logs = false;
};

}  // namespace nprf
