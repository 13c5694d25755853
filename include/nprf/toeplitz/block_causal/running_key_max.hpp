// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/block_causal/levels.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf::toeplitz {

/// e^(log_scale - reference), 1 if both are -infinity.
inline double ratio(double log_scale, double reference) {
  return log_scale == reference ? 1 : std::exp(log_scale - reference);
}

/// The log-scales e_j of keys and M_i of rows (factors.hpp) by place (levels.hpp), as factors that cannot overflow and
/// that no later key changes. The factor of a key is e^(e_j - m), with m the largest log-scale in its block of 128. The
/// factor of a row is e^(m - M_i), with m the largest log-scale before its block of a level. Without log-scales all
/// factors are 1. O(n) time and memory for each level.
template <Real T>
class RunningKeyMax {
 public:
  RunningKeyMax(const Factors<T>& x, const CausalLevels<T>& levels, const Team& team)
      : m_given(x.key_log_scales != nullptr), m_levels(levels.count()), m_length(levels.axis().length()) {
    const auto& axis = levels.axis();
    Workspace& workspace = team.workspace();
    const Index n = m_length, blocks = (n + block - 1) / block;
    m_largest = workspace.take<double>(2 * blocks);
    m_before = m_largest + blocks;
    m_keys = workspace.take<T>(n);
    if (!m_given) {
      std::fill_n(m_largest, 2 * blocks, 0.0);
      std::fill_n(m_keys, n, T(1));
      return;
    }
    constexpr double none = -std::numeric_limits<double>::infinity();
    m_log_scales = workspace.take<double>(n);
    std::fill_n(m_log_scales, n, none);
    for (Index j = 0; j < x.keys.slots.count; ++j)
      m_log_scales[axis.keys.first + x.keys.slots[j]] = x.key_log_scales[j];
    m_rows = workspace.take<T>(m_levels * n);
    team.run(blocks, [&](Index k, Workspace&) {
      const Index first = k * block, end = std::min(first + block, n);
      m_largest[k] = *std::max_element(m_log_scales + first, m_log_scales + end);
      for (Index j = first; j < end; ++j) m_keys[j] = static_cast<T>(ratio(m_log_scales[j], m_largest[k]));
    });
    double largest = none;
    for (Index k = 0; k < blocks; ++k) {
      m_before[k] = largest;
      largest = std::max(largest, m_largest[k]);
    }
    team.run(m_levels * blocks, [&](Index task, Workspace&) {
      const Index level = task / blocks, first = task % blocks * block, size = levels[level].size;
      double running = before(first);
      for (Index i = first; i < std::min(first + block, n); ++i) {
        running = std::max(running, m_log_scales[i]);
        m_rows[level * n + i] = static_cast<T>(ratio(before(i / size * size), running));
      }
    });
  }

  /// The log-scales by place; null if there are none.
  const double* log_scales() const { return m_log_scales; }

  /// largest: the largest log-scale in the k-th block of 128. before: the largest log-scale before the block of 128
  /// that has the given place.
  double largest(Index k) const { return m_largest[k]; }
  double before(Index place) const { return m_before[place / block]; }
  /// The largest log-scale in the `count` places from `place` on, which must be whole blocks of 128; places after the
  /// last count as -infinity.
  double largest(Index place, Index count) const {
    const Index blocks = m_before - m_largest;
    return *std::max_element(m_largest + place / block, m_largest + std::min((place + count) / block, blocks));
  }

  /// e^(e_j - largest(block of j)), by place.
  const T* keys() const { return m_keys; }
  /// e^(before(block of i in the level) - M_i), by place.
  const T* rows(Index level) const { return m_given ? m_rows + level * m_length : m_keys; }

 private:
  static constexpr Index block = CausalLevels<T>::block;

  bool m_given;
  Index m_levels, m_length;
  double *m_log_scales = nullptr, *m_largest, *m_before;
  T *m_keys, *m_rows = nullptr;
};

}  // namespace nprf::toeplitz
