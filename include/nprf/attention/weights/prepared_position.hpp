// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <span>

#include "nprf/attention/options.hpp"
#include "nprf/attention/weights/attendance.hpp"
#include "nprf/attention/weights/lower.hpp"
#include "nprf/attention/weights/product_choice.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/lag_problem.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/position/position_view.hpp"

namespace nprf {

/// What depends only on a position and on the numbers of tokens: the lowered problem, which queries attend to which
/// keys, and the product. All sequences of n_q queries and n_k keys share it. Its tables are in the workspace of the
/// team that it was made with.
template <Real T>
class PreparedPosition {
 public:
  /// `max_deviation` as in ProductChoice. Throws InvalidArgument if the position is for other numbers of tokens, or if
  /// Engine::grid is requested for a position that is not a grid.
  PreparedPosition(const PositionView<T>& position, const AttentionOptions& options, const ProductShape& shape,
                   Index offset, Pass pass, const Team& team, double max_deviation = 0)
      : m_problem(lower(position, options, offset, shape.n_q, shape.n_k, pass, team.workspace())),
        m_attendance(m_problem, team.workspace()),
        m_products(m_problem, options.engine, shape, pass, max_deviation, team) {
    require(options.engine != Engine::grid || m_problem.has_own_slots,
            "engine: expected another than grid for a one-dimensional position, got grid");
  }

  const LagProblem<T>& problem() const { return m_problem; }
  const Attendance<T>& attendance() const { return m_attendance; }
  const ProductChoice<T>& products() const { return m_products; }

  /// All queries.
  const Placement& queries() const { return m_problem.queries; }
  /// The keys before `length` whose mask is true; an empty mask is all true. The placement's arrays are in the
  /// workspace.
  Placement keys(std::span<const bool> mask, Index length, Workspace& workspace) const {
    const Placement& all = m_problem.keys;
    if (mask.empty() && length == all.count()) return all;
    Index* token_indices = workspace.take<Index>(length);
    Index count = 0;
    for (Index j = 0; j < length; ++j)
      if (mask.empty() || mask[static_cast<std::size_t>(j)]) token_indices[count++] = j;
    if (!m_problem.has_own_slots) {
      const bool has_no_gaps = count == 0 || token_indices[count - 1] == count - 1;
      return has_no_gaps ? Placement(Slots{count}) : Placement({count, 0, token_indices}, 0, token_indices);
    }
    const Index outside = std::lower_bound(token_indices, token_indices + count, all.outside) - token_indices;
    Index* at = workspace.take<Index>(count - outside);
    for (Index j = outside; j < count; ++j) at[j - outside] = all.slots[token_indices[j] - all.outside];
    return Placement({count - outside, 0, at}, outside, token_indices);
  }

 private:
  LagProblem<T> m_problem;
  Attendance<T> m_attendance;
  ProductChoice<T> m_products;
};

}  // namespace nprf
