// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>

#include "nprf/attention/batch/head.hpp"
#include "nprf/attention/fallback/non_finite.hpp"
#include "nprf/attention/saved.hpp"
#include "nprf/attention/scaling/key_log_scales.hpp"
#include "nprf/attention/weights/key_subset.hpp"
#include "nprf/attention/weights/prepared_position.hpp"
#include "nprf/attention/weights/salient_keys.hpp"
#include "nprf/core/lag_problem.hpp"
#include "nprf/core/resize.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/normalize/lifted_rows.hpp"

namespace nprf {

/// Storage for results of forward: members of a SavedSequence, or scratch memory if nothing is saved.
template <Real T>
class SavedStorage {
 public:
  /// `saved` may be null.
  SavedStorage(SavedSequence<T>* saved, Workspace& workspace) : m_saved(saved), m_workspace(workspace) {}

  /// The member of the SavedSequence that `members` lead to, resized; or scratch memory. With &Saved::queries and
  /// &Saved::Rows::scale it is saved.queries.scale.
  template <class... Members>
  MatrixRef<T> matrix(Index rows, Index cols, Members... members) const {
    if (!m_saved) return m_workspace.template matrix<T>(rows, cols);
    Matrix<T>& x = (*m_saved.*....*members);
    resize(x, rows, cols);
    return x;
  }
  template <class... Members>
  Eigen::Ref<Vector<T>> vector(Index size, Members... members) const {
    if (!m_saved) return m_workspace.template vector<T>(size);
    Vector<T>& x = (*m_saved.*....*members);
    resize(x, size);
    return x;
  }

 private:
  SavedSequence<T>* m_saved;
  Workspace& m_workspace;
};

/// The queries and keys of one sequence, without padding, normalised, and their features A = phi(q) and B = phi(k),
/// with zeros for non-finite keys and for attention sinks and salient keys, whose weights are not those of features.
template <Real T>
struct ForwardRows {
  using Saved = SavedSequence<T>;

  /// Computes all members. The arrays are members of `saved`, or in the workspace if it is null.
  ForwardRows(const Head<T>& of_head, const SequenceInputs<T>& x, Saved* saved, const Team& of_call)
      : head(of_head),
        position(*of_head.position),
        team(of_call),
        storage(saved, team.workspace()),
        keys(position.keys(x.mask, x.length, team.workspace())),
        A(storage.matrix(x.q.rows(), head.features.output_dim(), &Saved::A)),
        B(storage.matrix(keys.count(), head.features.output_dim(), &Saved::B)),
        q_scale(storage.vector(x.q.rows(), &Saved::queries, &Saved::Rows::scale)),
        k_scale(storage.vector(keys.count(), &Saved::keys, &Saved::Rows::scale)),
        q(head.normalize(x.q, q_scale, team)),
        k(head.normalize(rows_of(keys, x.k, team), k_scale, team)),
        row_log_scales(is_exact_fallback() ? zero_log_scales() : nullptr),
        key_log_scales(scaled_key_features<T>(head.features, k.rows(), Head<T>::as_span(k_scale), B, team)),
        non_finite(position, keys, B, key_log_scales, team),
        exact_keys(find_exact_keys(x)) {
    compute_query_features();
    for (Index l = 0; l < exact_keys.count(); ++l) {
      std::ranges::fill(writable_row(B, exact_keys[l]), T(0));
      if (key_log_scales) key_log_scales[exact_keys[l]] = -std::numeric_limits<double>::infinity();
    }
  }

  Index n_q() const { return A.rows(); }
  Index n_k() const { return B.rows(); }

  bool has_exact_pairs() const { return position.problem().has_exact_pairs(); }
  /// Whether rows that fail their error bound are recomputed by exact softmax, and not from their features.
  bool is_exact_fallback() const { return has_exact_pairs() || head.features.is_series(); }

