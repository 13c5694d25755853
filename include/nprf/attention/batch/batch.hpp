// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

#include "nprf/attention/backward_pass.hpp"
#include "nprf/attention/batch/check_finite.hpp"
#include "nprf/attention/batch/head_models.hpp"
#include "nprf/attention/forward_pass.hpp"
#include "nprf/attention/head.hpp"
#include "nprf/attention/heads_view.hpp"
#include "nprf/attention/options.hpp"
#include "nprf/attention/saved.hpp"
#include "nprf/attention/weights/prepared_segments.hpp"
#include "nprf/core/row_quotient.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/plan/choose.hpp"

namespace nprf {

/// Every sequence of every head of a call, spread over the threads. It keeps its memory for the next call: one that is
/// like an earlier one allocates nothing. One call at a time.
template <Real T>
class Batch {
 public:
  /// Heads of keys and values are shared by groups of heads of queries.
  struct Sizes {
    Index batch, heads, kv_heads;
    AttentionShape each;
  };

  /// y of q, k and v, of the rows that `sizes` says. Throws InvalidArgument before it writes anything.
  void forward(const HeadModels<T>& heads, const Sizes& sizes, const HeadsView<const T>& q, const HeadsView<const T>& k,
               const HeadsView<const T>& v, const HeadsView<T>& y, const CallOptions& call, Saved<T>* saved);

  /// dq, dk and dv of dy, for the forward that filled `saved`. The positions must have gradient().
  GradientReport backward(const HeadModels<T>& heads, const Saved<T>& saved, const HeadsView<const T>& dy,
                          const HeadsView<T>& dq, const HeadsView<T>& dk, const HeadsView<T>& dv);

  /// After backward: the gradients of head h's position, in the shape of its parameters, and of its extra tokens.
  const Matrix<double>& dbias(Index h) const { return m_dbias[static_cast<std::size_t>(h)]; }
  const Matrix<double>& dextra(Index h) const { return m_dextra[static_cast<std::size_t>(h)]; }

 private:
  // at the end of a call
  struct Settle {
    ~Settle() {
      for (PreparedSegments<T>& weights : batch.m_weights) weights.clear();
      for (Workspace& workspace : batch.m_workspaces) workspace.merge_blocks();
    }
    Batch& batch;
  };

  struct Place {
    Index b, h;
    std::size_t s;
  };

  static Place place(Index item, Index heads, std::size_t segments) {
    const Index s = item % static_cast<Index>(segments), head = item / static_cast<Index>(segments);
    return {head / heads, head % heads, static_cast<std::size_t>(s)};
  }

  Head<T> head_of(const HeadModels<T>& heads, Index h, std::size_t segment) const {
    return {heads.feature_map(h), heads.options().normalization, &m_weights[heads.position_of(h)][segment]};
  }

  Team gather_team(const HeadModels<T>& heads, Index sequences, std::span<const Segment> segments, Index d_v) {
    const Index r = heads.feature_map(0).output_dim();
    double operations = 0;
    for (const Segment& x : segments) operations += toeplitz::dense_cost<T>({x.n_q, x.n_k, r, d_v + 1});
    const auto threads =
        static_cast<std::size_t>(toeplitz::worthwhile_threads(static_cast<double>(sequences) * operations));
    if (m_workspaces.size() < threads) m_workspaces.resize(threads);
    for (Workspace& workspace : m_workspaces) workspace.reset_peak();
    return Team(std::span(m_workspaces).first(threads));
  }

  void build_weights(const HeadModels<T>& heads, std::span<const Segment> segments, Index d_v, Index offset, Pass pass,
                     const Team& team, double most_deviation = 0) {
    const Index r = heads.feature_map(0).output_dim();
    m_weights.resize(heads.num_positions());
    for (std::size_t p = 0; p < m_weights.size(); ++p)
      m_weights[p].build(heads.position(p), heads.options(), segments, r, d_v + 1, offset, pass, team, most_deviation);
  }

  // where each head of queries writes its gradient of keys or values: into `out`, or if heads share keys and values
  // into an array of its own
  static HeadsView<T> share_of_heads(const HeadsView<T>& out, const Saved<T>& saved, Workspace& workspace) {
    if (saved.m_kv_heads == saved.m_heads) return out;
    HeadsView<T> all{nullptr, out.batch, saved.m_heads, out.tokens, out.channels};
    all.data = workspace.template take<T>(all.size());
    return all;
  }
  // out = the sums over the heads of queries that share a head of keys and values
  static void add_shares(const HeadsView<T>& shares, const HeadsView<T>& out, const Team& team) {
    const Index group = shares.heads / std::max<Index>(out.heads, 1);
    team.run(out.batch * out.heads, [&](Index item, Workspace&) {
      const Index b = item / out.heads, h = item % out.heads;
      auto sum = out(b, h);
      sum = shares(b, h * group);
      for (Index g = 1; g < group; ++g) sum += shares(b, h * group + g);
    });
  }

