// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "nprf/attention/fallback/non_finite.hpp"
#include "nprf/attention/fallback/non_finite_gradients.hpp"
#include "nprf/attention/fallback/row_error_bound.hpp"
#include "nprf/attention/fallback/row_recompute.hpp"
#include "nprf/attention/options.hpp"
#include "nprf/attention/saved.hpp"
#include "nprf/attention/scaling/gradient_scaling.hpp"
#include "nprf/attention/scaling/value_scaling.hpp"
#include "nprf/attention/weights/prepared_position.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/power_of_two.hpp"
#include "nprf/core/resize.hpp"
#include "nprf/core/scale_rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/feature_map/feature_map_view.hpp"
#include "nprf/normalize/lifted_rows.hpp"
#include "nprf/toeplitz/block_causal/running_key_max.hpp"

namespace nprf {

/// dL/db of one sequence, summed in double.
struct BiasGradient {
  std::span<double> lags;    // of LagProblem::lags; empty where nobody asks for them
  std::span<double> border;  // (E,E+2)
};

/// One head's attention over one sequence, forwards and backwards, into the caller's storage, by a team.
template <Real T>
class Head {
 public:
  /// Refers to all three. `weights` may be null where only features are asked for.
  Head(const FeatureMapView<T>& features, const Normalization& normalization, const PreparedPosition<T>* weights)
      : m_features(features), m_normalization(normalization), m_weights(weights) {}

  /// phi of the normalised rows of x (n,d), into phi (n,r); `scale` (n) becomes their row scales.
  void query_features(const MatrixView<T>& x, Eigen::Ref<Vector<T>> scale, MatrixRef<T> phi, const Team& team) const {
    const Workspace::Scope scope(team.workspace());
    m_features.queries(lifted(x, scale, team).rows(), span_of(scale), phi, team);
  }
  void key_features(const MatrixView<T>& x, Eigen::Ref<Vector<T>> scale, MatrixRef<T> phi, const Team& team) const {
    const Workspace::Scope scope(team.workspace());
    m_features.keys(lifted(x, scale, team).rows(), span_of(scale), phi, team);
  }

