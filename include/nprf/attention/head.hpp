// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "nprf/attention/head_weights.hpp"
#include "nprf/attention/non_finite.hpp"
#include "nprf/attention/options.hpp"
#include "nprf/attention/pair_bias.hpp"
#include "nprf/attention/row_errors.hpp"
#include "nprf/attention/row_repair.hpp"
#include "nprf/attention/saved.hpp"
#include "nprf/core/resize.hpp"
#include "nprf/core/scale_rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/feature_map/feature_map_view.hpp"
#include "nprf/toeplitz/key_exponents.hpp"

namespace nprf {

/// dL/db of one sequence, summed in double.
struct BiasGradient {
  std::span<double> lags;    // of HeadWeights::gradient_lags(); empty where nobody asks for them
  std::span<double> border;  // (E,E+2)
};

/// One head's attention over one sequence, forwards and backwards, into the caller's storage, by a team.
template <Real T>
class Head {
 public:
  /// Refers to all three. `weights` may be null where only features are asked for.
  Head(const FeatureMapView<T>& features, const Normalization& normalization, const HeadWeights<T>* weights)
      : m_features(features), m_normalization(normalization), m_weights(weights) {}

  /// phi of the normalised rows of x (n,d), into phi (n,r); `scale` (n) becomes their row scales.
  void query_features(const MatrixView<T>& x, Eigen::Ref<Vector<T>> scale, MatrixRef<T> phi, const Team& team) const {
    m_normalization.row_scale<T>(x, m_features.estimates_exp(), scale, team);
    m_features.queries(x, span_of(scale), phi, team);
  }
  void key_features(const MatrixView<T>& x, Eigen::Ref<Vector<T>> scale, MatrixRef<T> phi, const Team& team) const {
    m_normalization.row_scale<T>(x, m_features.estimates_exp(), scale, team);
    m_features.keys(x, span_of(scale), phi, team);
  }

