// SPDX-License-Identifier: MIT
#pragma once

#include <span>

#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// Some of the queries that stand in slots, in their order, and their rows of what all queries have. In the team's
/// workspace; it refers to the numbers.
class RowSubset {
 public:
  /// Of the queries `all`, those with these numbers, rising.
  RowSubset(std::span<const Index> numbers, const Placement& all, const Team& team)
      : m_numbers(numbers), m_team(team), m_at(team.workspace().take<Index>(count())) {
    for (Index i = 0; i < count(); ++i) m_at[i] = all.slots[number(i) - all.outside];
  }

  Index count() const { return static_cast<Index>(m_numbers.size()); }
  Placement placement() const { return {0, {count(), 0, m_at}, nullptr}; }

  /// Their rows of x.
  template <Real T>
  MatrixMap<T> of(const MatrixView<T>& x) const {
    auto rows = m_team.workspace().matrix<T>(count(), x.cols());
    m_team.run_tiles(count(), [&](Index i0, Index n, Workspace&) {
      for (Index i = i0; i < i0 + n; ++i) rows.row(i) = x.row(number(i));
    });
    return rows;
  }

  /// Their rows of x become `rows`.
  template <Real T>
  void put(const MatrixView<T>& rows, MatrixRef<T> x) const {
    m_team.run_tiles(count(), [&](Index i0, Index n, Workspace&) {
      for (Index i = i0; i < i0 + n; ++i) x.row(number(i)) = rows.row(i);
    });
  }

  Index number(Index i) const { return m_numbers[static_cast<std::size_t>(i)]; }

 private:
  std::span<const Index> m_numbers;
  const Team& m_team;
  Index* m_at;  // (count)
};

}  // namespace nprf
