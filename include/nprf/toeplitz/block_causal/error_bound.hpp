// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>

#include "nprf/core/rows.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/block_causal/levels.hpp"
#include "nprf/toeplitz/block_causal/running_key_max.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/fft/error_bound.hpp"

namespace nprf::toeplitz {

/// The norms of the signals of all blocks of all levels, of one side of a product. Those of block k of a level are
/// relative to e^log_scales[k]. O(n r) time and O(n r / 128) memory for each level.
template <Real T>
class LevelNorms {
 public:
  /// sources: the rows of B, where the log-scale of a block is the largest of its keys. targets: the rows of A, which
  /// are multiplied by e^-M_i (factors.hpp), where that of a block is the largest of the keys before it.
  enum class Side { sources, targets };

  struct Blocks {
    Index count;
    double* log_scales;
    SignalNorms* norms;
  };

  /// `sizes` has the size of each row.
  LevelNorms(Side side, const CausalLevels<T>& levels, const RunningKeyMax<T>& key_max, const Factors<T>& x,
             const T* sizes, const Team& team)
      : m_levels(team.workspace().template take<Blocks>(levels.count())) {
    const bool targets = side == Side::targets;
    const MatrixView<T>& X = targets ? x.A : x.B;
    const Slots& slots = (targets ? x.queries : x.keys).slots;
    const Index first = (targets ? levels.axis().queries : levels.axis().keys).first;
    const T* factors = (targets ? key_max.rows(0) : key_max.keys()) + first;
    Workspace& workspace = team.workspace();
    for (Index level = 0; level < levels.count(); ++level) {
      const Index size = levels[level].size, count = (levels.axis().length() + size - 1) / size;
      const Blocks& of = m_levels[level] = {count, workspace.take<double>(count), workspace.take<SignalNorms>(count)};
      for (Index k = 0; k < count; ++k) new (of.norms + k) SignalNorms(X.cols(), workspace);
      team.run(count, [&](Index k, Workspace&) {
        of.log_scales[k] = targets ? key_max.before(k * size) : key_max.largest(k * size, size);
        if (level == 0)
          return of.norms[k].add(
              X, slots.below(k * size - first), slots.below((k + 1) * size - first),
              [&](Index j) { return static_cast<double>(factors[slots[j]]); },
              [&](Index j) { return static_cast<double>(sizes[j]); });
        const Blocks& finer = m_levels[level - 1];
        const Index group = levels[level - 1].group;
        for (Index fine = k * group; fine < std::min((k + 1) * group, finer.count); ++fine)
          of.norms[k].add(finer.norms[fine], targets ? ratio(of.log_scales[k], finer.log_scales[fine])
                                                     : ratio(finer.log_scales[fine], of.log_scales[k]));
      });
    }
  }

  const Blocks& operator[](Index level) const { return m_levels[level]; }

 private:
  Blocks* m_levels;
};

/// The error bound of the block-causal engine (fft/error_bound.hpp). At each level, the block of row i gets the
/// products of the sources s before it in its group, with the bound
///
///     bound_i = eps sum_r |A_ir| sum_s (sqrt(log2 N / N) (|g_s|_2 |x_sr|_2 + |T(g_s) x_sr|_2) + 3/2 |T(g_s) x_sr|_max)
///
/// for the weights g_s from source s to the block of the row, the signal x_sr of source s and feature r, and N twice
/// the size of a block. The bounds of all levels are added, and a bound of the underflow. The sum does not depend on
/// later keys.
template <Real T>
class BlockCausalErrorBound {
 public:
  /// sizes[j] (n_k) is the largest |U_jp| of key j.
  BlockCausalErrorBound(const CausalLevels<T>& levels, const RunningKeyMax<T>& key_max, const Factors<T>& x,
                        const T* sizes, const Team& team)
      : m_levels(levels),
        m_key_max(key_max),
        m_x(x),
        m_sources(LevelNorms<T>::Side::sources, levels, key_max, x, sizes, team) {}