  /// q (n_q,d) k (n_k,d) v (n_k,d_v) -> y (n_q,d_v). Keys from `length` on, and those that the mask hides, take no
  /// part. Rows that the rounding of the engine may put farther off than the tolerance are computed again, as far as it
  /// knows. Adds to the report; fills in `saved` where given.
  void forward(const MatrixView<T>& q_, const MatrixView<T>& k, const MatrixView<T>& v, std::span<const bool> mask,
               Index length, double tolerance, MatrixRef<T> y, SavedSequence<T>* saved, Report& report,
               const Team& team) const {
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    const Index n_q = q_.rows(), d = q_.cols(), r = m_features.output_dim();
    const Placement& queries = m_weights->queries();
    const Placement keys = m_weights->keys(mask, length, workspace);
    const Index n_k = keys.count();
    const MatrixView<T> v_seen = rows_of(keys, v, team);

    MatrixRef<T> A = storage(saved, &SavedSequence<T>::A, n_q, r, workspace);
    MatrixRef<T> B = storage(saved, &SavedSequence<T>::B, n_k, r, workspace);
    Eigen::Ref<Vector<T>> q_scale = storage(saved, &SavedSequence<T>::q_scale, n_q, workspace);
    Eigen::Ref<Vector<T>> k_scale = storage(saved, &SavedSequence<T>::k_scale, n_k, workspace);
    Eigen::Ref<Vector<T>> denominator = storage(saved, &SavedSequence<T>::denominator, n_q, workspace);
    const toeplitz::BorderedProduct<T>& product = m_weights->products().product(keys, workspace);
    const LiftedRows<T> queries_in = lifted(q_, q_scale, team), keys_in = lifted(rows_of(keys, k, team), k_scale, team);
    const MatrixView<T> q = queries_in.rows(), k_seen = keys_in.rows();
    m_features.queries(q, span_of(q_scale), A, team);
    double* e = key_features_by_row(k_seen, k_scale, B, team);
    NonFinite<T> non_finite(*m_weights, keys, B, e, team);
    auto sizes = workspace.template vector<T>(n_k);  // the largest finite |v| of each key
    const MatrixView<T> v_finite = non_finite.values(v_seen, sizes.data(), team);
    // y is in it until the end; but for rows of which no bit may depend on later values
    const T largest_value = n_k > 0 ? sizes.maxCoeff() : T(0),
            unit = product.rounding() == Rounding::per_block ? T(1) : extreme_unit(largest_value);
    const MatrixView<T> v_scaled = in_units(v_finite, unit, team);
    if (unit != 1) sizes /= unit;
    bool* sees = workspace.take<bool>(n_q);
    m_weights->attendance().attending_queries(keys, sees, workspace);
    if (!product.accepts_key_log_scales()) e = with_common_factor(B, e, team);
    if (saved) assign(saved->exponents, Eigen::Map<const Vector<double>>(e, e ? n_k : 0));
    const double* taken = product.accepts_key_log_scales() ? e : nullptr;
    const MatrixView<T> B_scaled = e && !taken ? with_exponents(B, e, team) : MatrixView<T>(B);
    if (saved) saved->rows_have_exponents = taken != nullptr;
    const bool all_positive = m_features.is_positive();
    const toeplitz::Factors<T> factors{A, B_scaled, v_scaled, queries, keys, taken};
    const RowErrors<T> errors(*m_weights, product, factors, sizes.data(), all_positive, team);
    const auto contract = [&](const toeplitz::BorderedProduct<T>& by, const MatrixView<T>& values, MatrixRef<T> N,
                              T* D) { by.contract(factors.with_values(values), N, team, D); };
    // as in the formula, whatever else the row sees: there is nothing to compute again
    const auto is_lost = [&](Index i) {
      const T D = denominator[i];  // 0 if all weights underflow
      return non_finite.touches(i) || ((!std::isfinite(D) || D == 0) && !is_finite_row(A.row(i)));
    };
    // Where features are positive, denominators alone tell which rows the rounding may drown; if these are most, tiles
    // make all rows. Not if gradients will need each row's own scale, nor by block_causal, whose rows know nothing of
    // later ones.
    bool by_tiles = false;
    if (product.rounding() == Rounding::global && all_positive && !saved) {
      contract(product, v_scaled.leftCols(0), y.leftCols(0), denominator.data());
      Index drowned = 0;
      for (Index i = 0; i < n_q; ++i)
        drowned += sees[i] && !is_lost(i) && !(errors.fft_error(i, y.row(i), denominator[i]) <= tolerance / 2);
      by_tiles = 2 * drowned > n_q;
      if (by_tiles)
        contract(m_weights->products().direct_product(r, v.cols(), team), v_scaled, y, denominator.data());
      else
        contract(product, v_scaled, y, nullptr);
    } else {
      contract(product, v_scaled, y, denominator.data());
    }

    const double shared = error_of_weights<T>(m_weights->problem().bias_spread()) + m_weights->products().deviation() +
                          m_features.relative_error(largest_norm(q)) + m_features.relative_error(largest_norm(k_seen));
    const double by_rows = shared + error_of_sums<T>(r, keys_in_turn(n_k));
    const double own = by_tiles ? by_rows : shared + error_of_sums<T>(r, product.keys_in_turn(n_k));

    // y holds numerators. Rows that the engine's rounding may have drowned, or that have underflown, are computed by
    // themselves; half the tolerance is left to what no engine changes. Backward is in the unit of all values that are
    // saved: rows of values that are far smaller would be lost by its transforms, and are computed by themselves too
    const T unit_of_saved = saved ? unit_above(largest_value / unit) : T(0),
            least_value = product.rounding() != Rounding::per_row ? unit_of_saved / most_apart<T> : T(0);
    auto* fates = workspace.template take<Fate>(n_q);
    double *bounds = workspace.template take<double>(n_q), *conditions = workspace.template take<double>(n_q),
           *noises = workspace.template take<double>(n_q);
    team.run_tiles(n_q, [&](Index i0, Index rows, Workspace&) {
      for (Index i = i0; i < i0 + rows; ++i) {
        const T D = denominator[i];
        const double noise = by_tiles ? 0 : errors.fft_error(i, y.row(i), D);
        if (!sees[i])
          fates[i] = Fate::empty;
        else if (is_lost(i))
          fates[i] = Fate::lost;
        else if (!is_sound(D, errors.largest_values()[i], n_k, all_positive) || !(noise <= tolerance / 2) ||
                 errors.largest_values()[i] < least_value)
          fates[i] = Fate::again;
        else
          fates[i] = D <= 0 ? Fate::indefinite : Fate::sound;
        const bool is_made = fates[i] == Fate::sound || fates[i] == Fate::indefinite;
        noises[i] = is_made ? noise : 0;
        conditions[i] = is_made ? errors.condition(i, y.row(i), D) : 0;
        bounds[i] = is_made ? noise + own * conditions[i] : 0;
        if (fates[i] == Fate::empty)
          y.row(i).setZero(), denominator[i] = 0;
        else if (fates[i] == Fate::lost)
          y.row(i).setConstant(nan), denominator[i] = nan;
        else if (fates[i] != Fate::again)
          y.row(i) /= D;
      }
    });
    double condition = n_q > 0 ? *std::max_element(conditions, conditions + n_q) : 0, own_bound = own * condition;
    Index *again = workspace.take<Index>(n_q), count = 0;
    for (Index i = 0; i < n_q; ++i) {
      if (fates[i] == Fate::again) again[count++] = i;
      report.empty_rows += fates[i] == Fate::empty;
      report.indefinite_rows += fates[i] == Fate::indefinite;
    }
    report.repaired_rows +=
        by_tiles ? std::ranges::count_if(fates, fates + n_q, [](Fate f) { return f != Fate::empty; }) : count;
    const std::span<const Index> repaired(again, static_cast<std::size_t>(count));
    if (saved) saved->repaired.assign(repaired.begin(), repaired.end());
    if (count > 0) {
      const FeatureInputs<T> inputs{q, k_seen, span_of(q_scale), span_of(k_scale)};
      auto* outcomes = workspace.template take<typename RowRepair<T>::Outcome>(count);
      RowRepair<T>(repaired, m_weights->problem(), keys, m_features, inputs, A, B, e, team)
          .forward(v_scaled, errors.largest_values(), std::max(unit_of_saved, T(1)), y, denominator, outcomes);
      // backward knows such a row's gradient by the logarithms of its features
      for (const Index i : repaired)
        if (denominator[i] == 0 && m_features.has_logs()) A.row(i).setOnes();
      for (Index at = 0; at < count; ++at) {
        report.indefinite_rows += !outcomes[at].positive;
        const double of_row = errors.condition_of(again[at], y.row(again[at]), outcomes[at].terms);
        bounds[again[at]] = by_rows * of_row;
        own_bound = std::max(own_bound, by_rows * of_row), condition = std::max(condition, of_row);
      }
    }
    if (n_q > 0) report.error_bound = std::max(report.error_bound, *std::max_element(bounds, bounds + n_q));
    if (saved) {
      saved->own_bound = own_bound;
      saved->condition = condition;
      saved->noise = n_q > 0 ? *std::max_element(noises, noises + n_q) : 0;
    }
    non_finite.spread(v_seen, all_positive, y, team);
    if (n_q > 0 && n_k > 0) report.engine = product.engine();
    if (saved) {
      resize(saved->q, n_q, d);
      resize(saved->k, n_k, d);
      scale_rows<T>(q, span_of(q_scale), saved->q, team);
      scale_rows<T>(k_seen, span_of(k_scale), saved->k, team);
      saved->lifted_queries.assign(queries_in.numbers().begin(), queries_in.numbers().end());
      saved->lifted_keys.assign(keys_in.numbers().begin(), keys_in.numbers().end());
      // a query that sees no key has no gradient, whatever it holds; one that is not finite touches no other's
      for (Index i = 0; i < n_q; ++i) {
        if (fates[i] == Fate::empty) saved->q.row(i).setZero(), q_scale[i] = 0;
        if (fates[i] == Fate::empty || (fates[i] == Fate::lost && !is_finite_row(A.row(i)))) A.row(i).setZero();
      }
      bool* seen = workspace.take<bool>(n_k);
      m_weights->attendance().attended_keys(keys, seen, workspace);
      saved->unseen.clear();
      for (Index j = 0; j < n_k; ++j)
        if (!seen[j]) saved->unseen.push_back(j);
      const T unit_of_U = unit_that_keeps_digits<T>(sizes), to_unit = 1 / unit_of_U;
      resize(saved->U, n_k, v.cols() + 1);
      team.run_tiles(n_k, [&](Index j0, Index rows, Workspace&) {
        saved->U.block(j0, 0, rows, v.cols()) = v_scaled.middleRows(j0, rows) * to_unit;
        saved->U.block(j0, v.cols(), rows, 1).setOnes();
      });
      assign(saved->y, y * to_unit);
      assign(saved->largest_values, Eigen::Map<const Vector<T>>(errors.largest_values(), n_q) * to_unit);
      saved->largest_value = largest_value / unit * to_unit;
      saved->unit = exponent_of(unit) + exponent_of(unit_of_U);
      resize(saved->mask, static_cast<Index>(mask.size()));
      std::copy(mask.begin(), mask.end(), saved->mask.data());
      saved->length = length;
    }
    if (unit != 1) y *= unit;
  }

