// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "nprf/attention/segments.hpp"
#include "nprf/attention/weights/head_weights.hpp"

namespace nprf {

/// The weights of one position for each of the packed sequences; sequences of one size share them.
template <Real T>
class SegmentWeights {
 public:
  /// As HeadWeights: tables lie in the team's workspace. O(s log s) for s sequences, besides one HeadWeights a size.
  void build(const PositionView<T>& position, const AttentionOptions& options, std::span<const Segment> segments,
             Index r, Index p, Index offset, Pass pass, const Team& team, double most_deviation = 0) {
    clear();
    const auto size = [&](std::size_t s) { return std::pair(segments[s].n_q, segments[s].n_k); };
    m_by_size.resize(segments.size());
    std::iota(m_by_size.begin(), m_by_size.end(), std::size_t{0});
    std::ranges::sort(m_by_size, {}, size);
    std::size_t sizes = 0;
    for (std::size_t at = 0; at < m_by_size.size(); ++at)
      sizes += at == 0 || size(m_by_size[at]) != size(m_by_size[at - 1]);
    m_weights.reserve(sizes);
    m_of.resize(segments.size());
    for (std::size_t at = 0; at < m_by_size.size(); ++at) {
      const std::size_t s = m_by_size[at];
      if (at == 0 || size(s) != size(m_by_size[at - 1]))
        m_weights.emplace_back(position, options, ProductShape{segments[s].n_q, segments[s].n_k, r, p}, offset, pass,
                               team, most_deviation);
      m_of[s] = m_weights.size() - 1;
    }
  }

  /// Lets go of the position and of the tables; keeps its own memory.
  void clear() {
    m_weights.clear();
    m_of.clear();
  }

  const HeadWeights<T>& operator[](std::size_t segment) const { return m_weights[m_of[segment]]; }

  /// The lags that any of them has a gradient for.
  LagRange gradient_lags() const {
    LagRange all{0, -1};
    for (const HeadWeights<T>& weights : m_weights) {
      const LagRange lags = weights.gradient_lags();
      if (lags.size() == 0) continue;
      all = all.size() == 0 ? lags : LagRange{std::min(all.first, lags.first), std::max(all.last, lags.last)};
    }
    return all;
  }

 private:
  std::vector<HeadWeights<T>> m_weights;
  std::vector<std::size_t> m_of, m_by_size;
};

}  // namespace nprf
