// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>

#include "nprf/core/rows.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// Some keys of a placement, as a placement of their own, and their rows of matrices that have a row for each key.
class KeySubset {
 public:
  /// The keys with these indices, which must increase. O(indices), in the workspace, unless they are the first keys.
  KeySubset(const Placement& keys, std::span<const Index> indices, const Team& team)
      : m_count(static_cast<Index>(indices.size())),
        m_indices(indices.empty() || indices.back() + 1 == m_count ? std::span<const Index>() : indices),
        m_placement(are_first() ? keys.first(m_count) : chosen(keys, team)),
        m_team(team) {}

  /// The first n keys; there must be as many.
  KeySubset(const Placement& keys, Index n, const Team& team) : m_count(n), m_placement(keys.first(n)), m_team(team) {}

  Index count() const { return m_count; }
  /// The index of the l-th of them among all keys.
  Index operator[](Index l) const { return are_first() ? l : m_indices[static_cast<std::size_t>(l)]; }
  const Placement& placement() const { return m_placement; }

  /// Their rows of x (n_k,c): a view of the first ones, else a copy in the workspace.
  template <Real T>
  MatrixView<T> of(const std::type_identity_t<MatrixView<T>>& x) const {
    if (are_first()) return x.topRows(count());
    return RowSubset(m_indices, m_team).of<T>(x);
  }

  /// Where to add to their rows of x (n_k,c), before add_to(): these rows if they are the first, else zeros in the
  /// workspace.
  template <Real T>
  MatrixRef<T> sums_of(MatrixRef<T> x) const {
    if (are_first()) return x.topRows(count());
    auto sums = m_team.workspace().template matrix<T>(count(), x.cols());
    sums.setZero();
    return sums;
  }
  /// Adds the sums to x, unless they are rows of x.
  template <Real T>
  void add_to(MatrixRef<T> x, const MatrixRef<T>& sums) const {
    for (Index l = 0; !are_first() && l < count(); ++l) add_scaled(writable_row(x, (*this)[l]), T(1), row_of(sums, l));
  }

 private:
  bool are_first() const { return m_indices.empty(); }

  Placement chosen(const Placement& keys, const Team& team) const {
    const Index outside = std::ranges::lower_bound(m_indices, keys.outside) - m_indices.begin();
    Index *token_indices = team.workspace().take<Index>(count()),
          *slots = team.workspace().take<Index>(count() - outside);
    for (Index l = 0; l < count(); ++l) {
      const Index j = (*this)[l];
      token_indices[l] = keys.token_index(j);
      if (l >= outside) slots[l - outside] = keys.slots[j - keys.outside];
    }
    return Placement({count() - outside, 0, slots}, outside, token_indices);
  }

  Index m_count;
  std::span<const Index> m_indices;  // empty if they are the first keys
  Placement m_placement;
  const Team& m_team;
};

}  // namespace nprf
