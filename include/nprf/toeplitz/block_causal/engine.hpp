// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/fft/lanes.hpp"
#include "nprf/toeplitz/block_causal/backward.hpp"
#include "nprf/toeplitz/block_causal/diagonal_blocks.hpp"
#include "nprf/toeplitz/block_causal/error_bound.hpp"
#include "nprf/toeplitz/block_causal/levels.hpp"
#include "nprf/toeplitz/block_causal/power_of_two_scaling.hpp"
#include "nprf/toeplitz/block_causal/running_key_max.hpp"
#include "nprf/toeplitz/engine.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/fft/signal_layout.hpp"
#include "nprf/toeplitz/fft/spectral_ops.hpp"

namespace nprf::toeplitz {

/// Y = ((A B^T) o C) U for one-sided weights: the blocks on the diagonal as dense products, those below it by FFTs,
/// each of its own length (block_causal/levels.hpp).
///
/// The rounding errors of an FFT are relative to its largest row. Here this is the largest row of the same block and of
/// the blocks before it, so that no key or value after a row changes a bit of the row, not even infinity or NaN.
/// Signals, lanes and left-over columns are as in FftEngine. Supports key log-scales (factors.hpp).
///
/// Time O(r p n log^2 n), one of the two logarithms to a base of 8 to 32, and O(n D (r + p)) on the diagonal, D <=
/// 1024; workspace O(n (16 + lane_count * threads)), for gradients O(n (r + p)). Weights on both sides are supported,
/// on an axis of up to twice the length. Threads share out groups of columns, and strips of the diagonal.
template <Real T>
class BlockCausalEngine {
 public:
  static constexpr Engine names[] = {Engine::block_causal};
  static constexpr Rounding rounding = Rounding::per_block;
  static constexpr bool accepts_key_log_scales = true, is_automatic = true;
  static Engine name_for(const LagWeightsView<T>&) { return names[0]; }

  /// The least of cost_with() for diagonal blocks of all sizes.
  static double cost(const CostInputs<T>& x) {
    if (x.tokens.empty()) return 0;
    const Index length = CausalAxis(x.weights.support(), x.span).length();
    return cost_with(cheapest_diagonal(length, x.tokens), length, x.tokens);
  }

  /// The size of the diagonal blocks with which the engine is cheapest.
  static Index cheapest_diagonal(Index length, const ProductShape& x) {
    return std::ranges::min(Levels::diagonals, {}, [&](Index diagonal) { return cost_with(diagonal, length, x); });
  }

  /// For queries in slots 0..n_q-1 and keys in slots 0..n_k-1.
  BlockCausalEngine(LagWeightsView<T> lags, const ProductShape& span, const Team& team)
      : m_n_q(span.n_q),
        m_num_lags(span.n_q + span.n_k - 1),
        m_axis(lags.support(), span),
        m_levels(lags, m_axis, cheapest_diagonal(m_axis.length(), span), team),
        m_diagonal(lags, m_levels, team) {}

  /// Writes Y (n_q,p) = ((A B^T) o C) U, with key log-scales as in factors.hpp. If sums is not null, also writes
  /// sums (n_q) = ((A B^T) o C) 1, with the same log-scales.
  void contract(const Factors<T>& x, MatrixRef<T> Y, const Team& team, T* sums = nullptr) const {
    if (sums) return contract_with_ones(*this, x, Y, team, sums);
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    const Factors<T> by_place = in_slots(x, rows(m_axis.queries), rows(m_axis.keys), team);
    const RunningKeyMax<T> key_max(x, m_levels, team);
    if (x.queries.slots.count == m_n_q) return contract_places(by_place, key_max, Y, team);
    auto all = workspace.matrix<T>(m_n_q, Y.cols());
    contract_places(by_place, key_max, all, team);
    from_slots(all, x.queries.slots, Y, team);
  }

  /// Writes to `out` bounds of the rounding errors of contract(). Later keys do not change them. sizes[j] (n_k) is the
  /// largest |U_jp| of key j.
  void row_error_bounds(const Factors<T>& x, const T* sizes, RowErrorBounds out, const Team& team) const {
    const Workspace::Scope scope(team.workspace());
    const RunningKeyMax<T> key_max(x, m_levels, team);
    BlockCausalErrorBound<T>(m_levels, key_max, x, sizes, team).rows(out, team);
  }