  // forward: y = N / D with [N D] = W [v 1] = W U; so dL/dN = dy / D and dL/dD = -(dy.y) / D
  /// dq (n_q,d), dk (n_k,d) and dv (n_k,d_v) of dy (n_q,d_v); adds dL/db to db, and to the report. Gradients that the
  /// rounding of the engine may put farther off than the tolerance are recomputed.
  void backward(const SavedSequence<T>& saved, const MatrixView<T>& dy, double tolerance, MatrixRef<T> dq,
                MatrixRef<T> dk, MatrixRef<T> dv, BiasGradient db, GradientReport& report, const Team& team) const {
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    const Index n_q = saved.A.rows(), n_k = saved.B.rows(), r = saved.A.cols(), d_v = saved.y.cols();
    const Placement& queries = m_weights->queries();
    const Placement keys =
        m_weights->keys({saved.mask.data(), static_cast<std::size_t>(saved.mask.size())}, saved.length, workspace);

    // only the engine that saved exponents knows them
    const toeplitz::BorderedProduct<T>& product =
        saved.rows_have_exponents ? m_weights->products().product() : m_weights->products().product(keys, workspace);
    const GradientUnits<T> units(saved, dy,
                                 product.rounding() != Rounding::per_row ? SummedBy::transforms : SummedBy::tiles,
                                 *m_weights, keys, team);
    const MatrixView<T> A = units.A(), G = units.G(), U = units.U();
    const NonFiniteGradients<T> non_finite(
        *m_weights, keys, units.G(), [&](Index i) { return units.is_finite(i); }, team);
    const LagRange lags = m_weights->problem().lags;
    const Index E = m_weights->problem().border.count;
    auto dA = workspace.template matrix<T>(n_q, r), dB = workspace.template matrix<T>(n_k, r);
    auto dU = workspace.template matrix<T>(n_k, d_v + 1), border = workspace.template matrix<T>(E, E + 2);
    auto dc = workspace.template vector<T>(static_cast<Index>(db.lags.size()));
    border.setZero();
    const Index apart = saved.repaired.empty() ? 0 : n_q;
    auto A_product = workspace.template matrix<T>(apart, r), G_product = workspace.template matrix<T>(apart, d_v + 1);
    auto sizes = workspace.template vector<T>(n_q);
    std::copy_n(units.sizes(), n_q, sizes.data());
    if (apart > 0) {
      A_product = A;
      G_product = G;
      for (const Index i : saved.repaired) A_product.row(i).setZero(), G_product.row(i).setZero(), sizes[i] = 0;
    }
    const double* e = saved.exponents.size() > 0 ? saved.exponents.data() : nullptr;
    // denominators are relative to the exponents as forward was: to those that a query attends to, or to the largest
    const double* taken = saved.rows_have_exponents ? e : nullptr;
    const bool scaled = e && !taken;
    const MatrixView<T> B = scaled ? with_exponents(saved.B, e, team) : MatrixView<T>(saved.B);
    const toeplitz::GradientChecks checks = product.gradients(
        {apart > 0 ? A_product : A, B, U, queries, keys, taken}, apart > 0 ? G_product : G,
        {sizes.data(), units.sums(), m_features.is_positive(), tolerance}, {dA, dB, dU, dc}, border, team);
    if (scaled) scale_by_exponents(dB, saved.exponents, dB, team);
    const BiasGradient db_scaled{zeros(db.lags.size(), workspace), zeros(db.border.size(), workspace)};
    // c = exp(b - max b): db = c dc
    for (Index l = 0; l < dc.size(); ++l)
      db_scaled.lags[static_cast<std::size_t>(l)] =
          static_cast<double>(m_weights->problem().weights[lags.first + l]) * static_cast<double>(dc[l]);
    for (Index at = 0; at < border.size(); ++at)
      db_scaled.border[static_cast<std::size_t>(at)] =
          static_cast<double>(m_weights->problem().border.values[at]) * static_cast<double>(border.data()[at]);
    auto d_logs = workspace.template matrix<T>(saved.repaired.empty() ? 0 : n_k, r);
    bool by_logs = false;
    if (!saved.repaired.empty()) {
      d_logs.setZero();
      auto y_scaled = workspace.template matrix<T>(n_q, d_v), dy_scaled = workspace.template matrix<T>(n_q, d_v);
      for (const Index i : saved.repaired) {
        y_scaled.row(i) = saved.y.row(i) / units.of_values();
        dy_scaled.row(i) = dy.row(i) / units.of_dy(i);
      }
      const MatrixView<T> q = saved.q, k = saved.k;
      by_logs =
          RowRepair<T>(saved.repaired, m_weights->problem(), keys, m_features, {q, k, {}, {}}, A, saved.B, e, team)
              .backward(U, G, y_scaled, dy_scaled, units.factors(), saved.denominator, dA, dB, d_logs, dU,
                        db_scaled.lags, db_scaled.border);
    }
    for (std::size_t l = 0; l < db.lags.size(); ++l) db.lags[l] += std::ldexp(db_scaled.lags[l], units.exponent());
    for (std::size_t at = 0; at < db.border.size(); ++at)
      db.border[at] += std::ldexp(db_scaled.border[at], units.exponent());

    non_finite.spread(dA, dB, dU, db.lags, db.border, team);
    input_gradient(saved.q, saved.q_scale, saved.A, dA, nullptr, units, units.factors(), dq, team);
    for (const Index i : saved.lifted_queries) dq.row(i) *= LiftedRows<T>::lift;
    if (keys.numbers || n_k < dk.rows()) {
      auto dk_seen = workspace.template matrix<T>(n_k, dk.cols());
      input_gradient(saved.k, saved.k_scale, saved.B, dB, by_logs ? &d_logs : nullptr, units, nullptr, dk_seen, team);
      for (const Index j : saved.lifted_keys) dk_seen.row(j) *= LiftedRows<T>::lift;
      dk.setZero();
      dv.setZero();
      for (Index j = 0; j < n_k; ++j) {
        dk.row(keys.number(j)) = dk_seen.row(j);
        dv.row(keys.number(j)) = dU.row(j).head(d_v) * units.of_dy();
      }
    } else {
      input_gradient(saved.k, saved.k_scale, saved.B, dB, by_logs ? &d_logs : nullptr, units, nullptr, dk, team);
      for (const Index j : saved.lifted_keys) dk.row(j) *= LiftedRows<T>::lift;
      team.run_tiles(n_k, [&](Index j0, Index count, Workspace&) {
        dv.middleRows(j0, count) = dU.block(j0, 0, count, d_v) * units.of_dy();
      });
    }
    // a key that no query sees has no gradient, whatever it holds
    for (const Index j : saved.unseen) dk.row(keys.number(j)).setZero(), dv.row(keys.number(j)).setZero();
    if (n_q == 0 || n_k == 0) return;
    report.engine = product.engine();
    report.recomputed_queries += checks.queries;
    report.recomputed_keys += checks.keys;
    report.recomputed_lags += checks.lags;
    // weights, denominators and y are off by own_bound each, in terms that are sums over columns, features and tokens:
    // all of them, but by transforms; and rows that transforms have made by their noise too: in 1 / D, which has two
    // terms, and in y, which has one
    const bool in_turn = product.rounding() == Rounding::per_row || checks.queries + checks.keys + checks.lags > 0;
    const double own = 6 * saved.own_bound +
                       2 * saved.condition * error_of_sums<T>(d_v + r, in_turn ? std::max(n_q, n_k) : Index{512});
    report.error_bound = std::max(report.error_bound, checks.noise + 3 * saved.noise + own);
  }