  /// q (n_q,d) k (n_k,d) v (n_k,d_v) -> y (n_q,d_v). Keys from `length` on, and those that the mask hides, take no
  /// part. Rows that the rounding of the engine may put farther off than the tolerance are computed again, as far as it
  /// knows. Adds to the report; fills in `saved` where given.
  void forward(const MatrixView<T>& q, const MatrixView<T>& k, const MatrixView<T>& v, std::span<const bool> mask,
               Index length, double tolerance, MatrixRef<T> y, SavedSequence<T>* saved, Report& report,
               const Team& team) const {
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    const Index n_q = q.rows(), d = q.cols(), r = m_features.output_dim();
    const Placement& queries = m_weights->queries();
    const Placement keys = m_weights->keys(mask, length, workspace);
    const Index n_k = keys.count();
    const MatrixView<T> k_seen = rows_of(keys, k, team), v_seen = rows_of(keys, v, team);

    MatrixRef<T> A = storage(saved, &SavedSequence<T>::A, n_q, r, workspace);
    MatrixRef<T> B = storage(saved, &SavedSequence<T>::B, n_k, r, workspace);
    Eigen::Ref<Vector<T>> q_scale = storage(saved, &SavedSequence<T>::q_scale, n_q, workspace);
    Eigen::Ref<Vector<T>> k_scale = storage(saved, &SavedSequence<T>::k_scale, n_k, workspace);
    Eigen::Ref<Vector<T>> denominator = storage(saved, &SavedSequence<T>::denominator, n_q, workspace);
    const toeplitz::BorderedProduct<T>& product = m_weights->product(keys, workspace);
    query_features(q, q_scale, A, team);
    double* e = key_features_by_row(k_seen, k_scale, B, team);
    NonFinite<T> non_finite(B, e, team);
    const MatrixView<T> v_finite = non_finite.values(v_seen, team);
    if (!product.takes_exponents()) e = with_common_factor(B, e, team);
    if (saved) assign(saved->exponents, Eigen::Map<const Vector<double>>(e, e ? n_k : 0));
    const MatrixView<T> B_scaled = for_product(product, B, e, team);
    const double* taken = product.takes_exponents() ? e : nullptr;
    const bool all_positive = m_features.is_positive();
    const RowErrors<T> errors(*m_weights, product, A, B_scaled, v_finite, taken, keys, all_positive, team);
    const auto contract = [&](const toeplitz::BorderedProduct<T>& by, const MatrixView<T>& values, MatrixRef<T> N,
                              T* D) { by.contract(A, B_scaled, values, taken, queries, keys, N, team, D); };
    // Where features are positive, denominators alone tell which rows the rounding may drown; if these are most, tiles
    // make all rows. Not if gradients will need each row's own scale, nor by block_causal, whose rows know nothing of
    // later ones.
    bool by_tiles = false;
    if (product.has_noise() && all_positive && !saved && product.engine() != Engine::block_causal) {
      contract(product, v_finite.leftCols(0), y.leftCols(0), denominator.data());
      Index drowned = 0;
      for (Index i = 0; i < n_q; ++i)
        drowned += m_weights->sees_any(i, keys) && !(errors.noise(i, y.row(i), denominator[i]) <= tolerance / 2);
      by_tiles = 2 * drowned > n_q;
      if (by_tiles)
        contract(m_weights->direct_product(r, v.cols(), team), v_finite, y, denominator.data());
      else
        contract(product, v_finite, y, nullptr);
    } else {
      contract(product, v_finite, y, denominator.data());
    }

    const double shared = error_of_weights<T>(m_weights->bias_spread()) + m_weights->deviation() +
                          m_features.relative_error(largest_norm(q)) + m_features.relative_error(largest_norm(k_seen));
    const double by_rows = shared + error_of_sums<T>(r, n_k);
    const double own = by_tiles ? by_rows : shared + error_of_sums<T>(r, product.keys_in_turn(n_k));

    // y holds numerators. Rows that the engine's rounding may have drowned, or that have underflown, are computed by
    // themselves; half the tolerance is left to what no engine changes
    auto* fates = workspace.template take<Fate>(n_q);
    double* bounds = workspace.template take<double>(n_q);
    team.run_tiles(n_q, [&](Index i0, Index rows, Workspace&) {
      for (Index i = i0; i < i0 + rows; ++i) {
        const T D = denominator[i];
        const double noise = by_tiles ? 0 : errors.noise(i, y.row(i), D);
        if (!m_weights->sees_any(i, keys))
          fates[i] = Fate::empty;
        else if (!is_sound(D, all_positive) || !(noise <= tolerance / 2))
          fates[i] = Fate::again;
        else
          fates[i] = D <= 0 ? Fate::indefinite : Fate::sound;
        bounds[i] = fates[i] == Fate::empty ? 0 : noise + own * errors.condition(i, y.row(i), D);
        if (fates[i] == Fate::empty)
          y.row(i).setZero(), denominator[i] = 0;
        else if (fates[i] != Fate::again)
          y.row(i) /= D;
      }
    });
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
      RowRepair<T>(repaired, *m_weights, keys, m_features, inputs, A, B, e, team)
          .forward(v_finite, y, denominator, outcomes);
      // backward knows such a row's gradient by the logarithms of its features
      for (const Index i : repaired)
        if (denominator[i] == 0 && m_features.has_logs()) A.row(i).setOnes();
      for (Index at = 0; at < count; ++at) {
        report.indefinite_rows += !outcomes[at].positive;
        bounds[again[at]] = by_rows * errors.condition_of(again[at], y.row(again[at]), outcomes[at].terms);
      }
    }
    if (n_q > 0) report.error_bound = std::max(report.error_bound, *std::max_element(bounds, bounds + n_q));
    non_finite.spread(*m_weights, keys, v_seen, all_positive, y, team);
    if (n_q > 0 && n_k > 0) report.engine = product.engine();
    if (saved) {
      resize(saved->q, n_q, d);
      resize(saved->k, n_k, d);
      scale_rows<T>(q, span_of(q_scale), saved->q, team);
      scale_rows<T>(k_seen, span_of(k_scale), saved->k, team);
      // a query that sees no key has no gradient, whatever it holds
      for (Index i = 0; i < n_q; ++i)
        if (fates[i] == Fate::empty) A.row(i).setZero(), saved->q.row(i).setZero(), q_scale[i] = 0;
      resize(saved->v, n_k, v.cols());
      team.run_tiles(n_k, [&](Index j0, Index rows, Workspace&) {
        saved->v.middleRows(j0, rows) = v_finite.middleRows(j0, rows);
      });
      assign(saved->y, y);
      resize(saved->mask, static_cast<Index>(mask.size()));
      std::copy(mask.begin(), mask.end(), saved->mask.data());
      saved->length = length;
    }
  }