  /// Writes to `out` bounds of the rounding errors of gradients().
  void gradient_error_bounds(const Factors<T>& x, const GradientScales<T>& of, GradientErrorBounds out,
                             const Team& team) const {
    const Workspace::Scope scope(team.workspace());
    const RunningKeyMax<T> key_max(x, m_levels, team);
    BlockCausalBackwardErrorBound<T>(m_levels, key_max, x, of, team).find(out, m_n_q, team);
  }

  /// Writes to `out` the gradients for G (n_q,p) = dL/dY, with the log-scales as constants, and the sums of `sizes`.
  /// out.dc may be empty. Here later rows may change bits of the gradients of earlier rows.
  void gradients(const Factors<T>& x, const MatrixView<T>& G, GradientRefs<T> out, const GradientSizes<T>& sizes,
                 const Team& team) const {
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    const Factors<T> by_place = in_slots(x, rows(m_axis.queries), rows(m_axis.keys), team);
    const MatrixView<T> G_by_place = in_slots(G, x.queries.slots, rows(m_axis.queries), team);
    const RunningKeyMax<T> key_max(x, m_levels, team);
    SlotGradients<T> slots(x, rows(m_axis.queries), rows(m_axis.keys), out, sizes, team);
    auto unrequested = workspace.template vector<T>(out.dc.size() == 0 ? m_num_lags : 0);
    GradientRefs<T> d = slots.refs(out.dc.size() == 0 ? Eigen::Ref<Vector<T>>(unrequested) : out.dc);
    const GradientSizes<T> of = slots.sizes();
    d.set_zero();
    if (of) {
      std::fill_n(of.keys, m_axis.keys.end, T(0));
      std::fill_n(of.lags, m_num_lags, T(0));
    }
    m_diagonal.add_gradients(by_place, G_by_place, key_max, d, of, 1 - m_n_q, team);
    if (m_levels.count() > 0)
      BlockCausalBackward<T>(m_levels).add(by_place, G_by_place, key_max, d, of, 1 - m_n_q, team);
    slots.copy_back(team);
  }

  Index longest_plain_sum(Index n_k) const {
    return std::min(n_k, std::max<Index>(plain_sum_of_fft, m_levels.diagonal()));
  }

 private:
  using Levels = CausalLevels<T>;
  using BlockGroup = typename Levels::BlockGroup;
  using Z = fft::ComplexLanes<T>;
  using Lanes = fft::Lanes<T>;
  static constexpr Index W = fft::lane_count<T>;

  // n diagonal/2 (r + p + cut_weight_cost) + CausalLevels::operations(n) * signals * causal_operation, for n places and
  // the number of signals that signals() counts
  static double cost_with(Index diagonal, Index length, const ProductShape& x) {
    constexpr double left_over = 2.5, operation = cost_factors.causal_operation;
    return static_cast<double>(length * diagonal / 2) * (static_cast<double>(x.r + x.p) + cut_weight_cost) +
           Levels::operations(length, diagonal) * signals<T>(x.r, x.p, left_over) * operation;
  }
  static constexpr Index feature_block = 16;  // the number of features whose columns are laid out together

  // one row for each place
  static SlotRows rows(const CausalAxis::Side& side) { return {side.end, side.first}; }

  // contract() for factors with one row for each place
  void contract_places(const Factors<T>& x, const RunningKeyMax<T>& key_max, MatrixRef<T> Y, const Team& team) const {
    m_diagonal.contract(x, key_max, Y, team);
    if (m_levels.count() == 0) return;
    const Index r = x.A.cols(), p = x.U.cols(), n = m_axis.length();
    Workspace& workspace = team.workspace();
    const LevelMaxima<T> sources(x.B, x.U, key_max, m_levels, team);
    const FeatureColumns<T> a(workspace, feature_block, n), b(workspace, feature_block, n);
    const ColumnGroups<T> groups(r, p);
    for (Index r0 = 0; r0 < r; r0 += feature_block) {
      const Index features = std::min(feature_block, r - r0);
      team.run_tiles(groups.count > 0 ? n : 0, [&](Index j0, Index count, Workspace&) {
        for (Index f = 0; f < features; ++f) {
          a.read(f, x.A, r0 + f, 1, j0, count);
          b.read(f, x.B, r0 + f, 1, j0, count);
        }
      });
      team.run(groups.count + (r0 == 0 ? groups.left_over : 0), [&](Index task, Workspace& scratch) {
        if (task >= groups.count) {
          const Index column = p - groups.left_over + task - groups.count;
          return contract_column(x, column, key_max, sources, Y, scratch);
        }
        const Index p0 = task * W, width = groups.width(task);
        ColumnLanes<T> u(scratch, m_axis.keys.end, n, width), y(scratch, m_axis.queries.end, n, width);
        u.read(x.U, p0);
        y.set_zero();
        Scratch with(m_levels, scratch);
        m_levels.for_each_group([&](const BlockGroup& group) {
          for (Index f = 0; f < features; ++f)
            for_each_run(
                group, [&](Index k) { return sources.feature(group.level, k, r0 + f, p0, width); },
                [&](const Run& run) {
                  with.read(group, run, a[f], b[f], key_max, m_levels, m_axis.queries.end);
                  add(group, run, u.values, y.values, with);
                });
        });
        y.values += m_axis.queries.first;
        y.rows -= m_axis.queries.first;
        y.add_to(Y, p0);
      });
    }
  }

