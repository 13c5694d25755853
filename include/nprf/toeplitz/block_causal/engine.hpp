// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/fft/lanes.hpp"
#include "nprf/toeplitz/block_causal/backward.hpp"
#include "nprf/toeplitz/block_causal/backward_error_bound.hpp"
#include "nprf/toeplitz/block_causal/diagonal_blocks.hpp"
#include "nprf/toeplitz/block_causal/error_bound.hpp"
#include "nprf/toeplitz/block_causal/levels.hpp"
#include "nprf/toeplitz/block_causal/power_of_two_scaling.hpp"
#include "nprf/toeplitz/block_causal/running_key_max.hpp"
#include "nprf/toeplitz/engine.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/fft/signal_layout.hpp"
#include "nprf/toeplitz/fft/slot_gradients.hpp"
#include "nprf/toeplitz/fft/spectral_ops.hpp"
#include "nprf/toeplitz/gradients.hpp"
#include "nprf/toeplitz/ones.hpp"

namespace nprf::toeplitz {

/// Y = ((A B^T) o C) U for one-sided weights: blocks on the diagonal by tiles, those below it by FFTs of their own
/// lengths (block_causal/levels.hpp).
///
/// An FFT's rounding is relative to the largest row that it has a part in. Here that is a row of the same block, and no
/// row has a part in an earlier one: whatever becomes of keys and values after a row, infinity and NaN too, no bit of
/// it changes. Signals, lanes and left over columns are as in LanesEngine. Keys' exponents are understood.
///
/// Time O(r p n log^2 n), one of the two logarithms to a base of 8 to 32, and O(n 128 (r + p)) on the diagonal;
/// workspace O(n (16 + lane_count a thread)), for gradients O(n (r + p)). Weights on both sides work, at up to twice
/// the length. Threads take groups of columns, and strips of the diagonal.
template <Real T>
class BlockCausalEngine {
 public:
  static constexpr Engine names[] = {Engine::block_causal};
  static constexpr Rounding rounding = Rounding::per_block;
  static constexpr bool accepts_key_log_scales = true, is_automatic = true;
  static Engine name_for(const LagWeightsView<T>&) { return names[0]; }

  /// n 64 (r + p + cut weight) + operations signals operation, of n places and the operations of CausalLevels.
  static double cost(const CostInputs<T>& x) {
    if (x.tokens.empty()) return 0;
    constexpr double left_over = 2.5, operation = cost_factors.causal_operation;
    const Index length = CausalAxis(x.weights.support(), x.span).length();
    const double r = static_cast<double>(x.tokens.r), p = static_cast<double>(x.tokens.p);
    return static_cast<double>(length) * static_cast<double>(Levels::block) / 2 * (r + p + cut_weight_cost) +
           Levels::operations(length) * signals<T>(x.tokens.r, x.tokens.p, left_over) * operation;
  }

  /// For queries in slots 0..n_q-1 and keys in slots 0..n_k-1; its tables lie in the team's workspace.
  BlockCausalEngine(LagWeightsView<T> lags, const ProductShape& span, const Team& team)
      : m_n_q(span.n_q),
        m_num_lags(span.n_q + span.n_k - 1),
        m_axis(lags.support(), span),
        m_levels(lags, m_axis, team),
        m_diagonal(lags, m_axis, team) {}

  /// Y (n_q,p) = ((A B^T) o C) U, rows divided by what their keys' exponents say; sums (n_q), unless null, the same
  /// for a column of ones.
  void contract(const Factors<T>& x, MatrixRef<T> Y, const Team& team, T* sums = nullptr) const {
    if (sums) return contract_with_ones(*this, x, Y, team, sums);
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    const MatrixView<T> A = in_places(x.A, x.queries.slots, m_axis.queries, team),
                        B = in_places(x.B, x.keys.slots, m_axis.keys, team),
                        U = in_places(x.U, x.keys.slots, m_axis.keys, team);
    const RunningKeyMax<T> exponents(x, m_levels, team);
    if (x.queries.slots.count == m_n_q) return contract(A, B, U, exponents, Y, team);
    auto all = workspace.matrix<T>(m_n_q, Y.cols());
    contract(A, B, U, exponents, all, team);
    from_slots(all, x.queries.slots, Y, team);
  }

