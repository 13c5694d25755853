// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "nprf/attention/segments.hpp"
#include "nprf/attention/weights/prepared_position.hpp"

namespace nprf {

/// A position prepared for each of the packed sequences. Sequences of the same size share it.
template <Real T>
class PreparedSegments {
 public:
  /// As PreparedPosition, whose tables lie in the team's workspace, once for each size. O(s log s) for s sequences.
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
    m_prepared.reserve(sizes);
    m_of.resize(segments.size());
    for (std::size_t at = 0; at < m_by_size.size(); ++at) {
      const std::size_t s = m_by_size[at];
      if (at == 0 || size(s) != size(m_by_size[at - 1]))
        m_prepared.emplace_back(position, options, ProductShape{segments[s].n_q, segments[s].n_k, r, p}, offset, pass,
                                team, most_deviation);
      m_of[s] = m_prepared.size() - 1;
    }
  }

  /// Drops all references to the position and to the tables, and keeps its own memory.
  void clear() {
    m_prepared.clear();
    m_of.clear();
  }

  const PreparedPosition<T>& operator[](std::size_t segment) const { return m_prepared[m_of[segment]]; }

  /// The lags of the position, key position minus query position, that any of the sequences has.
  LagRange distances() const {
    LagRange all{0, -1};
    for (const PreparedPosition<T>& one : m_prepared) {
      const LagProblem<T>& x = one.problem();
      const LagRange lags{x.lags.first - x.offset, x.lags.last - x.offset};
      if (lags.size() == 0) continue;
      all = all.size() == 0 ? lags : LagRange{std::min(all.first, lags.first), std::max(all.last, lags.last)};
    }
    return all;
  }

 private:
  std::vector<PreparedPosition<T>> m_prepared;
  std::vector<std::size_t> m_of, m_by_size;
};

}  // namespace nprf