 private:
  enum class Fate : char { sound, empty, lost, indefinite, again };
  using Limits = std::numeric_limits<T>;
  using Rounding = toeplitz::Rounding;
  static constexpr T nan = Limits::quiet_NaN();

  static std::span<double> zeros(std::size_t size, Workspace& workspace) {
    double* x = workspace.take<double>(static_cast<Index>(size));
    std::fill_n(x, size, 0.0);
    return {x, size};
  }

  // of the finite rows of x, normalised
  double largest_norm(const MatrixView<T>& x) const {
    if (m_normalization.is_unit()) return m_normalization.radius();
    const double scale = m_features.estimates_exp() ? std::pow(static_cast<double>(x.cols()), -0.25) : 1;
    double square = 0;
    for (Index i = 0; i < x.rows(); ++i)
      if (is_finite_row(x.row(i))) square = std::max(square, x.row(i).template cast<double>().squaredNorm());
    return scale * std::sqrt(square);
  }

  LiftedRows<T> lifted(const MatrixView<T>& x, Eigen::Ref<Vector<T>> scale, const Team& team) const {
    return {m_normalization, m_features.estimates_exp(), x, scale, team};
  }

  // phi of keys, each relative to e^exponent; null where the map knows none
  double* key_features_by_row(const MatrixView<T>& x, const Eigen::Ref<Vector<T>>& scale, MatrixRef<T> phi,
                              const Team& team) const {
    if (!m_features.has_factors()) {
      m_features.keys(x, span_of(scale), phi, team);
      return nullptr;
    }
    double* exponents = team.workspace().template take<double>(x.rows());
    const Workspace::Scope scope(team.workspace());
    auto log_factor = team.workspace().template vector<T>(x.rows());
    m_features.with_factors(x, span_of(scale), phi, log_factor.data(), team);
    std::copy(log_factor.begin(), log_factor.end(), exponents);
    return exponents;
  }