  // targets begin..end-1 of a group, and the scales that they share
  struct Run {
    Index begin, end;
    SourceScales<T> scales;
  };

  // calls use(run) for runs that continue while their scales fit; largest(k) is the BlockMaxima of source block k
  template <class Find, class Use>
  void for_each_run(const BlockGroup& group, Find&& largest, Use&& use) const {
    const Index k0 = group.first / m_levels[group.level].size;
    auto maxima = BlockMaxima<T>::none();
    for (Index begin = 0, end; begin < group.count; begin = end) {
      if (begin == 0) maxima.include(largest(k0));
      const SourceScales<T> scales(maxima);
      for (end = begin + 1; end < group.count; ++end) {
        maxima.include(largest(k0 + end));
        if (!scales.fit(maxima)) break;
      }
      use(Run{begin, end, scales});
    }
  }

  // z: the signals of a group. b, a: a feature's entries of B and A, scaled for a run; those of A are twisted, too
  struct Scratch {
    Scratch(const Levels& levels, Workspace& workspace) {
      const Index n = levels.group_length();
      z = workspace.take<Z>(n + Levels::most * stride(0));
      b = workspace.take<T>(staggered<T>(n));
      a = workspace.take<T>(staggered<T>(2 * n));
    }

    static Index stride(Index size) { return staggered<Z>(size); }

    // sources after the run are zeros; targets that are not in the run are not written
    void read(const BlockGroup& group, const Run& run, const T* from_a, const T* from_b,
              const RunningKeyMax<T>& key_max, const Levels& levels, Index queries_end) {
      const auto& level = levels[group.level];
      const Index S = level.size, middle = run.end * S;
      const T scale = run.scales.b[0], of_b = finite(1 / scale);
      for (Index j0 = 0; j0 < middle; j0 += Levels::block) {
        const Index place = group.first + j0;
        const T factor = static_cast<T>(ratio(key_max.largest(place / Levels::block), run.scales.log_scale));
        for (Index j = 0; j < Levels::block; ++j)
          b[j0 + j] = from_b[place + j] * of_b * (key_max.keys()[place + j] * factor);
      }
      std::fill(b + middle, b + group.count * S, T(0));
      const T *rows = key_max.rows(group.level), *twist = level.tree->twist();
      for (Index s = run.begin; s < run.end; ++s) {
        const Index place = group.first + (s + 1) * S, end = std::min(S, queries_end - place);
        const T factor = finite(scale) * static_cast<T>(ratio(run.scales.log_scale, key_max.before(place)));
        for (Index i = 0; i < end; ++i) {
          const T value = from_a[place + i] * (factor * rows[place + i]);
          for (const Index part : {0, 1}) a[2 * (s * S + i) + part] = value * twist[2 * i + part];
        }
      }
    }

    Z* z;
    T *b, *a;
  };

