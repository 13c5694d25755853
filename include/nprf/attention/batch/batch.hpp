// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

#include "nprf/attention/attention_core.hpp"
#include "nprf/attention/batch/backward_pass.hpp"
#include "nprf/attention/batch/check_arrays.hpp"
#include "nprf/attention/batch/find_segments.hpp"
#include "nprf/attention/batch/forward_pass.hpp"
#include "nprf/attention/batch/head.hpp"
#include "nprf/attention/heads_view.hpp"
#include "nprf/attention/options.hpp"
#include "nprf/attention/saved.hpp"
#include "nprf/attention/segments.hpp"
#include "nprf/attention/weights/prepared_position.hpp"
#include "nprf/core/row_quotient.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/plan/choose.hpp"

namespace nprf {

/// Attention of all heads and sequences of a call, divided over threads. A work item is one sequence of one head. The
/// object keeps its memory for the next call: a call of the same shapes as an earlier one allocates nothing. Only one
/// call at a time may use it.
template <Real T>
class Batch {
 public:
  Batch() = default;
  ~Batch();

  /// Sets y for q, k and v, whose shapes must match; groups of heads of q share a head of k and v. Throws
  /// InvalidArgument before it writes anything. If `saved` is not null, `lengths` must be Lengths::of_keys.
  void forward(const HeadModels<T>& heads, const HeadsView<const T>& q, const HeadsView<const T>& k,
               const HeadsView<const T>& v, const HeadsView<T>& y, const CallOptions& call, Saved<T>* saved,
               Lengths lengths = Lengths::of_keys);

  /// Sets dq, dk and dv for dy and the forward that filled `saved`. The positions must have gradient().
  GradientReport backward(const HeadModels<T>& heads, const Saved<T>& saved, const HeadsView<const T>& dy,
                          const HeadsView<T>& dq, const HeadsView<T>& dk, const HeadsView<T>& dv);

  /// After backward: the gradient of the parameters of head h's position, in their shape; and the gradient of the
  /// biases of its extra tokens (Gradients::extra).
  const Matrix<double>& dbias(Index h) const { return m_dbias[static_cast<std::size_t>(h)]; }
  const Matrix<double>& dextra(Index h) const { return m_dextra[static_cast<std::size_t>(h)]; }
  /// And that of its vectors of lags (Gradients::lag_vectors).
  const Matrix<double>& dlag_vectors(Index h) const { return m_dlag_vectors[static_cast<std::size_t>(h)]; }

 private:
  // at the end of a call: releases the tables that refer to workspaces, and merges the blocks of the workspaces for the
  // next call
  struct EndOfCall {
    ~EndOfCall() {
      for (PreparedSegments<T>& prepared : batch.m_positions) prepared.clear();
      for (Workspace& workspace : batch.m_workspaces) workspace.merge_blocks();
    }
    Batch& batch;
  };

  // sequence b of the batch, head h, segment s
  struct Item {
    Index b, h;
    std::size_t s;
  };
  static Item item_at(Index item, Index heads, std::size_t segments) {
    const Index s = item % static_cast<Index>(segments), head = item / static_cast<Index>(segments);
    return {head / heads, head % heads, static_cast<std::size_t>(s)};
  }

