// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "nprf/attention/head.hpp"
#include "nprf/attention/options.hpp"
#include "nprf/attention/saved.hpp"
#include "nprf/attention/segment_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/planner.hpp"

namespace nprf {

/// Every sequence of every head of a call, spread over the threads. It keeps its memory for the next call: one that is
/// like an earlier one allocates nothing. One call at a time.
template <class F, class P>
class Batch {
 public:
  using T = typename F::Scalar;

  struct Sizes {
    Index batch, heads;
    AttentionShape each;
  };

  /// The feature maps and the positions: one for all heads, or one a head.
  struct Heads {
    std::span<const F> features;
    std::span<const P> positions;
    const AttentionOptions& options;

    const F& feature_map(Index h) const { return features[features.size() == 1 ? 0 : static_cast<std::size_t>(h)]; }
    std::size_t position(Index h) const { return positions.size() == 1 ? 0 : static_cast<std::size_t>(h); }
  };

  /// y(b, h) of q(b, h), k(b, h) and v(b, h), which are views of rows of tokens. Throws InvalidArgument.
  template <class Q, class K, class V, class Y>
  void forward(const Heads& heads, const Sizes& sizes, Q&& q, K&& k, V&& v, Y&& y, const CallOptions& call,
               Saved<T>* saved) {
    const auto [n_q, n_k, d, d_v] = sizes.each;
    require(d == heads.features[0].input_dim(), "queries: expected ", heads.features[0].input_dim(),
            " columns (the feature map's input_dim), got ", d);
    find_segments(call, sizes.batch, n_q, n_k, m_segments);
    const Team team = gather_team(heads, sizes.batch * sizes.heads, m_segments, d_v);
    const Settle settle{m_workspaces};
    const Workspace::Scope scope(team.workspace());
    build_weights(heads, m_segments, d_v, call.offset, team);

    const std::size_t segments = m_segments.size();
    const Index items = sizes.batch * sizes.heads * static_cast<Index>(segments);
    m_reports.assign(static_cast<std::size_t>(items), Report{});
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
      head(heads, h, s)
          .forward(q(b, h).middleRows(x.q_begin, x.n_q), k(b, h).middleRows(x.k_begin, x.n_k),
                   v(b, h).middleRows(x.k_begin, x.n_k), mask, std::min(x.n_k, end),
                   y(b, h).middleRows(x.q_begin, x.n_q),
                   saved ? &saved->m_sequences[static_cast<std::size_t>(item)] : nullptr,
                   m_reports[static_cast<std::size_t>(item)], part);
    });
    if (call.report) *call.report = report(team);
    if (saved) {
      saved->m_sizes = sizes.each;
      saved->m_batch = sizes.batch;
      saved->m_heads = sizes.heads;
      saved->m_offset = call.offset;
      saved->m_segments = m_segments;
    }
  }

  /// dq(b, h), dk(b, h) and dv(b, h) of dy(b, h), for the forward that filled `saved`.
  template <class Dy, class Dq, class Dk, class Dv>
  void backward(const Heads& heads, const Saved<T>& saved, Dy&& dy, Dq&& dq, Dk&& dk, Dv&& dv) {
    const Team team = gather_team(heads, saved.m_batch * saved.m_heads, saved.m_segments, saved.m_sizes.d_v);
    const Settle settle{m_workspaces};
    const Workspace::Scope scope(team.workspace());
    const std::size_t segments = saved.m_segments.size(), n_heads = static_cast<std::size_t>(saved.m_heads);
    build_weights(heads, saved.m_segments, saved.m_sizes.d_v, saved.m_offset, team);

    const Index items = static_cast<Index>(saved.m_sequences.size());
    m_bias_gradients.resize(saved.m_sequences.size());
    for (Index item = 0; item < items; ++item) {
      const auto [b, h, s] = place(item, saved.m_heads, segments);
      const HeadWeights<P>& weights = m_weights[heads.position(h)][s];
      const Index lags = weights.gradient_lags().size(), E = weights.border().count, border = E * (E + 2);
      double* sums = team.workspace().take<double>(lags + border);
      std::fill_n(sums, lags + border, 0.0);
      m_bias_gradients[static_cast<std::size_t>(item)] = {{sums, static_cast<std::size_t>(lags)},
                                                          {sums + lags, static_cast<std::size_t>(border)}};
    }
    team.run_nested(items, [&](Index item, const Team& part) {
      const auto [b, h, s] = place(item, saved.m_heads, segments);
      const Segment& x = saved.m_segments[s];
      head(heads, h, s)
          .backward(saved.m_sequences[static_cast<std::size_t>(item)], dy(b, h).middleRows(x.q_begin, x.n_q),
                    dq(b, h).middleRows(x.q_begin, x.n_q), dk(b, h).middleRows(x.k_begin, x.n_k),
                    dv(b, h).middleRows(x.k_begin, x.n_k), m_bias_gradients[static_cast<std::size_t>(item)], part);
    });

    m_dbias.resize(n_heads);
    m_dextra.resize(n_heads);
    for (std::size_t h = 0; h < n_heads; ++h) {
      const P& position = heads.positions[heads.position(static_cast<Index>(h))];
      position.gradient(0, {}, m_dbias[h]);  // zeros, in the shape of its parameters
      if constexpr (PlacedPosition<P>) m_dextra[h].setZero(position.extra().rows(), position.extra().cols());
    }
    for (Index item = 0; item < items; ++item) {
      const auto [b, h, s] = place(item, saved.m_heads, segments);
      const HeadWeights<P>& weights = m_weights[heads.position(h)][s];
      const BiasGradient& sums = m_bias_gradients[static_cast<std::size_t>(item)];
      heads.positions[heads.position(h)].gradient(weights.gradient_lags().first, sums.lags, m_d);
      m_dbias[static_cast<std::size_t>(h)] += m_d;
      for (std::size_t e = 0; e < sums.border.size(); ++e)
        m_dextra[static_cast<std::size_t>(h)].data()[e] += sums.border[e];
    }
  }

  /// After backward: the gradients of head h's position, in the shape of its parameters, and of its extra tokens.
  const Matrix<double>& dbias(Index h) const { return m_dbias[static_cast<std::size_t>(h)]; }
  const Matrix<double>& dextra(Index h) const { return m_dextra[static_cast<std::size_t>(h)]; }

 private:
  // at the end of a call
  struct Settle {
    ~Settle() {
      for (Workspace& workspace : workspaces) workspace.settle();
    }
    std::vector<Workspace>& workspaces;
  };

  struct Place {
    Index b, h;
    std::size_t s;
  };

  static Place place(Index item, Index heads, std::size_t segments) {
    const Index s = item % static_cast<Index>(segments), head = item / static_cast<Index>(segments);
    return {head / heads, head % heads, static_cast<std::size_t>(s)};
  }

  Head<F, P> head(const Heads& heads, Index h, std::size_t segment) const {
    return {heads.feature_map(h), heads.options.normalization, &m_weights[heads.position(h)][segment]};
  }

  Team gather_team(const Heads& heads, Index sequences, std::span<const Segment> segments, Index d_v) {
    double operations = 0;
    for (const Segment& x : segments)
      operations += toeplitz::Operations({x.n_q, x.n_k, heads.features[0].output_dim(), d_v + 1}).least();
    const auto threads =
        static_cast<std::size_t>(toeplitz::worthwhile_threads(static_cast<double>(sequences) * operations));
    if (m_workspaces.size() < threads) m_workspaces.resize(threads);
    for (Workspace& workspace : m_workspaces) workspace.forget_peak();
    return Team(std::span(m_workspaces).first(threads));
  }

  void build_weights(const Heads& heads, std::span<const Segment> segments, Index d_v, Index offset, const Team& team) {
    m_weights.resize(heads.positions.size());
    for (std::size_t p = 0; p < m_weights.size(); ++p)
      m_weights[p].build(heads.positions[p], heads.options, segments, heads.features[0].output_dim(), d_v + 1, offset,
                         team);
  }

  Report report(const Team& team) const {
    Report sum;
    for (const Report& one : m_reports) {
      if (sum.engine == Engine::automatic) sum.engine = one.engine;
      sum.repaired_rows += one.repaired_rows;
      sum.indefinite_rows += one.indefinite_rows;
      sum.empty_rows += one.empty_rows;
    }
    for (Index t = 0; t < team.size(); ++t)
      sum.workspace_bytes += m_workspaces[static_cast<std::size_t>(t)].peak_bytes();
    return sum;
  }

  std::vector<Workspace> m_workspaces;
  std::vector<Segment> m_segments;
  std::vector<SegmentWeights<P>> m_weights;  // one a position
  std::vector<Report> m_reports;             // one an item, as the next
  std::vector<BiasGradient> m_bias_gradients;
  std::vector<Matrix<double>> m_dbias, m_dextra;  // one a head
  Matrix<double> m_d;
};

}  // namespace nprf