  Report report(const Team& team) const {
    Report sum;
    for (const Report& one : m_reports) {
      if (sum.engine == Engine::automatic) sum.engine = one.engine;
      sum.repaired_rows += one.repaired_rows;
      sum.indefinite_rows += one.indefinite_rows;
      sum.empty_rows += one.empty_rows;
      sum.error_bound = std::max(sum.error_bound, one.error_bound);
    }
    sum.workspace_bytes = workspace_bytes(team);
    return sum;
  }

  std::size_t workspace_bytes(const Team& team) const {
    std::size_t sum = 0;
    for (Index t = 0; t < team.size(); ++t) sum += m_workspaces[static_cast<std::size_t>(t)].peak_bytes();
    return sum;
  }

  std::vector<Workspace> m_workspaces;
  std::vector<Segment> m_segments;
  std::vector<PreparedSegments<T>> m_weights;  // one a position
  std::vector<Report> m_reports;               // one an item, as the next
  std::vector<GradientReport> m_gradient_reports;
  std::vector<BiasGradient> m_bias_gradients;
  std::vector<Matrix<double>> m_dbias, m_dextra;  // one a head
  std::vector<Matrix<double>> m_d;                // zeros in the shape of each position's parameters
};

// not inline: see instances.hpp
template <Real T>
void Batch<T>::forward(const HeadModels<T>& heads, const Sizes& sizes, const HeadsView<const T>& q,
                       const HeadsView<const T>& k, const HeadsView<const T>& v, const HeadsView<T>& y,
                       const CallOptions& call, Saved<T>* saved) {
  const Index n_k = sizes.each.n_k, d = sizes.each.d, d_v = sizes.each.d_v;
  const Index input_dim = heads.feature_map(0).input_dim();
  require(d == input_dim, "queries: expected ", input_dim, " columns (the feature map's input_dim), got ", d);
  require(call.tolerance >= 0, "tolerance: expected 0 or more, got ", call.tolerance);
  find_segments(call, sizes.batch, sizes.each.n_q, n_k, m_segments);
  const Team team = gather_team(heads, sizes.batch * sizes.heads, m_segments, d_v);
  const Settle settle{*this};
  const Workspace::Scope scope(team.workspace());
  const double tolerance = call.tolerance > 0 ? call.tolerance : default_tolerance<T>;
  // of weights of one sign; and gradients are of the table as it is
  const bool may_deviate = !saved && heads.feature_map(0).is_positive();
  build_weights(heads, m_segments, d_v, call.offset, Pass::forward, team, may_deviate ? tolerance / 4 : 0);
  const std::size_t segments = m_segments.size();
  const Index sequences = sizes.batch * sizes.heads, group = sizes.heads / std::max<Index>(sizes.kv_heads, 1);
  if (static_cast<Index>(segments) > std::numeric_limits<Index>::max() / std::max<Index>(sequences, 1))
    throw std::length_error("nprf: the number of packed sequences, batch x heads x cumulative lengths, overflows");
  const Index items = sequences * static_cast<Index>(segments);
  m_reports.assign(static_cast<std::size_t>(items), Report{});
  if (call.check_finite) require_finite(q, k, v, call, team);
  if (saved) {
    saved->m_attention = nullptr;  // from here on it is nobody's until all is there
    saved->m_sequences.resize(static_cast<std::size_t>(items));
  }
  team.run_nested(items, [&](Index item, const Team& part) {
    const auto [b, h, s] = place(item, sizes.heads, segments);
    const Segment& x = m_segments[s];
    const Index begin = b * n_k + x.k_begin,
                end = call.lengths.empty() ? n_k : call.lengths[static_cast<std::size_t>(b)];
    const auto mask = call.key_mask.empty()
                          ? std::span<const bool>()
                          : call.key_mask.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(x.n_k));
    const SequenceInputs<T> inputs{q(b, h).middleRows(x.q_begin, x.n_q),
                                   k(b, h / group).middleRows(x.k_begin, x.n_k),
                                   v(b, h / group).middleRows(x.k_begin, x.n_k),
                                   mask,
                                   std::min(x.n_k, end),
                                   tolerance};
    const Head<T> head = head_of(heads, h, s);
    const auto at = static_cast<std::size_t>(item);
    ForwardPass<T>(head, inputs, y(b, h).middleRows(x.q_begin, x.n_q), saved ? &saved->m_sequences[at] : nullptr, part)
        .run(m_reports[at]);
  });
  if (call.report) *call.report = report(team);
  if (saved) {
    saved->m_sizes = sizes.each;
    saved->m_batch = sizes.batch;
    saved->m_heads = sizes.heads;
    saved->m_kv_heads = sizes.kv_heads;
    saved->m_offset = call.offset;
    saved->m_tolerance = tolerance;
    saved->m_segments = m_segments;
  }
}