  // y += a o T(c) (b o u) for the blocks of a group and a twisted a
  void add(const BlockGroup& group, const Run& run, const Lanes* u, Lanes* y, const Scratch& with) const {
    const auto& level = m_levels[group.level];
    const Index S = level.size, begin = run.begin * S;
    const Index rows = std::min(run.end * S, m_axis.queries.end - group.first - S) - begin;
    const Lanes of_u = inverse<T>(run.scales.u), of_y = finite_lanes<T>(run.scales.u);
    level.tree->template convolve<Levels::most>(
        with.z, Scratch::stride(S), group.count,
        [=, b = with.b, u = u + group.first](Index s, Index j) { return b[s * S + j] * (u[s * S + j] * of_u); },
        [&](Index k, Z(&z)[Levels::most][8]) { m_levels.multiply(level, k, group.count, z); },
        [=, a = with.a, y = y + group.first + S](Index s, Index i, const Z& t) {
          const Index at = s * S + i;
          if (at - begin < 0 || at - begin >= rows) return;
          y[at] += of_y * real_part(t, a + 2 * at);
        });
  }

  // a, b: W features as lanes. u: one column of U, scaled for a run. y: the same column of Y. All have one row for each
  // place
  struct ColumnRows {
    FeatureLanes<T> a, b;
    const T* u;
    T* y;
  };

  // one column of Y, W features at a time
  void contract_column(const Factors<T>& x, Index column, const RunningKeyMax<T>& key_max,
                       const LevelMaxima<T>& sources, MatrixRef<T>& Y, Workspace& scratch) const {
    const Index n = m_axis.length();
    T *y = scratch.take<T>(n), *u = scratch.take<T>(n);
    std::fill_n(y, n, T(0));
    Scratch with(m_levels, scratch);
    for (Index f = 0; f < x.A.cols(); f += W) {
      const ColumnRows rows_of{{x.A, f}, {x.B, f}, u, y};
      m_levels.for_each_group([&](const BlockGroup& group) {
        for_each_run(
            group, [&](Index k) { return sources.column(group.level, k, rows_of.b, column); },
            [&](const Run& run) {
              const Index S = m_levels[group.level].size, begin = group.first, end = begin + run.end * S;
              const T inverse_scale = finite(1 / run.scales.u[0]);
              std::fill_n(u + begin, group.count * S, T(0));
              for (Index j = begin; j < std::min(end, m_axis.keys.end); ++j) {
                const double e = ratio(key_max.largest(j / Levels::block), run.scales.log_scale);
                u[j] = x.U(j, column) * inverse_scale * (key_max.keys()[j] * static_cast<T>(e));
              }
              add_column(group, run, rows_of, key_max, with);
            });
      });
    }
    for (Index i = 0; i < m_n_q; ++i) Y(i, column) += y[m_axis.queries.first + i];
  }

  // y += sum over the lanes of a o T(c) (b o u) for the blocks of a group
  void add_column(const BlockGroup& group, const Run& run, const ColumnRows& x, const RunningKeyMax<T>& key_max,
                  const Scratch& with) const {
    const auto& level = m_levels[group.level];
    const Index S = level.size, begin = run.begin * S;
    const Index rows = std::min(run.end * S, m_axis.queries.end - group.first - S) - begin;
    const Lanes of_b = inverse<T>(run.scales.b), of_a = finite_lanes<T>(run.scales.b);
    T factor[Levels::most];
    for (Index s = run.begin; s < run.end; ++s)
      factor[s] = finite(run.scales.u[0]) *
                  static_cast<T>(ratio(run.scales.log_scale, key_max.before(group.first + (s + 1) * S)));
    level.tree->template convolve<Levels::most>(
        with.z, Scratch::stride(S), group.count,
        [&, end = run.end * S, keys_end = m_axis.keys.end](Index s, Index j) {
          const Index at = s * S + j, place = group.first + at;
          return at < end && place < keys_end ? x.b.row(place) * of_b * x.u[place] : Lanes{};
        },
        [&](Index k, Z(&z)[Levels::most][8]) { m_levels.multiply(level, k, group.count, z); },
        [&, row_factors = key_max.rows(group.level)](Index s, Index i, const Z& twisted) {
          const Index at = s * S + i, place = group.first + S + at;
          if (at - begin < 0 || at - begin >= rows) return;
          const Lanes t = real_part(twisted, level.tree->twist() + 2 * i);
          x.y[place] += factor[s] * row_factors[place] * fft::sum_lanes<T>(x.a.row(place) * of_a * t);
        });
  }

  Index m_n_q, m_num_lags;
  CausalAxis m_axis;
  CausalLevels<T> m_levels;
  DiagonalBlocks<T> m_diagonal;
};

}  // namespace nprf::toeplitz
