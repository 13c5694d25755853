// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "nprf/attention/direct_row.hpp"
#include "nprf/attention/head_weights.hpp"
#include "nprf/attention/options.hpp"
#include "nprf/attention/row_subset.hpp"
#include "nprf/attention/saved.hpp"
#include "nprf/core/resize.hpp"
#include "nprf/core/scale_rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/feature_map/feature_map_view.hpp"

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
    const bool by_row = m_features.has_factors() && product.takes_exponents();
    Eigen::Ref<Vector<double>> exponents = storage(saved, &SavedSequence<T>::exponents, by_row ? n_k : 0, workspace);
    const double* key_exponents = by_row ? exponents.data() : nullptr;
    query_features(q, q_scale, A, team);
    if (by_row)
      key_features_by_row(k_seen, k_scale, B, exponents, team);
    else
      key_features(k_seen, k_scale, B, team);
    toeplitz::RowNoises noise;
    if (product.knows_noise()) noise = {workspace.take<double>(n_q), workspace.take<double>(n_q)};
    product.contract(A, B, v_seen, key_exponents, queries, keys, y, team, denominator.data(), noise);
    const auto drowned = drowned_rows(noise, y, denominator, v_seen, keys, tolerance, team);
    if (!drowned.empty()) contract_again(drowned, A, B, v_seen, keys, y, denominator, team);

    // y holds numerators. A row whose denominator is lost to underflow is computed by itself
    auto* fates = workspace.template take<Fate>(n_q);
    team.run_tiles(n_q, [&](Index i0, Index rows, Workspace& scratch) {
      for (Index i = i0; i < i0 + rows; ++i) {
        fates[i] = finish_row(i, A, B, key_exponents, v_seen, keys, denominator[i], y, scratch);
        if (fates[i].repaired || fates[i].empty) denominator[i] = 0;
      }
    });
    Index repaired = 0;
    auto next = drowned.begin();
    if (saved) saved->drowned.clear(), saved->repaired.clear();
    for (Index i = 0; i < n_q; ++i) {
      const bool by_rows = next != drowned.end() && *next == i;
      next += by_rows;
      repaired += by_rows || fates[i].repaired;
      if (saved && fates[i].repaired)
        saved->repaired.push_back(i);
      else if (saved && by_rows)
        saved->drowned.push_back(i);
      report.indefinite_rows += fates[i].indefinite;
      report.empty_rows += fates[i].empty;
    }
    report.repaired_rows += repaired;
    if (n_q > 0 && n_k > 0) report.engine = product.engine();
    if (saved) {
      resize(saved->q, n_q, d);
      resize(saved->k, n_k, d);
      scale_rows<T>(q, span_of(q_scale), saved->q, team);
      scale_rows<T>(k_seen, span_of(k_scale), saved->k, team);
      resize(saved->v, n_k, v.cols());
      team.run_tiles(
          n_k, [&](Index j0, Index rows, Workspace&) { saved->v.middleRows(j0, rows) = v_seen.middleRows(j0, rows); });
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
    const RowSubset drowned(saved.drowned, queries, team);
    const auto drowned_G = drowned.of<T>(G);
    for (const Index i : saved.drowned) G.row(i).setZero();
    m_weights->product(keys, workspace)
        .gradients(saved.A, saved.B, U, exponents_of(saved), G, queries, keys, {dA, dB, dU, dc}, border, team);
    if (drowned.count() > 0) add_gradients(drowned, drowned_G, saved, U, keys, {dA, dB, dU, dc}, border, team);
    // c = exp(b - max b): db = c dc
    for (Index l = 0; l < dc.size(); ++l)
      db.lags[static_cast<std::size_t>(l)] +=
          static_cast<double>(m_weights->weight(lags.first + l)) * static_cast<double>(dc[l]);
    for (Index e = 0; e < border.size(); ++e)
      db.border[static_cast<std::size_t>(e)] +=
          static_cast<double>(m_weights->border().values[e]) * static_cast<double>(border.data()[e]);
    for (const Index i : saved.repaired) repaired_row_backward(i, saved, dy, keys, dA, dB, dU, db, workspace);

    input_gradient(saved.q, saved.q_scale, saved.A, dA, dq, team);
    if (keys.numbers || n_k < dk.rows()) {
      auto dk_seen = workspace.template matrix<T>(n_k, dk.cols());
      input_gradient(saved.k, saved.k_scale, saved.B, dB, dk_seen, team);
      dk.setZero();
      dv.setZero();
      for (Index j = 0; j < n_k; ++j) {
        dk.row(keys.number(j)) = dk_seen.row(j);
        dv.row(keys.number(j)) = dU.row(j).head(d_v);
      }
    } else {
      input_gradient(saved.k, saved.k_scale, saved.B, dB, dk, team);
      team.run_tiles(n_k,
                     [&](Index j0, Index rows, Workspace&) { dv.middleRows(j0, rows) = dU.block(j0, 0, rows, d_v); });
    }
  }

 private:
  // the rows in which the noise, dN in the numerators and dD in the denominator, may come to more than the tolerance:
  // y = N / D is off by (dN + |y| dD) / |D|. None where none is known, as of keys and values that are not finite
  std::span<const Index> drowned_rows(const toeplitz::RowNoises& noise, const MatrixRef<T>& N,
                                      const Eigen::Ref<Vector<T>>& D, const MatrixView<T>& v, const Placement& keys,
                                      double tolerance, const Team& team) const {
    constexpr double margin = 2;  // errors were seen up to 1.5 times the noise
    if (!noise.Y) return {};
    Workspace& workspace = team.workspace();
    const Placement& queries = m_weights->queries();
    Index *drowned = workspace.take<Index>(queries.slots.count), count = 0;
    const Workspace::Scope scope(workspace);
    auto sizes = workspace.template vector<T>(keys.count()), seen = workspace.template vector<T>(D.size());
    const auto largest_of = [](const auto& row) { return row.size() > 0 ? row.cwiseAbs().maxCoeff() : T(0); };
    team.run_tiles(keys.count(), [&](Index j0, Index rows, Workspace&) {
      for (Index j = j0; j < j0 + rows; ++j) sizes[j] = largest_of(v.row(j));
    });
    m_weights->largest_seen(sizes.data(), keys, seen.data() + queries.outside, workspace);
    for (Index i = queries.outside; i < D.size(); ++i) {
      const double v_max = static_cast<double>(seen[i]), d = std::abs(static_cast<double>(D[i]));
      double y_max = 1;  // over v_max; more where weights have both signs
      if (!m_features.is_positive()) y_max = std::max(y_max, static_cast<double>(largest_of(N.row(i))) / (d * v_max));
      const double off = margin * ((noise.Y[i] > 0 ? noise.Y[i] / v_max : 0) + noise.sums[i] * y_max);
      const bool is_known = std::isfinite(noise.Y[i]) && std::isfinite(noise.sums[i]) && !std::isnan(d);
      if (is_known && !(off <= tolerance * d) && m_weights->sees_any(i, keys)) drowned[count++] = i;
    }
    return {drowned, static_cast<std::size_t>(count)};
  }

  // their numerators and denominators
  void contract_again(std::span<const Index> drowned, const MatrixView<T>& A, const MatrixView<T>& B,
                      const MatrixView<T>& v, const Placement& keys, MatrixRef<T>& y, Eigen::Ref<Vector<T>>& D,
                      const Team& team) const {
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    const RowSubset rows(drowned, m_weights->queries(), team);
    auto numerators = workspace.template matrix<T>(rows.count(), y.cols());
    auto denominators = workspace.template vector<T>(rows.count());
    m_weights->by_rows().contract(rows.of<T>(A), B, v, nullptr, rows.placement(), keys, numerators, team,
                                  denominators.data());
    rows.put<T>(numerators, y);
    for (Index i = 0; i < rows.count(); ++i) D[rows.number(i)] = denominators[i];
  }

  // their share of the gradients
  void add_gradients(const RowSubset& drowned, const MatrixMap<T>& G, const SavedSequence<T>& saved,
                     const MatrixMap<T>& U, const Placement& keys, toeplitz::GradientRefs<T> out, MatrixMap<T>& border,
                     const Team& team) const {
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    auto dA = workspace.template matrix<T>(drowned.count(), out.dA.cols());
    auto dB = workspace.template matrix<T>(out.dB.rows(), out.dB.cols());
    auto dU = workspace.template matrix<T>(out.dU.rows(), out.dU.cols());
    auto dc = workspace.template vector<T>(out.dc.size());
    m_weights->by_rows().gradients(drowned.of<T>(saved.A), saved.B, U, nullptr, G, drowned.placement(), keys,
                                   {dA, dB, dU, dc}, border, team);
    drowned.put<T>(dA, out.dA);
    out.dB += dB;
    out.dU += dU;
    out.dc += dc;
  }

  struct Fate {
    bool empty, repaired, indefinite;
  };

  // row i of y, which holds numerators to the denominator D
  template <class A, class B, class V>
  Fate finish_row(Index i, const A& a, const B& b, const double* exponents, const V& v, const Placement& keys, T D,
                  MatrixRef<T>& y, Workspace& scratch) const {
    static const T smallest = std::sqrt(std::numeric_limits<T>::min());  // below it, dy / D could overflow
    if (!m_weights->sees_any(i, keys)) {
      y.row(i).setZero();
      return {.empty = true, .repaired = false, .indefinite = false};
    }
    const bool lost = std::abs(D) < smallest || std::isinf(D) || (m_features.is_positive() && D <= 0);
    if (!lost) {
      y.row(i) /= D;
      return {.empty = false, .repaired = false, .indefinite = D <= 0};
    }
    const Workspace::Scope scope(scratch);
    const auto bias = [&](Index j) { return row_bias(i, j, keys, exponents); };
    const double exact = DirectRow(b.rows(), bias).forward(a.row(i), b, v, scratch.vector<double>(v.cols()), y.row(i));
    return {.empty = false, .repaired = true, .indefinite = exact <= 0};
  }

  void repaired_row_backward(Index i, const SavedSequence<T>& saved, const MatrixView<T>& dy, const Placement& keys,
                             MatrixMap<T>& dA, MatrixMap<T>& dB, MatrixMap<T>& dU, BiasGradient& db,
                             Workspace& workspace) const {
    const Workspace::Scope scope(workspace);
    const auto bias = [&](Index j) { return row_bias(i, j, keys, exponents_of(saved)); };
    const MatrixView<T> y = saved.y;
    const Index first = m_weights->gradient_lags().first;
    DirectRow(saved.B.rows(), bias)
        .backward(saved.A.row(i), saved.B, saved.v, y.row(i), dy.row(i), workspace.vector<double>(dA.cols()), dA.row(i),
                  dB, dU, [&](Index j, double gradient) {
                    m_weights->place_gradient(
                        i, keys.number(j), gradient,
                        [&](Index lag, double g) {
                          if (!db.lags.empty()) db.lags[static_cast<std::size_t>(lag - first)] += g;
                        },
                        [&](Index at, double g) { db.border[static_cast<std::size_t>(at)] += g; });
                  });
  }

  // dL/dx of rows x whose scaled rows are xs, from dL/dphi
  void input_gradient(const MatrixView<T>& xs, const Vector<T>& scale, const MatrixView<T>& phi,
                      const MatrixView<T>& dphi, MatrixRef<T> dx, const Team& team) const {
    m_features.backward(xs, phi, dphi, dx, team);
    team.run_tiles(dx.rows(), [&](Index i0, Index rows, Workspace&) {
      m_normalization.backward<T>(xs.middleRows(i0, rows),
                                  RowScale<T>(scale.data() + i0, static_cast<std::size_t>(rows)),
                                  dx.middleRows(i0, rows));
    });
  }

  // each key's by itself; its log factor becomes its exponent
  void key_features_by_row(const MatrixView<T>& x, Eigen::Ref<Vector<T>> scale, MatrixRef<T> phi,
                           Eigen::Ref<Vector<double>> exponents, const Team& team) const {
    const Workspace::Scope scope(team.workspace());
    auto log_factor = team.workspace().template vector<T>(x.rows());
    m_normalization.row_scale<T>(x, m_features.estimates_exp(), scale, team);
    m_features.with_factors(x, span_of(scale), phi, log_factor.data(), team);
    exponents = log_factor.template cast<double>();
  }

  static const double* exponents_of(const SavedSequence<T>& saved) {
    return saved.exponents.size() == 0 ? nullptr : saved.exponents.data();
  }

  // with the exponent of the key, relative to which its row of B is; that of a key that i does not see may be NaN
  double row_bias(Index i, Index j, const Placement& keys, const double* exponents) const {
    const double bias = m_weights->bias(i, keys.number(j));
    return exponents && bias > -std::numeric_limits<double>::infinity() ? bias + exponents[j] : bias;
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
