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

/// How a call lowers its positions: the offset of its queries, the pass, and the deviation of biases that it allows
/// (ProductChoice).
struct LoweringOptions {
  Index offset = 0;
  Pass pass = Pass::forward;
  double max_deviation = 0;
};

/// A position prepared for each of the packed sequences. Sequences of equal sizes share it.
template <Real T>
class PreparedSegments {
 public:
  /// Makes a PreparedPosition for each size, for r features and p columns of the product. Its tables are in the team's
  /// workspace. O(s log s) for s sequences.
  void build(const PositionView<T>& position, const AttentionOptions& options, std::span<const Segment> segments,
             Index r, Index p, const LoweringOptions& lowering, const Team& team) {
    clear();
    const auto size = [&](std::size_t s) { return std::pair(segments[s].n_q, segments[s].n_k); };
    m_by_size.resize(segments.size());
    std::iota(m_by_size.begin(), m_by_size.end(), std::size_t{0});
    std::ranges::sort(m_by_size, {}, size);
    std::size_t sizes = 0;
    for (std::size_t at = 0; at < m_by_size.size(); ++at)
      sizes += at == 0 || size(m_by_size[at]) != size(m_by_size[at - 1]);
    m_prepared.reserve(sizes);
    m_index.resize(segments.size());
    for (std::size_t at = 0; at < m_by_size.size(); ++at) {
      const std::size_t s = m_by_size[at];
      if (at == 0 || size(s) != size(m_by_size[at - 1]))
        m_prepared.emplace_back(position, options, ProductShape{segments[s].n_q, segments[s].n_k, r, p},
                                lowering.offset, lowering.pass, team, lowering.max_deviation);
      m_index[s] = m_prepared.size() - 1;
    }
  }

  /// Removes all prepared positions, but keeps the memory of the lists.
  void clear() {
    m_prepared.clear();
    m_index.clear();
  }

  const PreparedPosition<T>& operator[](std::size_t segment) const { return m_prepared[m_index[segment]]; }

  /// The range of lags, key position minus query position without the offset, over all sequences.
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
  std::vector<std::size_t> m_index;    // of each segment in m_prepared
  std::vector<std::size_t> m_by_size;  // the segments, sorted
};

}  // namespace nprf