  // forward: y = N / D with [N D] = W [v 1] = W U; so dL/dN = dy / D and dL/dD = -(dy.y) / D
  /// dq (n_q,d), dk (n_k,d) and dv (n_k,d_v) of dy (n_q,d_v); adds dL/db to db.
  void backward(const SavedSequence<T>& saved, const MatrixView<T>& dy, MatrixRef<T> dq, MatrixRef<T> dk,
                MatrixRef<T> dv, BiasGradient db, const Team& team) const {
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    const Index n_q = saved.A.rows(), n_k = saved.B.rows(), r = saved.A.cols(), d_v = saved.y.cols();
    const Placement& queries = m_weights->queries();
    const Placement keys =
        m_weights->keys({saved.mask.data(), static_cast<std::size_t>(saved.mask.size())}, saved.length, workspace);

    const auto U = toeplitz::with_ones<T>(saved.v, team);
    auto G = workspace.template matrix<T>(n_q, d_v + 1);
    team.run_tiles(n_q, [&](Index i0, Index rows, Workspace&) {
      for (Index i = i0; i < i0 + rows; ++i) {
        const T D = saved.denominator[i];
        if (D == 0) {
          G.row(i).setZero();
          continue;
        }
        G.row(i).head(d_v) = dy.row(i) / D;
        G(i, d_v) = -dy.row(i).dot(saved.y.row(i)) / D;
      }
    });
    const LagRange lags = m_weights->gradient_lags();
    const Index E = m_weights->border().count;
    auto dA = workspace.template matrix<T>(n_q, r), dB = workspace.template matrix<T>(n_k, r);
    auto dU = workspace.template matrix<T>(n_k, d_v + 1), border = workspace.template matrix<T>(E, E + 2);
    auto dc = workspace.template vector<T>(static_cast<Index>(db.lags.size()));
    border.setZero();
    // The rows that an engine's transforms keep have A / D <= tolerance / noise, and so little do transforms of A dy /
    // D leave in any gradient: none needs a certificate of its own (attention.tolerance.test.cpp holds the bounds).
    auto G_product = workspace.template matrix<T>(saved.repaired.empty() ? 0 : n_q, d_v + 1);
    if (!saved.repaired.empty()) {
      G_product = G;
      for (const Index i : saved.repaired) G_product.row(i).setZero();
    }
    const toeplitz::BorderedProduct<T>& product = m_weights->product(keys, workspace);
    const double* e = saved.exponents.size() > 0 ? saved.exponents.data() : nullptr;
    const bool scaled = e && !product.takes_exponents();
    product.gradients(saved.A, for_product(product, saved.B, e, team), U, scaled ? nullptr : e,
                      saved.repaired.empty() ? G : G_product, queries, keys, {dA, dB, dU, dc}, border, team);
    if (scaled) scale_by_exponents(dB, saved.exponents, dB, team);
    // c = exp(b - max b): db = c dc
    for (Index l = 0; l < dc.size(); ++l)
      db.lags[static_cast<std::size_t>(l)] +=
          static_cast<double>(m_weights->weight(lags.first + l)) * static_cast<double>(dc[l]);
    for (Index at = 0; at < border.size(); ++at)
      db.border[static_cast<std::size_t>(at)] +=
          static_cast<double>(m_weights->border().values[at]) * static_cast<double>(border.data()[at]);
    auto d_logs = workspace.template matrix<T>(saved.repaired.empty() ? 0 : n_k, r);
    bool by_logs = false;
    if (!saved.repaired.empty()) {
      d_logs.setZero();
      const MatrixView<T> q = saved.q, k = saved.k;
      by_logs = RowRepair<T>(saved.repaired, *m_weights, keys, m_features, {q, k, {}, {}}, saved.A, saved.B, e, team)
                    .backward(U, G, saved.y, dy, saved.denominator, dA, dB, d_logs, dU, db.lags, db.border);
    }

    input_gradient(saved.q, saved.q_scale, saved.A, dA, nullptr, dq, team);
    if (keys.numbers || n_k < dk.rows()) {
      auto dk_seen = workspace.template matrix<T>(n_k, dk.cols());
      input_gradient(saved.k, saved.k_scale, saved.B, dB, by_logs ? &d_logs : nullptr, dk_seen, team);
      dk.setZero();
      dv.setZero();
      for (Index j = 0; j < n_k; ++j) {
        dk.row(keys.number(j)) = dk_seen.row(j);
        dv.row(keys.number(j)) = dU.row(j).head(d_v);
      }
    } else {
      input_gradient(saved.k, saved.k_scale, saved.B, dB, by_logs ? &d_logs : nullptr, dk, team);
      team.run_tiles(n_k,
                     [&](Index j0, Index rows, Workspace&) { dv.middleRows(j0, rows) = dU.block(j0, 0, rows, d_v); });
    }
  }

