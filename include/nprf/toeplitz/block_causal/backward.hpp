// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/fft/lanes.hpp"
#include "nprf/toeplitz/block_causal/levels.hpp"
#include "nprf/toeplitz/block_causal/running_key_max.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/fft/backward.hpp"
#include "nprf/toeplitz/fft/signal_layout.hpp"
#include "nprf/toeplitz/fft/spectral_ops.hpp"

namespace nprf::toeplitz {

/// What the blocks below the diagonal add to the gradients of BlockCausalEngine's product.
template <Real T>
class BlockCausalBackward {
 public:
  explicit BlockCausalBackward(const CausalLevels<T>& levels) : m_levels(levels) {}

  /// Adds the gradients for G = dL/dY and the sums of `sizes`. The factors, G, the gradients and the sizes have one row
  /// for each place; `first` is the lag of dc[0] and of sizes.lags[0].
  void add(const Factors<T>& x, const MatrixView<T>& G, const RunningKeyMax<T>& key_max, GradientRefs<T> out,
           const GradientSizes<T>& sizes, Index first, const Team& team) const {
    SignalBackward<T> backward(x, G, sizes, m_levels.axis().length(), m_levels.numbers(), team);
    const auto for_ranges = [&](Workspace& scratch, auto&& add_range) {
      Scratch with(m_levels, scratch);
      m_levels.for_each_group([&](const BlockGroup& group) {
        for_each_range(group, key_max, [&](const Range& range) {
          with.read(group, range, key_max, m_levels, m_levels.axis().queries.end);
          add_range(group, with);
        });
      });
    };
    backward.run(
        out, team,
        [&](const GroupSignals<T>& signals, Workspace& scratch) {
          for_ranges(scratch, [&](const BlockGroup& group, Scratch& with) {
            with.read(group, signals, m_levels[group.level].size);
            add_gradients(group, signals, with);
          });
        },
        [&](const ColumnSignals<T>& signals, Workspace& scratch) {
          for_ranges(scratch,
                     [&](const BlockGroup& group, const Scratch& with) { add_gradients(group, signals, with); });
        });
    m_levels.add_lag_gradient(backward.correlation(), first, out.dc.data(), team.workspace());
    if (sizes) m_levels.add_lag_gradient(backward.size_correlation(), first, sizes.lags, team.workspace());
  }

 private:
  using Levels = CausalLevels<T>;
  using BlockGroup = typename Levels::BlockGroup;
  using Z = fft::ComplexLanes<T>;
  using Lanes = fft::Lanes<T>;

  // Targets begin..end-1 of a group. No log-scale of their sources exceeds `log_scale` so far that factors could
  // overflow
  struct Range {
    Index begin, end;
    double log_scale;
  };

  template <class Use>
  void for_each_range(const BlockGroup& group, const RunningKeyMax<T>& key_max, Use&& use) const {
    constexpr double most = sizeof(T) == 4 ? 14 : 110;  // e^(2 most), and more, is far from overflow
    const Index S = m_levels[group.level].size;
    const auto before = [&](Index s) { return key_max.largest(group.first + s * S, S); };
    double largest = before(0);
    for (Index begin = 0, end; begin < group.count; begin = end) {
      const double reference = largest;
      for (end = begin + 1; end < group.count; ++end) {
        largest = std::max(largest, before(end));
        if (largest != reference && !(largest - reference <= most)) break;
      }
      use(Range{begin, end, reference});
    }
  }

  // z: the signals of a group. rows, keys: the factors of its targets and of its sources that come from the log-scales.
  // a, b: a feature's entries of A and B times these factors
  struct Scratch {
    Scratch(const Levels& levels, Workspace& workspace) {
      const Index n = levels.group_length();
      z = workspace.take<Z>(2 * (n + Levels::most * stride(0)));
      for (T** x : {&a, &b, &rows, &keys}) *x = workspace.take<T>(staggered<T>(n));
    }

    // the factors of sources after the range and of targets outside the range are 0
    void read(const BlockGroup& group, const Range& range, const RunningKeyMax<T>& key_max, const Levels& levels,
              Index queries_end) {
      const Index S = levels[group.level].size;
      for (Index s = 0; s < group.count; ++s) {
        const Index target = group.first + (s + 1) * S, end = std::min(S, queries_end - target);
        const T factor =
            range.begin <= s && s < range.end ? static_cast<T>(ratio(range.log_scale, key_max.before(target))) : T(0);
        for (Index i = 0; i < end; ++i) rows[s * S + i] = factor * key_max.rows(group.level)[target + i];
        std::fill(rows + s * S + end, rows + (s + 1) * S, T(0));
        for (Index j0 = s * S; j0 < (s + 1) * S; j0 += Levels::block) {
          const Index place = group.first + j0;
          const T e =
              s < range.end ? static_cast<T>(ratio(key_max.largest(place / Levels::block), range.log_scale)) : T(0);
          for (Index j = 0; j < Levels::block; ++j) keys[j0 + j] = key_max.keys()[place + j] * e;
        }
      }
      targets = std::min(group.count * S, queries_end - group.first - S);
    }
    void read(const BlockGroup& group, const GroupSignals<T>& x, Index S) {
      const T *from_a = x.a + group.first + S, *from_b = x.b + group.first;
      for (Index i = 0; i < targets; ++i) a[i] = from_a[i] * rows[i];
      for (Index j = 0; j < group.count * S; ++j) b[j] = from_b[j] * keys[j];
    }