  // where all keys can be relative to the largest exponent without loss, they become so, and nothing is left of them;
  // zeros, with the exponent -infinity, can be relative to any
  static double* with_common_factor(MatrixRef<T> B, double* exponents, const Team& team) {
    constexpr double far = sizeof(T) == sizeof(float) ? 20 : 200, never = -std::numeric_limits<double>::infinity();
    if (!exponents || B.rows() == 0) return nullptr;
    double least = -never, most = never;
    for (Index j = 0; j < B.rows(); ++j)
      if (exponents[j] > never) least = std::min(least, exponents[j]), most = std::max(most, exponents[j]);
    if (most - least > far) return exponents;
    scale_by_exponents(B, Eigen::Map<const Vector<double>>(exponents, B.rows()), B, team);
    return nullptr;
  }

  // rows of B times e^(their exponent - the largest)
  static void scale_by_exponents(const MatrixView<T>& B, const Eigen::Ref<const Vector<double>>& exponents,
                                 MatrixRef<T> scaled, const Team& team) {
    if (B.rows() == 0) return;
    const double largest = exponents.maxCoeff();
    team.run_tiles(B.rows(), [&](Index j0, Index rows, Workspace&) {
      for (Index j = j0; j < j0 + rows; ++j)
        scaled.row(j) = B.row(j) * static_cast<T>(toeplitz::ratio(exponents[j], largest));
    });
  }