template <Real T>
GradientReport Batch<T>::backward(const HeadModels<T>& heads, const Saved<T>& saved, const HeadsView<const T>& dy,
                                  const HeadsView<T>& dq, const HeadsView<T>& dk, const HeadsView<T>& dv) {
  const Team team = gather_team(heads, saved.m_batch * saved.m_heads, saved.m_segments, saved.m_sizes.d_v);
  const Settle settle{*this};
  const Workspace::Scope scope(team.workspace());
  const std::size_t segments = saved.m_segments.size(), n_heads = static_cast<std::size_t>(saved.m_heads);
  build_weights(heads, saved.m_segments, saved.m_sizes.d_v, saved.m_offset, Pass::backward, team);

  const HeadsView<T> of_keys = share_of_heads(dk, saved, team.workspace()),
                     of_values = share_of_heads(dv, saved, team.workspace());
  const Index items = static_cast<Index>(saved.m_sequences.size());
  m_gradient_reports.assign(saved.m_sequences.size(), GradientReport{});
  m_bias_gradients.resize(saved.m_sequences.size());
  m_d.resize(heads.num_positions());
  for (std::size_t p = 0; p < m_d.size(); ++p) heads.position(p).gradient(0, {}, m_d[p]);
  for (Index item = 0; item < items; ++item) {
    const auto [b, h, s] = place(item, saved.m_heads, segments);
    const PreparedPosition<T>& weights = m_weights[heads.position_of(h)][s];
    // a position without parameters asks for no lags
    const Index lags = m_d[heads.position_of(h)].size() > 0 ? weights.problem().lags.size() : 0;
    const Index E = weights.problem().border.count, border = E * (E + 2);
    double* sums = team.workspace().take<double>(lags + border);
    std::fill_n(sums, lags + border, 0.0);
    m_bias_gradients[static_cast<std::size_t>(item)] = {{sums, static_cast<std::size_t>(lags)},
                                                        {sums + lags, static_cast<std::size_t>(border)}};
  }
  team.run_nested(items, [&](Index item, const Team& part) {
    const auto [b, h, s] = place(item, saved.m_heads, segments);
    const Segment& x = saved.m_segments[s];
    const Head<T> head = head_of(heads, h, s);
    const auto at = static_cast<std::size_t>(item);
    const MatrixView<T> dy_rows = dy(b, h).middleRows(x.q_begin, x.n_q);
    BackwardPass<T>(head, saved.m_sequences[at], dy_rows, saved.m_tolerance, part)
        .run({dq(b, h).middleRows(x.q_begin, x.n_q), of_keys(b, h).middleRows(x.k_begin, x.n_k),
              of_values(b, h).middleRows(x.k_begin, x.n_k)},
             m_bias_gradients[at], m_gradient_reports[at]);
  });

  if (saved.m_kv_heads < saved.m_heads) {
    add_shares(of_keys, dk, team);
    add_shares(of_values, dv, team);
  }
  m_dbias.resize(n_heads);
  m_dextra.resize(n_heads);
  for (Index h = 0; h < saved.m_heads; ++h) {
    const Workspace::Scope scope_of_head(team.workspace());
    const std::size_t p = heads.position_of(h);
    const PositionView<T> position = heads.position(p);
    Matrix<double>& dextra = m_dextra[static_cast<std::size_t>(h)];
    dextra.setZero(position.extra().rows(), position.extra().cols());
    const LagRange lags = m_weights[p].distances();
    const std::span<double> all(team.workspace().take<double>(lags.size()), static_cast<std::size_t>(lags.size()));
    std::ranges::fill(all, 0.0);
    for (Index b = 0; b < saved.m_batch; ++b)
      for (std::size_t s = 0; s < segments; ++s) {
        const BiasGradient& one = m_bias_gradients[static_cast<std::size_t>(b * saved.m_heads + h) * segments + s];
        const LagProblem<T>& problem = m_weights[p][s].problem();
        const Index first = problem.lags.first - problem.offset - lags.first;
        for (std::size_t l = 0; l < one.lags.size(); ++l) all[static_cast<std::size_t>(first) + l] += one.lags[l];
        for (std::size_t e = 0; e < one.border.size(); ++e) dextra.data()[e] += one.border[e];
      }
    position.gradient(lags.first, m_d[p].size() > 0 ? all : all.first(0), m_dbias[static_cast<std::size_t>(h)]);
  }
  GradientReport sum;
  for (const GradientReport& one : m_gradient_reports) {
    if (sum.engine == Engine::automatic) sum.engine = one.engine;
    sum.recomputed_queries += one.recomputed_queries;
    sum.recomputed_keys += one.recomputed_keys;
    sum.recomputed_lags += one.recomputed_lags;
    sum.error_bound = std::max(sum.error_bound, one.error_bound);
  }
  sum.workspace_bytes = workspace_bytes(team);
  return sum;
}

}  // namespace nprf