  Head<T> head_of(const HeadModels<T>& heads, const Item& item) const {
    return {heads.feature_map(item.h), heads.options().normalization, &position_of(heads, item),
            heads.salient_rule(item.h)};
  }
  // the rows first..first+count-1 of a map
  template <class Rows>
  static Rows part_of(Rows x, Index first, Index count) {
    return {x.data() + first * x.outerStride(), count, x.cols(), Eigen::OuterStride<>(x.outerStride())};
  }
  // the inputs of segment x of a head of sequence b; q, k and v have all rows of the head, and q the channels of r too
  template <class Rows>
  static SequenceInputs<T> inputs_of(const Rows& q, const Rows& k, const Rows& v, const Segment& x, Index b,
                                     const CallOptions& call) {
    const Rows queries = part_of(q, x.q_begin, x.n_q);
    const Index n_k = k.rows(), end = call.lengths.empty() ? n_k : call.lengths[static_cast<std::size_t>(b)];
    const auto first = static_cast<std::size_t>(b * n_k + x.k_begin), count = static_cast<std::size_t>(x.n_k);
    return {.q = queries.leftCols(k.cols()),
            .k = part_of(k, x.k_begin, x.n_k),
            .v = part_of(v, x.k_begin, x.n_k),
            .r = queries.rightCols(q.cols() - k.cols()),
            .mask = call.key_mask.empty() ? std::span<const bool>() : call.key_mask.subspan(first, count),
            .length = std::min(x.n_k, end),
            .compared_rows = call.softmax_samples,
            .seed = call.softmax_seed};
  }
  const PreparedPosition<T>& position_of(const HeadModels<T>& heads, const Item& item) const {
    return m_positions[heads.position_of(item.h)][item.s];
  }

  Team make_team(const HeadModels<T>& heads, Index sequences, std::span<const Segment> segments, Index d_v,
                 void (*poll)()) {
    const Index r = heads.feature_map(0).output_dim();
    double operations = 0;
    for (const Segment& x : segments) operations += toeplitz::dense_cost<T>({x.n_q, x.n_k, r, d_v + 1});
    return team_of(m_workspaces, toeplitz::worthwhile_threads(static_cast<double>(sequences) * operations), poll);
  }

  // By how much lowering may change biases, if close ones cost less. By nothing if the gradients of free tables are
  // needed, because backward gives those of the biases as they are, and for features of both signs, for which the
  // effect on y has no bound before y is known; unless the user asks for the engine that changes them.
  static double max_deviation(const HeadModels<T>& heads, double tolerance, bool needs_gradients) {
    bool may_deviate = heads.feature_map(0).is_positive();
    for (std::size_t p = 0; p < heads.num_positions(); ++p)
      may_deviate = may_deviate && (!needs_gradients || heads.position(p).is_smooth());
    return may_deviate || heads.options().engine == Engine::smooth ? deviation_within(tolerance) : 0;
  }

  void prepare_positions(const HeadModels<T>& heads, std::span<const Segment> segments, Index d_v,
                         const LoweringOptions& lowering, const Team& team) {
    const Index r = heads.feature_map(0).output_dim();
    m_positions.resize(heads.num_positions());
    for (std::size_t p = 0; p < m_positions.size(); ++p)
      m_positions[p].build(heads.position(p), heads.options(), segments, r, d_v + 1, lowering, team);
  }

  // where the gradients of keys or values of each query head go: `out`, or a temporary array if heads share keys
  static HeadsView<T> by_query_head(const HeadsView<T>& out, const Saved<T>& saved, Workspace& workspace) {
    if (saved.m_kv_heads == saved.m_heads) return out;
    HeadsView<T> all{nullptr, out.batch, saved.m_heads, out.tokens, out.channels};
    all.data = workspace.template take<T>(all.size());
    return all;
  }
  // out = the sums over the query heads that share a head of keys and values
  static void sum_over_groups(const HeadsView<T>& all, const HeadsView<T>& out, const Team& team) {
    const Index group = all.heads / std::max<Index>(out.heads, 1);
    team.run(out.batch * out.heads, [&](Index item, Workspace&) {
      const Index b = item / out.heads, h = item % out.heads;
      auto sum = out(b, h);
      sum = all(b, h * group);
      for (Index g = 1; g < group; ++g) sum += all(b, h * group + g);
    });
  }

  void allocate_bias_gradients(const HeadModels<T>& heads, const Saved<T>& saved, Workspace& workspace);
  void sum_bias_gradients(const HeadModels<T>& heads, const Saved<T>& saved, Index h, Workspace& workspace);