  // B as a product takes it that knows of no exponents, in the workspace
  static MatrixView<T> with_exponents(const MatrixView<T>& B, const double* e, const Team& team) {
    auto scaled = team.workspace().matrix<T>(B.rows(), B.cols());
    scale_by_exponents(B, Eigen::Map<const Vector<double>>(e, B.rows()), scaled, team);
    return scaled;
  }

  // dL/dx of rows x whose scaled rows are xs, from dL/dphi in those units, times 2^of_rows of each row unless that is
  // null, and the gradient by log phi unless it is null
  void input_gradient(const MatrixView<T>& xs, const Vector<T>& scale, const MatrixView<T>& phi,
                      const MatrixView<T>& dphi, const MatrixMap<T>* d_logs, const GradientUnits<T>& units,
                      const int* of_rows, MatrixRef<T> dx, const Team& team) const {
    m_features.backward(xs, phi, dphi, dx, team);
    if (d_logs) {
      const Workspace::Scope scope(team.workspace());
      auto ones = team.workspace().template matrix<T>(phi.rows(), phi.cols());
      auto more = team.workspace().template matrix<T>(dx.rows(), dx.cols());
      ones.setOnes();
      m_features.backward(xs, ones, *d_logs, more, team);
      dx += more;
    }
    team.run_tiles(dx.rows(), [&](Index i0, Index rows, Workspace& scratch) {
      T* factors = scratch.take<T>(rows);
      int* exponents = scratch.take<int>(rows);  // what the factors leave over
      for (Index i = 0; i < rows; ++i) {
        const T of_row = unit_above(scale[i0 + i]);
        const int exponent = exponent_of(of_row) + units.exponent() + (of_rows ? of_rows[i0 + i] : 0);
        const int own = std::clamp(exponent, Limits::min_exponent, Limits::max_exponent - 1);
        factors[i] = scale[i0 + i] / of_row * power_of_two<T>(own);
        exponents[i] = exponent - own;
      }
      m_normalization.backward<T>(xs.middleRows(i0, rows), RowScale<T>(factors, static_cast<std::size_t>(rows)),
                                  dx.middleRows(i0, rows));
      for (Index i = 0; i < rows; ++i) scale_by_power_of_two<T>(exponents[i], dx.row(i0 + i));
    });
  }