    Z* z;
    T *a, *b, *rows, *keys;
    Index targets = 0;  // the number of places of targets
  };

  // adds the gradients' terms of a group, a feature and columns as lanes. The first `count` signals are x of the
  // sources, the others are w of the targets
  void add_gradients(const BlockGroup& group, const GroupSignals<T>& x, const Scratch& with) const {
    const auto& level = m_levels[group.level];
    const Index S = level.size, count = group.count, targets = with.targets;
    const Lanes *u = x.u + group.first, *g = x.g + group.first + S;
    Lanes* du = x.du + group.first;
    level.tree->template convolve<2 * Levels::most>(
        with.z, stride(S), 2 * count,
        [=, a = with.a, b = with.b](Index s, Index j) {
          const Index at = (s < count ? s : s - count) * S + j;
          if (s >= count && at >= targets) return Lanes{};
          return s < count ? b[at] * u[at] : a[at] * g[at];
        },
        at_leaf(level, count, x.correlation),
        [=, &with, twist = level.tree->twist()](Index s, Index j, const Z(&twisted)[8]) {
          const bool source = s >= count;
          const Index first = (source ? s - count : s) * S + j;
          if (!source && first >= targets) return;
          Lanes products[8];
          for (Index l = 0; l < 8; ++l) {
            const Index at = first + l;
            products[l] = Lanes{};
            if (!source && at >= targets) continue;
            const Lanes t = real_part(twisted[l], twist + 2 * (j + l));
            products[l] = (source ? u : g)[at] * t * (source ? with.keys : with.rows)[at];
            if (source) du[at] += with.b[at] * t;
          }
          add_lane_sums_of_eight<T>(products, (source ? x.db : x.da + S) + group.first + first);
        });
  }

  // adds the gradients' terms of a group and one column, with features as lanes
  void add_gradients(const BlockGroup& group, const ColumnSignals<T>& x, const Scratch& with) const {
    const auto& level = m_levels[group.level];
    const Index S = level.size, count = group.count;
    const Index sources = std::min(count * S, m_levels.axis().keys.end - group.first);
    // the rows that signal s is made of, or that its result belongs to: those from `first` on, and before `end`. Both
    // are counted from the place `place`
    struct Part {
      bool target;
      Index first, end, place;
    };
    const auto part = [=, targets = with.targets, from = group.first](bool target, Index s) {
      return target ? Part{true, s * S, targets, from + S} : Part{false, s * S, sources, from};
    };
    level.tree->template convolve<2 * Levels::most>(
        with.z, stride(S), 2 * count,
        [&](Index s, Index j) {
          const Part of = part(s >= count, s % count);
          const Index at = of.first + j, place = of.place + at;
          if (at >= of.end) return Lanes{};
          return (of.target ? x.a : x.b).row(place) * (of.target ? with.rows : with.keys)[at] *
                 (of.target ? x.g : x.u)[place];
        },
        at_leaf(level, count, x.correlation),
        [&, twist = level.tree->twist()](Index s, Index j, const Z(&twisted)[8]) {
          const Part of = part(s < count, s % count);
          Lanes products[8]{};
          for (Index at = of.first + j; at < std::min(of.first + j + 8, of.end); ++at) {
            const Index l = at - of.first - j, place = of.place + at;
            const T factor = (of.target ? with.rows : with.keys)[at];
            const Lanes t = real_part(twisted[l], twist + 2 * (j + l));
            if (MatrixRef<T>* d = of.target ? x.da : x.db)
              x.a.add(t * (of.target ? x.g : x.u)[place] * factor, *d, place);
            if (!of.target) products[l] = x.b.row(place) * factor * t;
          }
          if (!of.target) add_lane_sums_of_eight<T>(products, x.du + of.place + of.first + j);
        });
  }

  auto at_leaf(const typename Levels::Level& level, Index count, T* correlation) const {
    return [this, &level, count, correlation](Index k, Z(&z)[2 * Levels::most][8]) {
      m_levels.correlate(level, k, count, z, z + count, correlation);
      m_levels.multiply(level, k, count, z);
      m_levels.multiply_transposed(level, k, count, z + count);
    };
  }

  static Index stride(Index size) { return staggered<Z>(size); }

  const Levels& m_levels;
};

}  // namespace nprf::toeplitz