  /// Writes the bounds of all rows to out (n_q).
  void rows(RowErrorBounds out, const Team& team) const {
    const auto& side = m_levels.axis().queries;
    team.run((side.end + block - 1) / block, [&](Index tile, Workspace& scratch) {
      const Index place = tile * block, i0 = m_x.queries.slots.below(place - side.first),
                  end = m_x.queries.slots.below(place + block - side.first);
      std::fill(out.Y + i0, out.Y + end, 0.0);
      std::fill(out.sums + i0, out.sums + end, 0.0);
      for (Index level = 0; level < m_levels.count(); ++level) add(level, place, i0, end, out, scratch);
    });
  }

 private:
  static constexpr Index block = CausalLevels<T>::block;

  // adds the bounds of level `of` to those of queries i0..end-1, which are in the block of 128 that begins at `place`
  void add(Index of, Index place, Index i0, Index end, RowErrorBounds out, Workspace& scratch) const {
    const auto& level = m_levels[of];
    const Index target = place / level.size, first = target / level.group * level.group, r = m_x.B.cols();
    if (target == first) return;
    SignalNorms::Row largest = SignalNorms::row(r, scratch), Y = SignalNorms::row(r, scratch),
                     sums = SignalNorms::row(r, scratch);
    const auto& blocks = m_sources[of];
    const double log_scale = *std::max_element(blocks.log_scales + first, blocks.log_scales + target);
    double value = 0;
    for (Index source = first; source < target; ++source) {
      const SignalNorms& norms = blocks.norms[source];
      const double factor = ratio(blocks.log_scales[source], log_scale);
      for (Index k = 0; k < r; ++k) largest[k] = std::max(largest[k], factor * norms.largest(k));
      value = std::max(value, norms.largest_size());
      if (target - source > level.offsets) continue;
      norms.add_sized(level.norms[target - source - 1], 2 * level.size, factor, Y);
      norms.add_ones(level.norms[target - source - 1], 2 * level.size, factor, sums);
    }
    if (std::none_of(Y.data(), Y.data() + r, [](double size) { return size > 0; })) value = 0;
    const double sources = static_cast<double>(std::min(target - first, level.offsets)),
                 of_signals = sources * Underflow<T>::of_signals(2 * level.size), of_row = Underflow<T>::of_row(r);
    for (Index k = 0; k < r; ++k) {
      Y[k] += of_signals * value * largest[k];
      sums[k] += of_signals * largest[k];
    }
    const double factor = ratio(log_scale, m_key_max.before(target * level.size));
    for (Index i = i0; i < end; ++i) {
      const Index at = m_levels.axis().queries.first + m_x.queries.slots[i];
      const double row = factor * static_cast<double>(m_key_max.rows(of)[at]);
      out.Y[i] += row * row_error_bound(row_of(m_x.A, i), Y, out.by_norms) + value * of_row;
      out.sums[i] += row * row_error_bound(row_of(m_x.A, i), sums, out.by_norms) + of_row;
    }
  }

  const CausalLevels<T>& m_levels;
  const RunningKeyMax<T>& m_key_max;
  const Factors<T>& m_x;
  LevelNorms<T> m_sources;
};

/// The error bound of the gradients of the block-causal engine (fft/error_bound.hpp). The bound of a key is the sum
/// over the levels of the bounds for the targets after the key's block in its group. The bound of a lag is the sum over
/// the levels of the bounds for the pairs of blocks at whose offset the lag occurs.
template <Real T>
class BlockCausalBackwardErrorBound {
 public:
  BlockCausalBackwardErrorBound(const CausalLevels<T>& levels, const RunningKeyMax<T>& key_max, const Factors<T>& x,
                                const GradientScales<T>& of, const Team& team)
      : m_levels(levels),
        m_key_max(key_max),
        m_x(x),
        m_lag_sums(of.lags),
        m_w(LevelNorms<T>::Side::targets, levels, key_max, x, of.sizes, team),
        m_b(LevelNorms<T>::Side::sources, levels, key_max, x, of.values, team) {}