  /// What the rounding of its transforms leaves in the rows of contract(), each row's of keys before it; sizes (n_k)
  /// are the largest |U_j.| of each key.
  void row_error_bounds(const Factors<T>& x, const T* sizes, RowErrorBounds out, const Team& team) const {
    const Workspace::Scope scope(team.workspace());
    const RunningKeyMax<T> exponents(x, m_levels, team);
    CausalErrorBound<T>(m_levels, exponents, x, sizes, team).rows(out, team);
  }

  /// The same of gradients().
  void gradient_error_bounds(const Factors<T>& x, const GradientScales<T>& of, GradientErrorBounds out,
                             const Team& team) const {
    const Workspace::Scope scope(team.workspace());
    const RunningKeyMax<T> exponents(x, m_levels, team);
    CausalBackwardErrorBound<T>(m_levels, exponents, x, of, team).find(out, m_n_q, team);
  }

  /// Its gradients for G (n_q,p) = dL/dY, and what they are sums of, the exponents taken for constants; out.dc may be
  /// empty. Later rows may change their bits.
  void gradients(const Factors<T>& x, const MatrixView<T>& G_, GradientRefs<T> out, const GradientSizes<T>& sizes,
                 const Team& team) const {
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    const MatrixView<T> A = in_places(x.A, x.queries.slots, m_axis.queries, team),
                        B = in_places(x.B, x.keys.slots, m_axis.keys, team),
                        U = in_places(x.U, x.keys.slots, m_axis.keys, team),
                        G = in_places(G_, x.queries.slots, m_axis.queries, team);
    const RunningKeyMax<T> exponents(x, m_levels, team);
    SlotGradients<T> slots(x, {m_axis.queries.end, m_axis.queries.first}, {m_axis.keys.end, m_axis.keys.first}, out,
                           sizes, team);
    auto unrequested = workspace.template vector<T>(out.dc.size() == 0 ? m_num_lags : 0);
    GradientRefs<T> d = slots.refs(out.dc.size() == 0 ? Eigen::Ref<Vector<T>>(unrequested) : out.dc);
    const GradientSizes<T> of = slots.sizes();
    d.set_zero();
    if (of) {
      std::fill_n(of.keys, m_axis.keys.end, T(0));
      std::fill_n(of.lags, m_num_lags, T(0));
    }
    m_diagonal.add_gradients(A, B, U, G, exponents, d, of, 1 - m_n_q, team);
    if (m_levels.count() > 0) BlockCausalGradients<T>(m_levels).add(A, B, U, G, exponents, d, of, 1 - m_n_q, team);
    slots.put_back(team);
  }

  /// How many of n_k keys are added up in turn at most, each rounding being one of all before.
  Index longest_plain_sum(Index n_k) const { return std::min<Index>(n_k, 512); }

 private:
  using Levels = CausalLevels<T>;
  using Family = typename Levels::Family;
  using Z = fft::ComplexLanes<T>;
  using Lanes = fft::Lanes<T>;
  static constexpr Index W = fft::lane_count<T>;
  using Features = FeatureLanes<T>;
  static constexpr Index features_at_a_time = 16;  // whose columns are laid out

  // each row in its place of the axis
  static MatrixView<T> in_places(const MatrixView<T>& X, const Slots& slots, const CausalAxis::Side& side,
                                 const Team& team) {
    return in_slots(X, slots, side.end, team, side.first);
  }