  /// n_q zeros in the workspace.
  double* zero_log_scales() const {
    double* zeros = team.workspace().template take<double>(n_q());
    std::fill_n(zeros, n_q(), 0.0);
    return zeros;
  }

  /// The normalised queries (n_q,d), in `saved`, or in the workspace if nothing is saved.
  MatrixView<T> normalized_queries() const { return normalized(q, q_scale, &Saved::queries); }
  /// The normalised keys (n_k,d), likewise.
  MatrixView<T> normalized_keys() const { return normalized(k, k_scale, &Saved::keys); }

  const Head<T>& head;
  const PreparedPosition<T>& position;
  const Team& team;
  SavedStorage<T> storage;
  Placement keys;
  MatrixRef<T> A, B;                       // (n_q,r) (n_k,r)
  Eigen::Ref<Vector<T>> q_scale, k_scale;  // (n_q) (n_k)
  LiftedRows<T> q, k;                      // (n_q,d) (n_k,d)
  double* row_log_scales;                  // (n_q), see SavedSequence; null: none
  double* key_log_scales;                  // (n_k); null: none
  NonFinite<T> non_finite;
  KeySubset exact_keys;  // the sinks and the salient keys

 private:
  KeySubset find_exact_keys(const SequenceInputs<T>& x) const {
    const LagProblem<T>& problem = position.problem();
    if (problem.salient == 0) return {keys, std::min(problem.sinks, n_k()), team};
    Workspace& workspace = team.workspace();
    const SalientRule* rule = head.salient_rule;
    T* scores = workspace.template take<T>(n_k());
    {
      const Workspace::Scope scope(workspace);
      const auto of_queries = rule ? SalientScores<T>(*rule, team) : SalientScores<T>(counted_queries(x), team);
      of_queries.set(k.rows(), Head<T>::as_span(k_scale), scores);
    }
    const std::span<const T> all(scores, static_cast<std::size_t>(n_k()));
    return {keys,
            rule ? first_salient(problem.sinks, problem.salient, all, rule->threshold, workspace)
                 : most_salient(problem.sinks, problem.salient, all, workspace),
            team};
  }

  // the normalised queries that are finite and not padding: that are not at the position of a key that is
  MatrixMap<T> counted_queries(const SequenceInputs<T>& x) const {
    const auto is_padding = [&](Index i) {
      const Index at = i + position.problem().offset;
      return at >= 0 && at < x.k.rows() &&
             (at >= x.length || (!x.mask.empty() && !x.mask[static_cast<std::size_t>(at)]));
    };
    Index *indices = team.workspace().template take<Index>(n_q()), count = 0;
    for (Index i = 0; i < n_q(); ++i)
      if (!is_padding(i) && is_finite(row_of(q.rows(), i))) indices[count++] = i;
    const RowSubset counted({indices, static_cast<std::size_t>(count)}, team);
    MatrixMap<T> rows = counted.of<T>(q.rows());
    for (Index i = 0; i < rows.rows(); ++i) scale(writable_row(rows, i), q_scale[counted.index(i)]);
    return rows;
  }

  void compute_query_features() {
    if (!has_exact_pairs()) {
      head.features.queries(q.rows(), Head<T>::as_span(q_scale), A, team);
      return;
    }
    const Workspace::Scope scope(team.workspace());
    auto log_factors = team.workspace().template vector<T>(n_q());
    head.features.with_log_factors(q.rows(), Head<T>::as_span(q_scale), A, log_factors.data(), team);
    std::copy(log_factors.begin(), log_factors.end(), row_log_scales);
  }

  MatrixView<T> normalized(const LiftedRows<T>& x, const Eigen::Ref<Vector<T>>& scale,
                           typename Saved::Rows Saved::*saved) const {
    MatrixRef<T> rows = storage.matrix(scale.size(), x.rows().cols(), saved, &Saved::Rows::normalized);
    scale_rows<T>(x.rows(), Head<T>::as_span(scale), rows, team);
    return rows;
  }
};

}  // namespace nprf
