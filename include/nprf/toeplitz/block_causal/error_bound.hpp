// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <new>

#include "nprf/core/shapes.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/block_causal/levels.hpp"
#include "nprf/toeplitz/block_causal/running_key_max.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/fft/error_bound.hpp"

namespace nprf::toeplitz {

/// The norms of the signals of each block of a level, relative to e^log_scale of the block.
struct BlockNorms {
  /// For all levels and r features, of no signal yet.
  template <Real T>
  static BlockNorms* of_levels(const CausalLevels<T>& levels, Index r, Workspace& workspace) {
    auto* all = workspace.take<BlockNorms>(levels.count());
    for (Index level = 0; level < levels.count(); ++level) {
      const Index count = (levels.axis().length() + levels[level].size - 1) / levels[level].size;
      all[level] = {count, workspace.take<double>(count), workspace.take<SignalNorms>(count)};
      for (Index k = 0; k < count; ++k) new (all[level].norms + k) SignalNorms(r, workspace);
    }
    return all;
  }

  /// Adds to block k of the first level the rows of X (n,r) whose places are in it, each times the factor of its place,
  /// with its size. Slot s has place first + s. O(128 r).
  template <Real T>
  void measure(Index k, const MatrixView<T>& X, const Slots& slots, Index first, const T* factors,
               const T* sizes) const {
    constexpr Index block = CausalLevels<T>::block;
    norms[k].add(
        X, slots.below(k * block - first), slots.below((k + 1) * block - first),
        [=, &slots](Index j) { return static_cast<double>(factors[first + slots[j]]); },
        [=](Index j) { return static_cast<double>(sizes[j]); });
  }

  Index count;
  double* log_scales;
  SignalNorms* norms;
};

/// The error bound of the block-causal engine (fft/error_bound.hpp): the sum over the levels of that of the sources
/// before the block of a row in their group,
///
///     bound_i = eps sum_r |A_ir| sum_s (sqrt(log2 N / N) (|g_s|_2 |x_sr|_2 + |T(g_s) x_sr|_2) + 3/2 |T(g_s) x_sr|_max)
///
/// with the weights g_s from source s to the block of the row, and the bound of the underflow. No later key is in it.
/// O(n r) time and O(n r / 128) memory a level.
template <Real T>
class BlockCausalErrorBound {
 public:
  /// For keys whose largest |U_j.| are sizes (n_k).
  BlockCausalErrorBound(const CausalLevels<T>& levels, const RunningKeyMax<T>& key_max, const Factors<T>& x,
                        const T* sizes, const Team& team)
      : m_levels(levels),
        m_key_max(key_max),
        m_x(x),
        m_blocks(BlockNorms::of_levels(levels, x.B.cols(), team.workspace())) {
    for (Index level = 0; level < levels.count(); ++level) {
      const BlockNorms& of = m_blocks[level];
      team.run(of.count, [&](Index k, Workspace&) {
        if (level == 0) {
          of.log_scales[k] = key_max.largest(k);
          of.measure(k, x.B, x.keys.slots, levels.axis().keys.first, key_max.keys(), sizes);
        } else {
          for_each(m_blocks[level - 1], k * levels[level - 1].group, levels[level - 1].group, of.log_scales[k],
                   [&](const SignalNorms& norms, double factor, Index) { of.norms[k].add(norms, factor); });
        }
      });
    }
  }

  /// Into out (n_q).
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

  // calls use(norms, factor, block) for up to `count` blocks from the first on; sets the largest log-scale, which the
  // factors are relative to
  template <class Use>
  static void for_each(const BlockNorms& blocks, Index first, Index count, double& log_scale, Use&& use) {
    const Index end = std::min(first + count, blocks.count);
    log_scale = *std::max_element(blocks.log_scales + first, blocks.log_scales + end);
    for (Index k = first; k < end; ++k) use(blocks.norms[k], ratio(blocks.log_scales[k], log_scale), k);
  }

  // adds the share of a level to the queries i0..end-1, which are in the block of 128 at a place
  void add(Index of, Index place, Index i0, Index end, RowErrorBounds out, Workspace& scratch) const {
    const auto& level = m_levels[of];
    const Index target = place / level.size, first = target / level.group * level.group, r = m_x.B.cols();
    if (target == first) return;
    SignalNorms::Row largest = SignalNorms::row(r, scratch), Y = SignalNorms::row(r, scratch),
                     sums = SignalNorms::row(r, scratch);
    double log_scale, value = 0;
    for_each(m_blocks[of], first, target - first, log_scale,
             [&](const SignalNorms& norms, double factor, Index source) {
               largest = largest.max(factor * norms.largest());
               value = std::max(value, norms.largest_size());
               if (target - source > level.offsets) return;
               norms.add_sized(level.norms[target - source - 1], 2 * level.size, factor, Y);
               norms.add_ones(level.norms[target - source - 1], 2 * level.size, factor, sums);
             });
    if (!(Y.maxCoeff() > 0)) value = 0;
    const double sources = static_cast<double>(std::min(target - first, level.offsets)),
                 of_signals = sources * Underflow<T>::of_signals(2 * level.size), of_row = Underflow<T>::of_row(r);
    Y += of_signals * value * largest;
    sums += of_signals * largest;
    const double factor = ratio(log_scale, m_key_max.before(target * level.size));
    for (Index i = i0; i < end; ++i) {
      const Index at = m_levels.axis().queries.first + m_x.queries.slots[i];
      const double row = factor * static_cast<double>(m_key_max.rows(of)[at]);
      out.Y[i] += row * row_error_bound<T>(m_x.A.row(i), Y, out.by_norms) + value * of_row;
      out.sums[i] += row * row_error_bound<T>(m_x.A.row(i), sums, out.by_norms) + of_row;
    }
  }

  const CausalLevels<T>& m_levels;
  const RunningKeyMax<T>& m_key_max;
  const Factors<T>& m_x;
  BlockNorms* m_blocks;  // (levels)  of the rows of B
};

}  // namespace nprf::toeplitz