  void contract(const MatrixView<T>& A, const MatrixView<T>& B, const MatrixView<T>& U,
                const RunningKeyMax<T>& exponents, MatrixRef<T> Y, const Team& team) const {
    m_diagonal.contract(A, B, U, exponents, Y, team);
    if (m_levels.count() == 0) return;
    const Index r = A.cols(), p = U.cols(), n = m_axis.length();
    Workspace& workspace = team.workspace();
    const LevelMaxima<T> sources(B, U, exponents, m_levels, team);
    const FeatureColumns<T> a(workspace, features_at_a_time, n), b(workspace, features_at_a_time, n);
    const ColumnGroups<T> groups(r, p);
    for (Index r0 = 0; r0 < r; r0 += features_at_a_time) {
      const Index features = std::min(features_at_a_time, r - r0);
      team.run_tiles(groups.count > 0 ? n : 0, [&](Index j0, Index rows, Workspace&) {
        for (Index f = 0; f < features; ++f) {
          a.read(f, A, r0 + f, 1, j0, rows);
          b.read(f, B, r0 + f, 1, j0, rows);
        }
      });
      team.run(groups.count + (r0 == 0 ? groups.left_over : 0), [&](Index task, Workspace& scratch) {
        if (task >= groups.count) {
          const Index column = p - groups.left_over + task - groups.count;
          return contract_column(A, B, U, column, exponents, sources, Y, scratch);
        }
        const Index p0 = task * W, width = groups.width(task);
        Panel<T> u(scratch, m_axis.keys.end, n, width), y(scratch, m_axis.queries.end, n, width);
        u.read(U, p0);
        y.set_zero();
        Scratch with(m_levels, scratch);
        m_levels.for_each_family([&](const Family& family) {
          for (Index f = 0; f < features; ++f)
            for_each_run(
                family, [&](Index k) { return sources.feature(family.level, k, r0 + f, p0, width); },
                [&](const Run& run) {
                  with.read(family, run, a[f], b[f], exponents, m_levels, m_axis.queries.end);
                  add(family, run, u.values, y.values, with);
                });
        });
        y.values += m_axis.queries.first;
        y.rows -= m_axis.queries.first;
        y.add_to(Y, p0);
      });
    }
  }

  // targets begin..end-1 of a family, and what their sources are measured in
  struct Run {
    Index begin, end;
    SourceScales<T> scales;
  };

  // use(run): each as long as its scales fit; largest(k) of source block k
  template <class Find, class Use>
  void for_each_run(const Family& family, Find&& largest, Use&& use) const {
    const Index k0 = family.first / m_levels[family.level].size;
    auto maxima = BlockMaxima<T>::none();
    for (Index begin = 0, end; begin < family.count; begin = end) {
      if (begin == 0) maxima.include(largest(k0));
      const SourceScales<T> scales(maxima);
      for (end = begin + 1; end < family.count; ++end) {
        maxima.include(largest(k0 + end));
        if (!scales.fit(maxima)) break;
      }
      use(Run{begin, end, scales});
    }
  }

  // the signals of a family, and its rows of a feature, scaled for a run, those of A twisted
  struct Scratch {
    Scratch(const Levels& levels, Workspace& workspace) {
      const Index n = levels.family_length();
      z = workspace.take<Z>(n + Levels::most * stride(0));
      b = workspace.take<T>(staggered<T>(n));
      a = workspace.take<T>(staggered<T>(2 * n));
    }

    static Index stride(Index size) { return staggered<Z>(size); }

    // later sources than the run's are zeros, other targets than its are left out
    void read(const Family& family, const Run& run, const T* from_a, const T* from_b, const RunningKeyMax<T>& exponents,
              const Levels& levels, Index queries_end) {
      const auto& level = levels[family.level];
      const Index S = level.size, middle = run.end * S;
      const T scale = run.scales.b[0], back = finite(1 / scale);
      for (Index j0 = 0; j0 < middle; j0 += Levels::block) {
        const Index place = family.first + j0;
        const T factor = static_cast<T>(ratio(exponents.largest(place / Levels::block), run.scales.exponent));
        for (Index j = 0; j < Levels::block; ++j)
          b[j0 + j] = from_b[place + j] * back * (exponents.keys()[place + j] * factor);
      }
      std::fill(b + middle, b + family.count * S, T(0));
      const T *rows = exponents.rows(family.level), *twist = level.tree->twist();
      for (Index s = run.begin; s < run.end; ++s) {
        const Index place = family.first + (s + 1) * S, end = std::min(S, queries_end - place);
        const T factor = finite(scale) * static_cast<T>(ratio(run.scales.exponent, exponents.before(place)));
        for (Index i = 0; i < end; ++i) {
          const T value = from_a[place + i] * (factor * rows[place + i]);
          for (const Index part : {0, 1}) a[2 * (s * S + i) + part] = value * twist[2 * i + part];
        }
      }
    }

    Z* z;
    T *b, *a;
  };