 private:
  enum class Fate : char { sound, empty, indefinite, again };

  // of the rows of x, normalised
  double largest_norm(const MatrixView<T>& x) const {
    if (m_normalization.is_unit()) return m_normalization.radius();
    const double scale = m_features.estimates_exp() ? std::pow(static_cast<double>(x.cols()), -0.25) : 1;
    double square = 0;
    for (Index i = 0; i < x.rows(); ++i) square = std::max(square, x.row(i).template cast<double>().squaredNorm());
    return scale * std::sqrt(square);
  }

  // phi of keys, each relative to e^exponent; null where the map knows none
  double* key_features_by_row(const MatrixView<T>& x, Eigen::Ref<Vector<T>> scale, MatrixRef<T> phi,
                              const Team& team) const {
    if (!m_features.has_factors()) {
      key_features(x, scale, phi, team);
      return nullptr;
    }
    double* exponents = team.workspace().template take<double>(x.rows());
    const Workspace::Scope scope(team.workspace());
    auto log_factor = team.workspace().template vector<T>(x.rows());
    m_normalization.row_scale<T>(x, m_features.estimates_exp(), scale, team);
    m_features.with_factors(x, span_of(scale), phi, log_factor.data(), team);
    std::copy(log_factor.begin(), log_factor.end(), exponents);
    return exponents;
  }

  // where all keys can be relative to the largest exponent without loss, they become so, and nothing is left of them
  static double* with_common_factor(MatrixRef<T> B, double* exponents, const Team& team) {
    constexpr double far = sizeof(T) == sizeof(float) ? 20 : 200;
    if (!exponents || B.rows() == 0) return nullptr;
    const auto [least, most] = std::minmax_element(exponents, exponents + B.rows());
    if (!(*most - *least <= far)) return exponents;
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

  // B as a product takes it that knows of no exponents: B itself, or a copy in the workspace
  static MatrixView<T> for_product(const toeplitz::BorderedProduct<T>& product, const MatrixView<T>& B, const double* e,
                                   const Team& team) {
    if (!e || product.takes_exponents()) return B;
    auto scaled = team.workspace().matrix<T>(B.rows(), B.cols());
    scale_by_exponents(B, Eigen::Map<const Vector<double>>(e, B.rows()), scaled, team);
    return scaled;
  }

  // dL/dx of rows x whose scaled rows are xs, from dL/dphi, and the gradient by log phi unless it is null
  void input_gradient(const MatrixView<T>& xs, const Vector<T>& scale, const MatrixView<T>& phi,
                      const MatrixView<T>& dphi, const MatrixMap<T>* d_logs, MatrixRef<T> dx, const Team& team) const {
    m_features.backward(xs, phi, dphi, dx, team);
    if (d_logs) {
      const Workspace::Scope scope(team.workspace());
      auto ones = team.workspace().template matrix<T>(phi.rows(), phi.cols());
      auto more = team.workspace().template matrix<T>(dx.rows(), dx.cols());
      ones.setOnes();
      m_features.backward(xs, ones, *d_logs, more, team);
      dx += more;
    }
    team.run_tiles(dx.rows(), [&](Index i0, Index rows, Workspace&) {
      m_normalization.backward<T>(xs.middleRows(i0, rows),
                                  RowScale<T>(scale.data() + i0, static_cast<std::size_t>(rows)),
                                  dx.middleRows(i0, rows));
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
  const HeadWeights<T>* m_weights;
};

}  // namespace nprf