  // the rows of x that take part: a view, or a copy in the workspace where rows are left out in between
  static MatrixView<T> rows_of(const Placement& keys, const MatrixView<T>& x, const Team& team) {
    if (!keys.numbers) return x.topRows(keys.count());
    auto seen = team.workspace().matrix<T>(keys.count(), x.cols());
    team.run_tiles(keys.count(), [&](Index j0, Index rows, Workspace&) {
      for (Index j = j0; j < j0 + rows; ++j) seen.row(j) = x.row(keys.number(j));
    });
    return seen;
  }

  static MatrixRef<T> storage(SavedSequence<T>* saved, Matrix<T> SavedSequence<T>::*member, Index rows, Index cols,
                              Workspace& workspace) {
    if (!saved) return workspace.matrix<T>(rows, cols);
    resize(saved->*member, rows, cols);
    return saved->*member;
  }
  template <class S>
  static Eigen::Ref<Vector<S>> storage(SavedSequence<T>* saved, Vector<S> SavedSequence<T>::*member, Index size,
                                       Workspace& workspace) {
    if (!saved) return workspace.vector<S>(size);
    resize(saved->*member, size);
    return saved->*member;
  }

  static RowScale<T> span_of(const Eigen::Ref<Vector<T>>& scale) {
    return {scale.data(), static_cast<std::size_t>(scale.size())};
  }

  FeatureMapView<T> m_features;
  const Normalization& m_normalization;
  const PreparedPosition<T>* m_weights;
};

}  // namespace nprf
