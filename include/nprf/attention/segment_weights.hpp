// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "nprf/attention/head_weights.hpp"
#include "nprf/attention/segments.hpp"

namespace nprf {

/// The weights of one position for each of the packed sequences; sequences of one size share them.
template <Real T>
class SegmentWeights {
 public:
  /// As HeadWeights: tables lie in the team's workspace.
  void build(const PositionView<T>& position, const AttentionOptions& options, std::span<const Segment> segments,
             Index r, Index p, Index offset, Pass pass, const Team& team, double most_deviation = 0) {
    clear();
    m_weights.reserve(segments.size());
    m_of.reserve(segments.size());
    for (std::size_t s = 0; s < segments.size(); ++s) {
      const auto same = [&](const Segment& other) {
        return other.n_q == segments[s].n_q && other.n_k == segments[s].n_k;
      };
      const auto first = static_cast<std::size_t>(std::ranges::find_if(segments, same) - segments.begin());
      if (first < s) {
        m_of.push_back(m_of[first]);
      } else {
        m_of.push_back(m_weights.size());
        m_weights.emplace_back(position, options, ProductShape{segments[s].n_q, segments[s].n_k, r, p}, offset, pass,
                               team, most_deviation);
      }
    }
  }

  /// Lets go of the position and of the tables; keeps its own memory.
  void clear() {
    m_weights.clear();
    m_of.clear();
  }

  const HeadWeights<T>& operator[](std::size_t segment) const { return m_weights[m_of[segment]]; }

 private:
  std::vector<HeadWeights<T>> m_weights;
  std::vector<std::size_t> m_of;
};

}  // namespace nprf