  // y += a o T(c) (b o u) through the family's blocks, a twisted
  void add(const Family& family, const Run& run, const Lanes* u, Lanes* y, const Scratch& with) const {
    const auto& level = m_levels[family.level];
    const Index S = level.size, begin = run.begin * S;
    const Index rows = std::min(run.end * S, m_axis.queries.end - family.first - S) - begin;
    const Lanes back = inverse<T>(run.scales.u), forth = finite_lanes<T>(run.scales.u);
    level.tree->template convolve<Levels::most>(
        with.z, Scratch::stride(S), family.count,
        [=, b = with.b, u = u + family.first](Index s, Index j) { return b[s * S + j] * (u[s * S + j] * back); },
        [&](Index k, Z(&z)[Levels::most][8]) { m_levels.multiply(level, k, family.count, z); },
        [=, a = with.a, y = y + family.first + S](Index s, Index i, const Z& t) {
          const Index at = s * S + i;
          if (at - begin < 0 || at - begin >= rows) return;
          y[at] += forth * real_part(t, a + 2 * at);
        });
  }

  // one column of Y, W features at a time
  void contract_column(const MatrixView<T>& A, const MatrixView<T>& B, const MatrixView<T>& U, Index column,
                       const RunningKeyMax<T>& exponents, const LevelMaxima<T>& sources, MatrixRef<T>& Y,
                       Workspace& scratch) const {
    const Index n = m_axis.length();
    auto y = scratch.vector<T>(n), u = scratch.vector<T>(n);
    y.setZero();
    Scratch with(m_levels, scratch);
    for (Index f = 0; f < A.cols(); f += W) {
      const Features a(A, f), b(B, f);
      m_levels.for_each_family([&](const Family& family) {
        for_each_run(
            family, [&](Index k) { return sources.column(family.level, k, b, column); },
            [&](const Run& run) {
              const Index S = m_levels[family.level].size, begin = family.first, end = begin + run.end * S;
              const T back = finite(1 / run.scales.u[0]);
              u.segment(begin, family.count * S).setZero();
              for (Index j = begin; j < std::min(end, m_axis.keys.end); ++j) {
                const double e = ratio(exponents.largest(j / Levels::block), run.scales.exponent);
                u[j] = U(j, column) * back * (exponents.keys()[j] * static_cast<T>(e));
              }
              add_column(family, run, a, b, u.data(), exponents, y.data(), with);
            });
      });
    }
    Y.col(column) += y.segment(m_axis.queries.first, m_n_q);
  }

  void add_column(const Family& family, const Run& run, const Features& a, const Features& b, const T* u,
                  const RunningKeyMax<T>& exponents, T* y, const Scratch& with) const {
    const auto& level = m_levels[family.level];
    const Index S = level.size, begin = run.begin * S;
    const Index rows = std::min(run.end * S, m_axis.queries.end - family.first - S) - begin;
    const Lanes back = inverse<T>(run.scales.b), forth = finite_lanes<T>(run.scales.b);
    T factor[Levels::most];
    for (Index s = run.begin; s < run.end; ++s)
      factor[s] = finite(run.scales.u[0]) *
                  static_cast<T>(ratio(run.scales.exponent, exponents.before(family.first + (s + 1) * S)));
    level.tree->template convolve<Levels::most>(
        with.z, Scratch::stride(S), family.count,
        [&, end = run.end * S, keys_end = m_axis.keys.end](Index s, Index j) {
          const Index at = s * S + j, place = family.first + at;
          return at < end && place < keys_end ? b.row(place) * back * u[place] : Lanes{};
        },
        [&](Index k, Z(&z)[Levels::most][8]) { m_levels.multiply(level, k, family.count, z); },
        [&, row_factors = exponents.rows(family.level)](Index s, Index i, const Z& twisted) {
          const Index at = s * S + i, place = family.first + S + at;
          if (at - begin < 0 || at - begin >= rows) return;
          const Lanes t = real_part(twisted, level.tree->twist() + 2 * i);
          y[place] += factor[s] * row_factors[place] * fft::sum_lanes<T>(a.row(place) * forth * t);
        });
  }

  Index m_n_q, m_num_lags;
  CausalAxis m_axis;
  CausalLevels<T> m_levels;
  DiagonalBlocks<T> m_diagonal;
};

}  // namespace nprf::toeplitz
