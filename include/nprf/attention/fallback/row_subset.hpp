// SPDX-License-Identifier: MIT
#pragma once

#include <span>

#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// A subset of the queries, and its rows of matrices that have a row for each query.
class RowSubset {
 public:
  /// The queries with these indices, increasing.
  RowSubset(std::span<const Index> indices, const Team& team) : m_indices(indices), m_team(team) {}

  Index count() const { return static_cast<Index>(m_indices.size()); }
  /// The index of the i-th query of the subset among all queries.
  Index index(Index i) const { return m_indices[static_cast<std::size_t>(i)]; }

  /// A copy of their rows of x.
  template <Real T>
  MatrixMap<T> of(const MatrixView<T>& x) const {
    auto rows = m_team.workspace().matrix<T>(count(), x.cols());
    m_team.run_tiles(count(), [&](Index i0, Index n, Workspace&) {
      for (Index i = i0; i < i0 + n; ++i) rows.row(i) = x.row(index(i));
    });
    return rows;
  }

  /// Copies `rows` to their rows of x.
  template <Real T>
  void put(const MatrixView<T>& rows, MatrixRef<T> x) const {
    m_team.run_tiles(count(), [&](Index i0, Index n, Workspace&) {
      for (Index i = i0; i < i0 + n; ++i) x.row(index(i)) = rows.row(i);
    });
  }

 private:
  std::span<const Index> m_indices;
  const Team& m_team;
};

}  // namespace nprf