  /// Writes the bounds to out. The bound of lag l is at index l + n_q - 1.
  void find(GradientErrorBounds out, Index n_q, const Team& team) const {
    const auto& side = m_levels.axis().keys;
    std::fill_n(out.keys, m_x.B.rows(), 0.0);
    std::fill_n(out.key_sizes, m_x.B.rows(), 0.0);
    team.run((side.end + block - 1) / block, [&](Index tile, Workspace& scratch) {
      const Index place = tile * block;
      for (Index level = 0; level < m_levels.count(); ++level) add_keys(level, place, out, scratch);
    });
    std::fill_n(out.lags, out.num_lags, 0.0);
    std::fill_n(out.lag_sizes, out.num_lags, 0.0);
    for (Index level = 0; level < m_levels.count() && out.num_lags > 0; ++level) add_lags(level, out, n_q);
  }

 private:
  static constexpr Index block = CausalLevels<T>::block;

  // adds the bounds of level `of` to those of the keys in the block of 128 that begins at `place`
  void add_keys(Index of, Index place, GradientErrorBounds out, Workspace& scratch) const {
    const auto& level = m_levels[of];
    const Index source = place / level.size, r = m_x.B.cols(), first = m_levels.axis().keys.first;
    const Index end = std::min({(source / level.group + 1) * level.group, source + 1 + level.offsets, m_w[of].count});
    if (source + 1 >= end) return;
    SignalNorms::Row ones = SignalNorms::row(r, scratch), sized = SignalNorms::row(r, scratch);
    for (Index target = source + 1; target < end; ++target) {
      const auto& c = level.norms[target - source - 1];
      const double factor = ratio(m_key_max.largest(place / block), m_w[of].log_scales[target]);
      m_w[of].norms[target].add_ones(c, 2 * level.size, factor, ones);
      m_w[of].norms[target].add_sized(c, 2 * level.size, factor, sized);
    }
    const Index j_end = m_x.keys.slots.below(place + block - first);
    for (Index j = m_x.keys.slots.below(place - first); j < j_end; ++j) {
      const double factor = static_cast<double>(m_key_max.keys()[first + m_x.keys.slots[j]]);
      out.keys[j] += factor * row_error_bound(row_of(m_x.B, j), ones, out.by_norms);
      out.key_sizes[j] += factor * row_error_bound(row_of(m_x.B, j), sized, out.by_norms);
    }
  }

  // adds the bounds of level `of` to those of the lags that occur at its offsets
  void add_lags(Index of, GradientErrorBounds out, Index n_q) const {
    const auto& level = m_levels[of];
    const auto& axis = m_levels.axis();
    const double eps = static_cast<double>(std::numeric_limits<T>::epsilon());
    for (Index D = 1; D <= level.offsets; ++D) {
      double ones = 0, sized = 0;
      for (Index source = 0; source + D < m_w[of].count; ++source) {
        const Index target = source + D;
        if (source / level.group != target / level.group) continue;
        const double factor = ratio(m_b[of].log_scales[source], m_w[of].log_scales[target]);
        if (factor == 0) continue;
        ones += factor * m_w[of].norms[target].correlate_ones(m_b[of].norms[source], 2 * level.size);
        sized += factor * m_w[of].norms[target].correlate_sized(m_b[of].norms[source], 2 * level.size);
      }
      const Index end = std::min((D + 1) * level.size, axis.lags.size()), begin = (D - 1) * level.size + 1;
      if (begin >= end) continue;
      const Index first = axis.lags.last - (end - 1) + n_q - 1, count = end - begin;
      const double images = images_of(m_lag_sums + first, count);
      for (Index at = first; at < first + count; ++at) {
        out.lags[at] += eps * (column_error_factor(m_x.U.cols()) * ones + 2 * images);
        out.lag_sizes[at] += eps * (sized + images);
      }
    }
  }

  const CausalLevels<T>& m_levels;
  const RunningKeyMax<T>& m_key_max;
  const Factors<T>& m_x;
  const T* m_lag_sums;
  LevelNorms<T> m_w, m_b;  // of targets, of sources
};

}  // namespace nprf::toeplitz
