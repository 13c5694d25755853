// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/block_causal/error_bound.hpp"
#include "nprf/toeplitz/block_causal/levels.hpp"
#include "nprf/toeplitz/block_causal/running_key_max.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/fft/backward_error_bound.hpp"
#include "nprf/toeplitz/fft/error_bound.hpp"

namespace nprf::toeplitz {

/// The error bound of the gradients of the block-causal engine (fft/backward_error_bound.hpp): for a key the sum over
/// the levels of that of the targets after its block in their group, and for a lag that of the pairs of blocks at its
/// offsets. O(n r) time and O(n r / 128) memory a level.
template <Real T>
class BlockCausalBackwardErrorBound {
 public:
  BlockCausalBackwardErrorBound(const CausalLevels<T>& levels, const RunningKeyMax<T>& key_max, const Factors<T>& x,
                                const GradientScales<T>& of, const Team& team)
      : m_levels(levels),
        m_key_max(key_max),
        m_x(x),
        m_lag_sums(of.lags),
        m_w(BlockNorms::of_levels(levels, x.A.cols(), team.workspace())),
        m_b(BlockNorms::of_levels(levels, x.B.cols(), team.workspace())) {
    for (Index level = 0; level < levels.count(); ++level) {
      team.run(m_w[level].count, [&](Index k, Workspace&) {
        if (level == 0) {
          m_w[0].log_scales[k] = key_max.before(k * block);
          m_w[0].measure(k, x.A, x.queries.slots, levels.axis().queries.first, key_max.rows(0), of.sizes);
          m_b[0].log_scales[k] = key_max.largest(k);
          m_b[0].measure(k, x.B, x.keys.slots, levels.axis().keys.first, key_max.keys(), of.values);
        } else {
          merge(level, k);
        }
      });
    }
  }

  /// Writes the bounds to out, that of lag l at l + n_q - 1.
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

  void merge(Index level, Index k) const {
    const Index group = m_levels[level - 1].group, first = k * group;
    const BlockNorms &w = m_w[level - 1], &b = m_b[level - 1];
    const Index end = std::min(first + group, w.count);
    m_w[level].log_scales[k] = m_key_max.before(k * m_levels[level].size);
    m_b[level].log_scales[k] = *std::max_element(b.log_scales + first, b.log_scales + end);
    for (Index fine = first; fine < end; ++fine) {
      m_w[level].norms[k].add(w.norms[fine], ratio(m_w[level].log_scales[k], w.log_scales[fine]));
      m_b[level].norms[k].add(b.norms[fine], ratio(b.log_scales[fine], m_b[level].log_scales[k]));
    }
  }

  // adds the share of a level to the keys of the block of 128 at a place
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
      out.keys[j] += factor * row_error_bound<T>(m_x.B.row(j), ones, out.by_norms);
      out.key_sizes[j] += factor * row_error_bound<T>(m_x.B.row(j), sized, out.by_norms);
    }
  }

  // adds the share of a level to the lags at its offsets
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
  BlockNorms *m_w, *m_b;  // (levels)  of targets, times e^(before(block) - M_i), and of sources
};

}  // namespace nprf::toeplitz