  Report report(const Team& team) const {
    Report sum;
    for (const Report& one : m_reports) {
      if (sum.engine == Engine::automatic) sum.engine = one.engine;
      sum.add_rows(one);
    }
    SoftmaxDifference comparison;
    for (const SoftmaxDifference& one : m_differences) comparison += one;
    sum.compared_rows = comparison.rows;
    sum.softmax_error = comparison.relative_error();
    sum.workspace_bytes = team.peak_bytes();
    return sum;
  }
  GradientReport gradient_report(const Team& team) const {
    GradientReport sum;
    for (const GradientReport& one : m_gradient_reports) {
      if (sum.engine == Engine::automatic) sum.engine = one.engine;
      sum.recomputed_queries += one.recomputed_queries;
      sum.recomputed_keys += one.recomputed_keys;
      sum.recomputed_lags += one.recomputed_lags;
      sum.error_bound = std::max(sum.error_bound, one.error_bound);
    }
    sum.workspace_bytes = team.peak_bytes();
    return sum;
  }

  std::vector<Workspace> m_workspaces;
  std::vector<Segment> m_segments;
  std::vector<PreparedSegments<T>> m_positions;  // one for each position
  std::vector<Report> m_reports;                 // one for each item, like the next three
  std::vector<SoftmaxDifference> m_differences;
  std::vector<GradientReport> m_gradient_reports;
  std::vector<BiasGradient> m_bias_gradients;
  std::vector<Matrix<double>> m_dbias, m_dextra, m_dlag_vectors;  // one for each head
  std::vector<Matrix<double>> m_zero_parameters;                  // zeros in the shape of each position's parameters
};

#if NPRF_X86_64_LEVELS  // levels.hpp
#define NPRF_CALLED_BY_LEVEL(T)                                                                                   \
  template <>                                                                                                     \
  Batch<T>::~Batch();                                                                                             \
  template <>                                                                                                     \
  void Batch<T>::forward(const HeadModels<T>&, const HeadsView<const T>&, const HeadsView<const T>&,              \
                         const HeadsView<const T>&, const HeadsView<T>&, const CallOptions&, Saved<T>*, Lengths); \
  template <>                                                                                                     \
  GradientReport Batch<T>::backward(const HeadModels<T>&, const Saved<T>&, const HeadsView<const T>&,             \
                                    const HeadsView<T>&, const HeadsView<T>&, const HeadsView<T>&);

NPRF_CALLED_BY_LEVEL(float)
NPRF_CALLED_BY_LEVEL(double)
#undef NPRF_CALLED_BY_LEVEL
#endif

template <Real T>
Batch<T>::~Batch() = default;

template <Real T>
void Batch<T>::forward(const HeadModels<T>& heads, const HeadsView<const T>& q, const HeadsView<const T>& k,
                       const HeadsView<const T>& v, const HeadsView<T>& y, const CallOptions& call, Saved<T>* saved,
                       Lengths lengths) {
  const Index n_k = k.tokens, d_v = v.channels;
  require(call.tolerance >= 0, "tolerance: expected 0 or more, got ", call.tolerance);
  require(call.softmax_samples >= 0, "softmax_samples: expected 0 or more, got ", call.softmax_samples);
  require(call.softmax_samples == 0 || call.report, "softmax_samples: expected 0 without a report, got ",
          call.softmax_samples);
  require(call.softmax_samples == 0 || heads.feature_map(0).estimates_exp(),
          "softmax_samples: expected 0 for a feature map that does not estimate exp, got ", call.softmax_samples);
  find_segments(call, q.batch, q.tokens, n_k, m_segments, lengths);
  const bool differ = differ_by_sequence(call, lengths);
  const Index sequences = q.batch * q.heads, group = q.heads / std::max<Index>(k.heads, 1);
  const Team team = make_team(heads, differ ? q.heads : sequences, m_segments, d_v, call.poll);
  const EndOfCall end_of_call{*this};
  const Workspace::Scope scope(team.workspace());
  const double tolerance = call.tolerance > 0 ? call.tolerance : default_tolerance<T>;
  prepare_positions(heads, m_segments, d_v,
                    {call.offset, Pass::forward, max_deviation(heads, tolerance, saved != nullptr)}, team);
  const std::size_t segments = differ ? 1 : m_segments.size();  // of each sequence
  if (static_cast<Index>(segments) > std::numeric_limits<Index>::max() / std::max<Index>(sequences, 1))
    throw std::length_error("nprf: the number of packed sequences, batch x heads x cumulative lengths, overflows");
  const Index items = sequences * static_cast<Index>(segments);
  m_reports.assign(static_cast<std::size_t>(items), Report{});
  m_differences.assign(m_reports.size(), SoftmaxDifference{});
  if (call.check_finite) require_finite(q, k, v, call, team, lengths);
  if (saved) {
    saved->m_attention = nullptr;  // invalid until the call has succeeded
    saved->m_sequences.resize(static_cast<std::size_t>(items));
  }
  team.run_nested(items, [&](Index index, const Team& part) {
    Item item = item_at(index, q.heads, segments);
    if (differ) item.s = static_cast<std::size_t>(item.b);
    const auto [b, h, s] = item;
    const Segment& x = m_segments[s];
    SequenceInputs<T> inputs = inputs_of(q(b, h), k(b, h / group), v(b, h / group), x, b, call);
    inputs.tolerance = tolerance;
    inputs.stream = static_cast<std::uint64_t>(index);
    const Head<T> head = head_of(heads, item);
    const auto at = static_cast<std::size_t>(index);
    SavedSequence<T>* one = saved ? &saved->m_sequences[at] : nullptr;
    m_differences[at] = ForwardPass<T>(head, inputs, part_of(y(b, h), x.q_begin, x.n_q), one, part).run(m_reports[at]);
  });
  if (call.report) *call.report = report(team);
  if (saved) {
    saved->m_sizes = {q.tokens, n_k, k.channels, d_v};
    saved->m_batch = q.batch;
    saved->m_heads = q.heads;
    saved->m_kv_heads = k.heads;
    saved->m_offset = call.offset;
    saved->m_tolerance = tolerance;
    saved->m_poll = call.poll;
    saved->m_segments = m_segments;
  }
}

template <Real T>
GradientReport Batch<T>::backward(const HeadModels<T>& heads, const Saved<T>& saved, const HeadsView<const T>& dy,
                                  const HeadsView<T>& dq, const HeadsView<T>& dk, const HeadsView<T>& dv) {
  const Team team = make_team(heads, saved.m_batch * saved.m_heads, saved.m_segments, saved.m_sizes.d_v, saved.m_poll);
  const EndOfCall end_of_call{*this};
  Workspace& workspace = team.workspace();
  const Workspace::Scope scope(workspace);
  prepare_positions(heads, saved.m_segments, saved.m_sizes.d_v,
                    {saved.m_offset, Pass::backward, max_deviation(heads, saved.m_tolerance, true)}, team);

  const HeadsView<T> all_dk = by_query_head(dk, saved, workspace), all_dv = by_query_head(dv, saved, workspace);
  m_gradient_reports.assign(saved.m_sequences.size(), GradientReport{});
  allocate_bias_gradients(heads, saved, workspace);
  team.run_nested(static_cast<Index>(saved.m_sequences.size()), [&](Index index, const Team& part) {
    const Item item = item_at(index, saved.m_heads, saved.m_segments.size());
    const auto [b, h, s] = item;
    const Segment& x = saved.m_segments[s];
    const Head<T> head = head_of(heads, item);
    const auto at = static_cast<std::size_t>(index);
    const MatrixView<T> dy_rows = part_of(dy(b, h), x.q_begin, x.n_q);
    BackwardPass<T>(head, saved.m_sequences[at], dy_rows, saved.m_tolerance, part)
        .run({part_of(dq(b, h), x.q_begin, x.n_q), part_of(all_dk(b, h), x.k_begin, x.n_k),
              part_of(all_dv(b, h), x.k_begin, x.n_k)},
             m_bias_gradients[at], m_gradient_reports[at]);
  });

  if (saved.m_kv_heads < saved.m_heads) {
    sum_over_groups(all_dk, dk, team);
    sum_over_groups(all_dv, dv, team);
  }
  m_dbias.resize(static_cast<std::size_t>(saved.m_heads));
  m_dextra.resize(m_dbias.size());
  m_dlag_vectors.resize(m_dbias.size());
  for (Index h = 0; h < saved.m_heads; ++h) sum_bias_gradients(heads, saved, h, workspace);
  return gradient_report(team);
}

// sets the bias gradients of each item, by lag and by entry of the border, to zeros
template <Real T>
void Batch<T>::allocate_bias_gradients(const HeadModels<T>& heads, const Saved<T>& saved, Workspace& workspace) {
  m_zero_parameters.resize(heads.num_positions());
  for (std::size_t p = 0; p < m_zero_parameters.size(); ++p) heads.position(p).gradient(0, {}, m_zero_parameters[p]);
  m_bias_gradients.resize(saved.m_sequences.size());
  for (std::size_t index = 0; index < m_bias_gradients.size(); ++index) {
    const Item item = item_at(static_cast<Index>(index), saved.m_heads, saved.m_segments.size());
    const LagProblem<T>& problem = position_of(heads, item).problem();
    const bool has_parameters = m_zero_parameters[heads.position_of(item.h)].size() > 0;
    const Matrix<T>* R = heads.position(heads.position_of(item.h)).lag_vectors();
    const auto zeros = [&](Index count) {
      double* sums = workspace.take<double>(count);
      std::fill_n(sums, count, 0.0);
      return std::span<double>(sums, static_cast<std::size_t>(count));
    };
    m_bias_gradients[index] = {zeros(has_parameters ? problem.lags.size() : 0), zeros(problem.border.size()),
                               zeros(R ? R->size() : 0)};
  }
}

// sets dbias, dextra and dlag_vectors of head h to the sums over the sequences
template <Real T>
void Batch<T>::sum_bias_gradients(const HeadModels<T>& heads, const Saved<T>& saved, Index h, Workspace& workspace) {
  const Workspace::Scope scope(workspace);
  const std::size_t p = heads.position_of(h), segments = saved.m_segments.size();
  const PositionView<T> position = heads.position(p);
  Matrix<double>& dextra = m_dextra[static_cast<std::size_t>(h)];
  dextra.setZero(position.extra().rows(), position.extra().cols());
  Matrix<double>& dlag_vectors = m_dlag_vectors[static_cast<std::size_t>(h)];
  dlag_vectors.setZero(position.rank(), position.rank() > 0 ? position.lag_vectors()->cols() : 0);
  const LagRange lags = m_positions[p].distances();
  const std::span<double> all(workspace.take<double>(lags.size()), static_cast<std::size_t>(lags.size()));
  std::ranges::fill(all, 0.0);
  for (Index b = 0; b < saved.m_batch; ++b)
    for (std::size_t s = 0; s < segments; ++s) {
      const BiasGradient& one = m_bias_gradients[static_cast<std::size_t>(b * saved.m_heads + h) * segments + s];
      const LagProblem<T>& problem = m_positions[p][s].problem();
      const Index first = problem.lags.first - problem.offset - lags.first;
      for (std::size_t l = 0; l < one.lags.size(); ++l) all[static_cast<std::size_t>(first) + l] += one.lags[l];
      for (std::size_t e = 0; e < one.border.size(); ++e) dextra.data()[e] += one.border[e];
      for (std::size_t e = 0; e < one.lag_vectors.size(); ++e) dlag_vectors.data()[e] += one.lag_vectors[e];
    }
  position.gradient(lags.first, m_zero_parameters[p].size() > 0 ? all : all.first(0),
                    m_dbias[static_cast<std::size_t>(h)]);
}

}  // namespace nprf
